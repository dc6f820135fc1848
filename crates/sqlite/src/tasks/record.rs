//! Columns of a task as values, both ways.
//!
//! Another program may have written into the file. What a row cannot do without (its id, its type, its state) makes it
//! unreadable; whatever else cannot be read is read as if it were not there, so that one spoiled row stops nobody.

use std::time::Duration;

use postrider_core::task::{
    AttemptOutcome, ClaimedTask, DeadReason, LostLease, Progress, Task, TaskAttempt, TaskId, TaskInfo, TaskLease,
    TaskState, TaskType,
};
use postrider_core::{IdempotencyKey, MessagingError, Priority, RetryStrategy, Timestamp};
use rusqlite::Row;
use rusqlite::types::{FromSqlError, Type, ValueRef};
use uuid::Uuid;

use crate::rows::{bytes, count, key, optional_time, time};

pub(super) fn retry_strategy_column(strategy: &RetryStrategy) -> Result<String, MessagingError> {
    serde_json::to_string(strategy)
        .map_err(|error| MessagingError::Serialization { content_type: "JSON", source: std::sync::Arc::new(error) })
}

/// Null for none, which is what most tasks have.
pub(super) fn tags_column(tags: &[String]) -> Option<String> {
    // A list of texts always has a JSON form.
    if tags.is_empty() { None } else { serde_json::to_string(tags).ok() }
}

fn unreadable(column: usize, of: Type, error: MessagingError) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, of, Box::new(error))
}

