//! Conversion between columns of tasks and values.

use std::borrow::Cow;
use std::time::Duration;

use postrider_core::message::MAX_DURATION;
use postrider_core::task::{DeadReason, Progress, Task, TaskId, TaskInfo, TaskState, TaskType, When};
use postrider_core::{IdempotencyKey, MessagingError, Priority, RetryStrategy};
use postrider_pg::columns::Column;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::rows::{Time, body, count, key, micros, optional_time, time};

/// Upper bound of a stored error text, as for messages.
const MAX_ERROR: usize = 8 * 1024;

/// Returns a text that a column can hold: without NUL, and truncated.
pub(super) fn kept(text: &str) -> Cow<'_, str> {
    let text = plain(text);
    match text.len() > MAX_ERROR {
        true => Cow::Owned(text[..text.floor_char_boundary(MAX_ERROR)].to_owned()),
        false => text,
    }
}

/// Returns a text without NUL.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Returns a delay that can be added to the server's clock.
pub(super) fn delay_column(delay: Duration) -> i64 {
    micros(delay.min(MAX_DURATION))
}

/// Returns a time as an absolute time, or as a delay from now.
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

/// Reads a strategy; `None`, the default one, if it cannot be parsed.
pub(super) fn strategy(row: &Row, column: impl Column) -> Option<RetryStrategy> {
    row.get::<_, Option<&str>>(column).and_then(|json| serde_json::from_str(json).ok())
}

pub(super) fn task_id(row: &Row, column: impl Column) -> TaskId {
    TaskId::from_uuid(row.get::<_, Uuid>(column))
}

/// Reads a state. The column's type has no others.
pub(super) fn state(row: &Row, column: impl Column) -> TaskState {
    row.get::<_, &str>(column).parse().unwrap_or(TaskState::Pending)
}

pub(super) fn priority(row: &Row, column: impl Column) -> Priority {
    u8::try_from(row.get::<_, i16>(column)).ok().and_then(|number| Priority::new(number).ok()).unwrap_or_default()
}

pub(super) fn tags(row: &Row, column: impl Column) -> Vec<String> {
    row.get::<_, Option<Vec<String>>>(column).unwrap_or_default()
}

/// Returns a duration of microseconds; zero if negative.
pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0).unsigned_abs())
}

postrider_pg::columns! {
    /// The columns of a task's information.
    InfoColumns {
        id, task_id, task_type, state, priority, ordering_key, blocked, idempotency_key, tags, schedule, attempt_count,
        max_attempts, retry_strategy, created_at, scheduled_for, deadline, enqueued_at, started_at, finished_at, worker_id,
        lease_expires_at, progress, progress_text, dead_reason, last_error, revision, replay_count,
    }
}

/// Reads a task without its payload and result; `None` if its type is invalid: another program wrote it.
pub(super) fn info(row: &Row, columns: InfoColumns) -> Option<TaskInfo> {
    let (fraction, text): (Option<f64>, Option<String>) = (row.get(columns.progress), row.get(columns.progress_text));
    let progress = (fraction.is_some() || text.is_some()).then_some(Progress { fraction, text });
    Some(TaskInfo {
        id: task_id(row, columns.task_id),
        task_type: TaskType::new(row.get::<_, &str>(columns.task_type)).ok()?,
        state: state(row, columns.state),
        priority: priority(row, columns.priority),
        ordering_key: key(row, columns.ordering_key, "ordering key"),
        is_blocked: row.get(columns.blocked),
        idempotency_key: row
            .get::<_, Option<&str>>(columns.idempotency_key)
            .and_then(|key| IdempotencyKey::new(key).ok()),
        tags: tags(row, columns.tags),
        schedule: row.get(columns.schedule),
        attempt_count: count(row, columns.attempt_count),
        max_attempts: count(row, columns.max_attempts),
        retry_strategy: strategy(row, columns.retry_strategy),
        created_at: time(row, columns.created_at),
        scheduled_for: time(row, columns.scheduled_for),
        deadline: optional_time(row, columns.deadline),
        enqueued_at: optional_time(row, columns.enqueued_at),
        started_at: optional_time(row, columns.started_at),
        finished_at: optional_time(row, columns.finished_at),
        worker: row.get(columns.worker_id),
        lease_expires_at: optional_time(row, columns.lease_expires_at),
        progress,
        dead_reason: row
            .get::<_, Option<&str>>(columns.dead_reason)
            .and_then(|reason| reason.parse::<DeadReason>().ok()),
        last_error: row.get(columns.last_error),
        revision: count(row, columns.revision),
        replay_count: count(row, columns.replay_count),
    })
}

/// Reads a task with its payload and result.
pub(super) fn task(row: &Row) -> Option<Task> {
    let result = row.get::<_, Option<&[u8]>>("result").map(bytes::Bytes::copy_from_slice);
    Some(Task { info: info(row, InfoColumns::of(std::slice::from_ref(row)))?, payload: body(row, "payload"), result })
}
