//! Columns of tasks as values, both ways.

use std::borrow::Cow;
use std::time::Duration;

use postrider_core::message::MAX_DURATION;
use postrider_core::task::{DeadReason, Progress, Task, TaskId, TaskInfo, TaskState, TaskType, When};
use postrider_core::{IdempotencyKey, MessagingError, Priority, RetryStrategy};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::rows::{Time, body, count, key, micros, optional_time, time};

/// As much of an error's text is kept as of a message's.
const MAX_ERROR: usize = 8 * 1024;

/// Text that a column can hold: without NUL, and no longer than it should be.
pub(super) fn kept(text: &str) -> Cow<'_, str> {
    let text = plain(text);
    match text.len() > MAX_ERROR {
        true => Cow::Owned(text[..text.floor_char_boundary(MAX_ERROR)].to_owned()),
        false => text,
    }
}

/// Text that a column can hold.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// A delay that the server's clock can be moved by.
pub(super) fn delay_column(delay: Duration) -> i64 {
    micros(delay.min(MAX_DURATION))
}

/// A time as the statements take it: by itself, or counted from the store's now.
pub(super) fn when_columns(when: When) -> (Option<Time>, Option<i64>) {
    match when {
        When::At(time) => (Some(Time(time)), None),
        When::In(delay) => (None, Some(delay_column(delay))),
    }
}

pub(super) fn strategy_column(strategy: Option<&RetryStrategy>) -> Result<Option<String>, MessagingError> {
    let json = |strategy| serde_json::to_string(strategy).map_err(|error| unwritable("retry strategy", error));
    strategy.map(json).transpose()
}

pub(super) fn unwritable(what: &'static str, error: serde_json::Error) -> MessagingError {
    MessagingError::invalid(what, error.to_string())
}

/// A strategy. One that another program has written and that cannot be read is the default one.
pub(super) fn strategy(row: &Row, column: usize) -> Option<RetryStrategy> {
    row.get::<_, Option<&str>>(column).and_then(|json| serde_json::from_str(json).ok())
}

pub(super) fn task_id(row: &Row, column: usize) -> TaskId {
    TaskId::from_uuid(row.get::<_, Uuid>(column))
}

/// A state. The column's type knows no other.
pub(super) fn state(row: &Row, column: usize) -> TaskState {
    row.get::<_, &str>(column).parse().unwrap_or(TaskState::Pending)
}

pub(super) fn priority(row: &Row, column: usize) -> Priority {
    u8::try_from(row.get::<_, i16>(column)).ok().and_then(|number| Priority::new(number).ok()).unwrap_or_default()
}

pub(super) fn tags(row: &Row, column: usize) -> Vec<String> {
    row.get::<_, Option<Vec<String>>>(column).unwrap_or_default()
}

/// How long a number of microseconds is; nothing when they have passed.
pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0).unsigned_abs())
}

/// Everything about a task but its bytes; `None` when its type is none, and so was not written by us.
pub(super) fn info(row: &Row) -> Option<TaskInfo> {
    let (fraction, text): (Option<f64>, Option<String>) = (row.get(21), row.get(22));
    let progress = (fraction.is_some() || text.is_some()).then_some(Progress { fraction, text });
    Some(TaskInfo {
        id: task_id(row, 1),
        task_type: TaskType::new(row.get::<_, &str>(2)).ok()?,
        state: state(row, 3),
        priority: priority(row, 4),
        ordering_key: key(row, 5, "ordering key"),
        is_blocked: row.get(6),
        idempotency_key: row.get::<_, Option<&str>>(7).and_then(|key| IdempotencyKey::new(key).ok()),
        tags: tags(row, 8),
        schedule: row.get(9),
        attempt_count: count(row, 10),
        max_attempts: count(row, 11),
        retry_strategy: strategy(row, 12),
        created_at: time(row, 13),
        scheduled_for: time(row, 14),
        deadline: optional_time(row, 15),
        enqueued_at: optional_time(row, 16),
        started_at: optional_time(row, 17),
        finished_at: optional_time(row, 18),
        worker: row.get(19),
        lease_expires_at: optional_time(row, 20),
        progress,
        dead_reason: row.get::<_, Option<&str>>(23).and_then(|reason| reason.parse::<DeadReason>().ok()),
        last_error: row.get(24),
        revision: count(row, 25),
        replay_count: count(row, 26),
    })
}

/// A task with its bytes.
pub(super) fn task(row: &Row) -> Option<Task> {
    let result = row.get::<_, Option<&[u8]>>(28).map(bytes::Bytes::copy_from_slice);
    Some(Task { info: info(row)?, payload: body(row, 27), result })
}