/// What was read of a row; `None` when there is no such row, or when nobody can read it.
pub(super) fn readable<T>(read: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(
            rusqlite::Error::QueryReturnedNoRows
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn task_id(row: &Row<'_>, column: usize) -> rusqlite::Result<TaskId> {
    row.get::<_, [u8; 16]>(column).map(|bytes| TaskId::from_uuid(Uuid::from_bytes(bytes)))
}

fn text<'r>(row: &'r Row<'_>, column: usize) -> rusqlite::Result<&'r str> {
    let value = row.get_ref(column)?;
    value.as_str().map_err(|error: FromSqlError| {
        rusqlite::Error::FromSqlConversionFailure(column, value.data_type(), Box::new(error))
    })
}

pub(super) fn task_type(row: &Row<'_>, column: usize) -> rusqlite::Result<TaskType> {
    TaskType::new(text(row, column)?).map_err(|error| unreadable(column, Type::Text, error))
}

pub(super) fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<TaskState> {
    text(row, column)?.parse().map_err(|error| unreadable(column, Type::Text, error))
}

pub(super) fn priority(row: &Row<'_>, column: usize) -> Priority {
    row.get::<_, u8>(column).ok().and_then(|priority| Priority::new(priority).ok()).unwrap_or_default()
}

fn optional_text(row: &Row<'_>, column: usize) -> Option<String> {
    row.get(column).unwrap_or_default()
}

fn retry_strategy(row: &Row<'_>, column: usize) -> Option<RetryStrategy> {
    text(row, column).ok().and_then(|json| serde_json::from_str(json).ok())
}

fn tags(row: &Row<'_>, column: usize) -> Vec<String> {
    match row.get_ref(column) {
        Ok(ValueRef::Text(json)) => serde_json::from_slice(json).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// A task that is about to be claimed.
#[derive(Debug)]
pub(super) struct Claimable {
    /// Its row.
    pub(super) row: i64,
    /// As it will be; its lease has no token yet.
    pub(super) task: ClaimedTask,
}

impl Claimable {
    /// Reads a row of `task_due` or `task_by_id`. The type and the priority are known to whoever asked for them.
    pub(super) fn read(
        row: &Row<'_>,
        task_type: &TaskType,
        priority: Priority,
        now: Timestamp,
    ) -> rusqlite::Result<Self> {
        let first_started_at = optional_time(row, 9).unwrap_or_default();
        let task = ClaimedTask {
            lease: TaskLease { id: task_id(row, 1)?, token: 0 },
            task_type: task_type.clone(),
            payload: bytes(row, 11)?,
            attempt_count: count(row, 2)?.saturating_add(1),
            max_attempts: count(row, 3)?,
            retry_strategy: retry_strategy(row, 4),
            priority,
            ordering_key: key(row, 5, "ordering key"),
            tags: tags(row, 6),
            created_at: time(row, 7)?,
            scheduled_for: time(row, 8)?,
            since_first_attempt: first_started_at.map_or(Duration::ZERO, |first| now.since(first)),
            time_left: optional_time(row, 10).unwrap_or_default().map(|deadline| deadline.since(now)),
        };
        Ok(Self { row: row.get(0)?, task })
    }
}

/// Reads a row of `task_lost_leases`.
pub(super) fn lost_lease(row: &Row<'_>, now: Timestamp) -> rusqlite::Result<LostLease> {
    let first_started_at = optional_time(row, 7).unwrap_or_default();
    Ok(LostLease {
        lease: TaskLease { id: task_id(row, 0)?, token: row.get(1)? },
        task_type: task_type(row, 2)?,
        worker: optional_text(row, 3).unwrap_or_default(),
        attempt_count: count(row, 4)?,
        max_attempts: count(row, 5)?,
        retry_strategy: retry_strategy(row, 6),
        since_first_attempt: first_started_at.map_or(Duration::ZERO, |first| now.since(first)),
    })
}

/// Reads a row of `task_list`.
pub(super) fn info(row: &Row<'_>) -> rusqlite::Result<TaskInfo> {
    let fraction = row.get::<_, Option<f64>>(21).unwrap_or_default();
    let progress = Progress { fraction, text: optional_text(row, 22) };
    Ok(TaskInfo {
        id: task_id(row, 1)?,
        task_type: task_type(row, 2)?,
        state: state(row, 3)?,
        priority: priority(row, 4),
        ordering_key: key(row, 5, "ordering key"),
        is_blocked: row.get(6)?,
        idempotency_key: optional_text(row, 7).and_then(|key| IdempotencyKey::new(key).ok()),
        tags: tags(row, 8),
        schedule: optional_text(row, 9),
        attempt_count: count(row, 10)?,
        max_attempts: count(row, 11)?,
        retry_strategy: retry_strategy(row, 12),
        created_at: time(row, 13)?,
        scheduled_for: time(row, 14)?,
        deadline: optional_time(row, 15).unwrap_or_default(),
        enqueued_at: optional_time(row, 16).unwrap_or_default(),
        started_at: optional_time(row, 17).unwrap_or_default(),
        finished_at: optional_time(row, 18).unwrap_or_default(),
        worker: optional_text(row, 19),
        lease_expires_at: optional_time(row, 20).unwrap_or_default(),
        progress: (progress.fraction.is_some() || progress.text.is_some()).then_some(progress),
        dead_reason: text(row, 23).ok().and_then(|reason| reason.parse::<DeadReason>().ok()),
        last_error: optional_text(row, 24),
        revision: count(row, 25)?,
        replay_count: count(row, 26)?,
    })
}

/// Reads a row of `task_get`.
pub(super) fn task(row: &Row<'_>) -> rusqlite::Result<Task> {
    let result = match row.get_ref(28)? {
        ValueRef::Null => None,
        _ => Some(bytes(row, 28)?),
    };
    Ok(Task { info: info(row)?, payload: bytes(row, 27)?, result })
}

/// Reads a row of `task_attempts`.
pub(super) fn attempt(row: &Row<'_>) -> rusqlite::Result<TaskAttempt> {
    Ok(TaskAttempt {
        attempt: count(row, 0)?,
        replay: count(row, 1)?,
        worker: row.get(2)?,
        started_at: time(row, 3)?,
        ended_at: optional_time(row, 4)?,
        // One that nobody knows did not succeed, or it would not be there.
        outcome: AttemptOutcome::from_name(text(row, 5)?).unwrap_or(AttemptOutcome::Failed),
        error: optional_text(row, 6),
    })
}

/// What must be known of a task to end an attempt of it, or the task itself.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) row: i64,
    pub(super) id: TaskId,
    pub(super) task_type: TaskType,
    pub(super) state: TaskState,
    pub(super) priority: Priority,
    pub(super) ordering_key: Option<String>,
    pub(super) attempt_count: u32,
    pub(super) max_attempts: u32,
    pub(super) worker: Option<String>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) replay_count: u32,
    pub(super) revision: u32,
    pub(super) payload_bytes: u64,
}

impl Life {
    /// Reads a row of `task_life`.
    pub(super) fn read(row: &Row<'_>, number: i64) -> rusqlite::Result<Self> {
        Ok(Self {
            row: number,
            id: task_id(row, 0)?,
            task_type: task_type(row, 1)?,
            state: state(row, 2)?,
            priority: priority(row, 3),
            ordering_key: optional_text(row, 4),
            attempt_count: count(row, 5)?,
            max_attempts: count(row, 6)?,
            worker: optional_text(row, 7),
            started_at: optional_time(row, 8).unwrap_or_default(),
            replay_count: count(row, 9)?,
            revision: count(row, 10)?,
            payload_bytes: row.get::<_, i64>(11).unwrap_or_default().max(0).cast_unsigned(),
        })
    }
}
