//! Converts the columns of a task to values and back.
//!
//! Another program may have written into the file. A row without a readable id, type or state is unreadable; any other
//! unreadable column counts as missing, so that one damaged row does not stop the rest.

use std::time::Duration;

use postrider_core::task::{
    AttemptOutcome, ClaimedTask, DeadReason, LostLease, Progress, Task, TaskAttempt, TaskId, TaskInfo, TaskLease,
    TaskState, TaskType,
};
use postrider_core::{IdempotencyKey, MessagingError, Priority, RetryStrategy, Timestamp};
use rusqlite::types::{FromSqlError, Type, ValueRef};
use rusqlite::{Row, RowIndex, Statement};
use uuid::Uuid;

use crate::rows::{Columns, bytes, columns, count, key, optional_time, time};

pub(super) fn retry_strategy_column(strategy: &RetryStrategy) -> Result<String, MessagingError> {
    serde_json::to_string(strategy)
        .map_err(|error| MessagingError::Serialization { content_type: "JSON", source: std::sync::Arc::new(error) })
}

/// The column of tags; null for none, as in most tasks.
pub(super) fn tags_column(tags: &[String]) -> Option<String> {
    // A list of strings always has a JSON form.
    if tags.is_empty() { None } else { serde_json::to_string(tags).ok() }
}

fn unreadable(column: usize, of: Type, error: MessagingError) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, of, Box::new(error))
}

/// The value read from a row; `None` if there is no such row or it is unreadable.
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

pub(super) fn task_id(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<TaskId> {
    row.get::<_, [u8; 16]>(column).map(|bytes| TaskId::from_uuid(Uuid::from_bytes(bytes)))
}

fn text<'r>(row: &'r Row<'_>, column: impl RowIndex) -> rusqlite::Result<&'r str> {
    let column = column.idx(row.as_ref())?;
    let value = row.get_ref(column)?;
    value.as_str().map_err(|error: FromSqlError| {
        rusqlite::Error::FromSqlConversionFailure(column, value.data_type(), Box::new(error))
    })
}

pub(super) fn task_type(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<TaskType> {
    let column = column.idx(row.as_ref())?;
    TaskType::new(text(row, column)?).map_err(|error| unreadable(column, Type::Text, error))
}

pub(super) fn state(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<TaskState> {
    let column = column.idx(row.as_ref())?;
    text(row, column)?.parse().map_err(|error| unreadable(column, Type::Text, error))
}

pub(super) fn priority(row: &Row<'_>, column: impl RowIndex) -> Priority {
    row.get::<_, u8>(column).ok().and_then(|priority| Priority::new(priority).ok()).unwrap_or_default()
}

fn optional_text(row: &Row<'_>, column: impl RowIndex) -> Option<String> {
    row.get(column).unwrap_or_default()
}

fn retry_strategy(row: &Row<'_>, column: impl RowIndex) -> Option<RetryStrategy> {
    text(row, column).ok().and_then(|json| serde_json::from_str(json).ok())
}

fn tags(row: &Row<'_>, column: impl RowIndex) -> Vec<String> {
    match row.get_ref(column) {
        Ok(ValueRef::Text(json)) => serde_json::from_slice(json).unwrap_or_default(),
        _ => Vec::new(),
    }
}

columns! {
    /// Where the columns of a due task are.
    ClaimableColumns {
        id, task_id, attempt_count, max_attempts, retry_strategy, ordering_key, tags, created_at, scheduled_for,
        first_started_at, deadline, payload,
    }
}

/// Where the columns of `task_by_id` are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskByIdColumns {
    pub(crate) claimable: ClaimableColumns,
    pub(crate) state: usize,
    pub(crate) blocked: usize,
    pub(crate) task_type: usize,
    pub(crate) priority: usize,
}

impl Columns for TaskByIdColumns {
    fn of(statement: &Statement<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            claimable: ClaimableColumns::of(statement)?,
            state: statement.column_index("state")?,
            blocked: statement.column_index("blocked")?,
            task_type: statement.column_index("task_type")?,
            priority: statement.column_index("priority")?,
        })
    }
}

/// A task that is about to be claimed.
#[derive(Debug)]
pub(super) struct Claimable {
    /// Its row.
    pub(super) row: i64,
    /// The claimed task, still without a lease token.
    pub(super) task: ClaimedTask,
}

impl Claimable {
    /// Reads a row of `task_due` or `task_by_id`. The caller has the type and the priority.
    pub(super) fn read(
        row: &Row<'_>,
        columns: ClaimableColumns,
        task_type: &TaskType,
        priority: Priority,
        now: Timestamp,
    ) -> rusqlite::Result<Self> {
        let first_started_at = optional_time(row, columns.first_started_at).unwrap_or_default();
        let task = ClaimedTask {
            lease: TaskLease { id: task_id(row, columns.task_id)?, token: 0 },
            task_type: task_type.clone(),
            payload: bytes(row, columns.payload)?,
            attempt_count: count(row, columns.attempt_count)?.saturating_add(1),
            max_attempts: count(row, columns.max_attempts)?,
            retry_strategy: retry_strategy(row, columns.retry_strategy),
            priority,
            ordering_key: key(row, columns.ordering_key, "ordering key"),
            tags: tags(row, columns.tags),
            created_at: time(row, columns.created_at)?,
            scheduled_for: time(row, columns.scheduled_for)?,
            since_first_attempt: first_started_at.map_or(Duration::ZERO, |first| now.since(first)),
            time_left: optional_time(row, columns.deadline).unwrap_or_default().map(|deadline| deadline.since(now)),
        };
        Ok(Self { row: row.get(columns.id)?, task })
    }
}

/// Reads a row of `task_lost_leases`.
pub(super) fn lost_lease(row: &Row<'_>, now: Timestamp) -> rusqlite::Result<LostLease> {
    let first_started_at = optional_time(row, "first_started_at").unwrap_or_default();
    Ok(LostLease {
        lease: TaskLease { id: task_id(row, "task_id")?, token: row.get("lease_token")? },
        task_type: task_type(row, "task_type")?,
        worker: optional_text(row, "worker_id").unwrap_or_default(),
        attempt_count: count(row, "attempt_count")?,
        max_attempts: count(row, "max_attempts")?,
        retry_strategy: retry_strategy(row, "retry_strategy"),
        since_first_attempt: first_started_at.map_or(Duration::ZERO, |first| now.since(first)),
    })
}

columns! {
    /// Where the columns of a task without its payload are.
    TaskInfoColumns {
        id, task_id, task_type, state, priority, ordering_key, blocked, idempotency_key, tags, schedule, attempt_count,
        max_attempts, retry_strategy, created_at, scheduled_for, deadline, enqueued_at, started_at, finished_at,
        worker_id, lease_expires_at, progress, progress_text, dead_reason, last_error, revision, replay_count,
    }
}

/// Reads a row of `task_list`, `task_list_ended` or `task_get`.
pub(super) fn info(row: &Row<'_>, columns: &TaskInfoColumns) -> rusqlite::Result<TaskInfo> {
    let fraction = row.get::<_, Option<f64>>(columns.progress).unwrap_or_default();
    let progress = Progress { fraction, text: optional_text(row, columns.progress_text) };
    Ok(TaskInfo {
        id: task_id(row, columns.task_id)?,
        task_type: task_type(row, columns.task_type)?,
        state: state(row, columns.state)?,
        priority: priority(row, columns.priority),
        ordering_key: key(row, columns.ordering_key, "ordering key"),
        is_blocked: row.get(columns.blocked)?,
        idempotency_key: optional_text(row, columns.idempotency_key).and_then(|key| IdempotencyKey::new(key).ok()),
        tags: tags(row, columns.tags),
        schedule: optional_text(row, columns.schedule),
        attempt_count: count(row, columns.attempt_count)?,
        max_attempts: count(row, columns.max_attempts)?,
        retry_strategy: retry_strategy(row, columns.retry_strategy),
        created_at: time(row, columns.created_at)?,
        scheduled_for: time(row, columns.scheduled_for)?,
        deadline: optional_time(row, columns.deadline).unwrap_or_default(),
        enqueued_at: optional_time(row, columns.enqueued_at).unwrap_or_default(),
        started_at: optional_time(row, columns.started_at).unwrap_or_default(),
        finished_at: optional_time(row, columns.finished_at).unwrap_or_default(),
        worker: optional_text(row, columns.worker_id),
        lease_expires_at: optional_time(row, columns.lease_expires_at).unwrap_or_default(),
        progress: (progress.fraction.is_some() || progress.text.is_some()).then_some(progress),
        dead_reason: text(row, columns.dead_reason).ok().and_then(|reason| reason.parse::<DeadReason>().ok()),
        last_error: optional_text(row, columns.last_error),
        revision: count(row, columns.revision)?,
        replay_count: count(row, columns.replay_count)?,
    })
}

/// Reads a row of `task_get`.
pub(super) fn task(row: &Row<'_>, columns: &TaskInfoColumns) -> rusqlite::Result<Task> {
    let result = match row.get_ref("result")? {
        ValueRef::Null => None,
        _ => Some(bytes(row, "result")?),
    };
    Ok(Task { info: info(row, columns)?, payload: bytes(row, "payload")?, result })
}

/// Reads a row of `task_attempts`.
pub(super) fn attempt(row: &Row<'_>) -> rusqlite::Result<TaskAttempt> {
    Ok(TaskAttempt {
        attempt: count(row, "attempt")?,
        replay: count(row, "replay")?,
        worker: row.get("worker_id")?,
        started_at: time(row, "started_at")?,
        ended_at: optional_time(row, "ended_at")?,
        // An attempt with an unknown outcome has failed: only attempts without success have a row.
        outcome: AttemptOutcome::from_name(text(row, "outcome")?).unwrap_or(AttemptOutcome::Failed),
        error: optional_text(row, "error"),
    })
}

/// The columns of a task that a transition needs.
#[derive(Debug)]
pub(super) struct TaskRow {
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

impl TaskRow {
    /// Reads a row of `task_row`.
    pub(super) fn read(row: &Row<'_>, number: i64) -> rusqlite::Result<Self> {
        Ok(Self {
            row: number,
            id: task_id(row, "task_id")?,
            task_type: task_type(row, "task_type")?,
            state: state(row, "state")?,
            priority: priority(row, "priority"),
            ordering_key: optional_text(row, "ordering_key"),
            attempt_count: count(row, "attempt_count")?,
            max_attempts: count(row, "max_attempts")?,
            worker: optional_text(row, "worker_id"),
            started_at: optional_time(row, "started_at").unwrap_or_default(),
            replay_count: count(row, "replay_count")?,
            revision: count(row, "revision")?,
            payload_bytes: row.get::<_, i64>("payload_bytes").unwrap_or_default().max(0).cast_unsigned(),
        })
    }
}
