//! What people and tools see of tasks, through connections that only read.

use std::time::Duration;

use postrider_core::task::{
    AttemptOutcome, LostLease, PayloadRevision, Task, TaskAttempt, TaskCount, TaskCursor, TaskFilter, TaskId, TaskInfo,
    TaskLease, TaskPage, TaskQuery, TaskStanding, TaskState,
};
use postrider_core::{Measured, MessagingError, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, Rows};

use super::finish::hold;
use super::record;
use crate::error::Failure;
use crate::rows;
use crate::sql;

/// So many rows are looked at for one page, whatever its filter leaves of them.
const MOST_LOOKED_AT: usize = 10_000;

/// One more tells whether that was the end.
const MOST_ROWS: i64 = MOST_LOOKED_AT as i64 + 1;

/// Rows are in the order of their creation, but for a clock that differs a little from process to process.
const SLACK: Duration = Duration::from_secs(60);

pub(super) fn get(connection: &Connection, id: TaskId) -> rusqlite::Result<Option<Task>> {
    let mut statement = connection.prepare_cached(sql::TASK_GET)?;
    statement.query_row([id.as_uuid().as_bytes()], record::task).optional()
}

pub(super) fn standings(connection: &Connection, leases: &[TaskLease]) -> rusqlite::Result<Vec<TaskStanding>> {
    let standing = |lease: &TaskLease| {
        let hold = hold(connection, lease.id)?;
        Ok(hold.map_or(TaskStanding::Lost(None), |hold| hold.standing(lease.token)))
    };
    leases.iter().map(standing).collect()
}

pub(super) fn lost_leases(connection: &Connection, limit: usize, now: Timestamp) -> rusqlite::Result<Vec<LostLease>> {
    let mut statement = connection.prepare_cached(sql::TASK_LOST_LEASES)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    // What nobody can read nobody could end.
    let lost = statement.query_map((now.as_micros(), limit), |row| Ok(record::lost_lease(row, now).ok()))?;
    lost.filter_map(Result::transpose).collect()
}

/// Every attempt: those that failed have rows of their own, the one that runs or succeeded is in the task's.
pub(super) fn attempts(connection: &Connection, id: TaskId) -> Result<Vec<TaskAttempt>, Failure> {
    let mut statement = connection.prepare_cached(sql::TASK_GET)?;
    let task = statement.query_row([id.as_uuid().as_bytes()], |row| Ok((row.get::<_, i64>(0)?, record::info(row)?)));
    let (row, info) = task.optional()?.ok_or(MessagingError::TaskNotFound { id })?;
    let mut statement = connection.prepare_cached(sql::TASK_ATTEMPTS)?;
    let mut attempts: Vec<TaskAttempt> = statement.query_map([row], record::attempt)?.collect::<Result<_, _>>()?;
    let outcome = match info.state {
        TaskState::Processing => Some(AttemptOutcome::Running),
        TaskState::Succeeded => Some(AttemptOutcome::Succeeded),
        TaskState::Pending | TaskState::Enqueued | TaskState::Dead | TaskState::Canceled => None,
    };
    if let (Some(outcome), Some(started_at)) = (outcome, info.started_at) {
        attempts.push(TaskAttempt {
            attempt: info.attempt_count,
            replay: info.replay_count,
            worker: info.worker.unwrap_or_default(),
            started_at,
            ended_at: info.finished_at,
            outcome,
            error: None,
        });
    }
    Ok(attempts)
}

pub(super) fn revisions(connection: &Connection, id: TaskId) -> Result<Vec<PayloadRevision>, Failure> {
    hold(connection, id)?.ok_or(MessagingError::TaskNotFound { id })?;
    let mut statement = connection.prepare_cached(sql::TASK_REVISIONS)?;
    let revisions = statement.query_map([id.as_uuid().as_bytes()], |row| {
        Ok(PayloadRevision {
            revision: rows::count(row, 0)?,
            payload: rows::bytes(row, 1)?,
            replaced_at: rows::time(row, 2)?,
        })
    })?;
    Ok(revisions.collect::<rusqlite::Result<_>>()?)
}

/// One page, newest first.
pub(super) fn list(connection: &Connection, query: &TaskQuery) -> Result<TaskPage, Failure> {
    let before = query.after.as_ref().map_or(Ok(i64::MAX), cursor)?;
    let states = &query.filter.states;
    let is_ended = |state: &TaskState| matches!(state, TaskState::Dead | TaskState::Canceled);
    let mut page = Page { query, tasks: Vec::new(), looked_at: 0, last: before, is_full: false };
    if !states.is_empty() && states.iter().all(is_ended) {
        let wanted = (states.contains(&TaskState::Dead), states.contains(&TaskState::Canceled));
        let mut statement = connection.prepare_cached(sql::TASK_LIST_ENDED)?;
        page.fill(statement.query((before, MOST_ROWS, wanted.0, wanted.1))?)?;
    } else {
        let mut statement = connection.prepare_cached(sql::TASK_LIST)?;
        page.fill(statement.query((before, MOST_ROWS))?)?;
    }
    Ok(page.end())
}

/// Tasks by type and state; ended ones among the newest `most_ended`.
pub(super) fn counts(connection: &Connection, most_ended: u32) -> rusqlite::Result<Vec<TaskCount>> {
    let mut statement = connection.prepare_cached(sql::TASK_COUNTS)?;
    let mut rows = statement.query([most_ended])?;
    let mut counts = Vec::new();
    while let Some(row) = rows.next()? {
        // A type or state that cannot be read was not written by us.
        let (Ok(task_type), Ok(state)) = (record::task_type(row, 0), record::state(row, 1)) else { continue };
        let count = row.get::<_, i64>(2)?.max(0).cast_unsigned();
        let count = if row.get(3)? { Measured::Approximate(count) } else { Measured::Exact(count) };
        counts.push(TaskCount { task_type, state, count });
    }
    Ok(counts)
}

fn cursor(cursor: &TaskCursor) -> Result<i64, MessagingError> {
    let unknown = |_| MessagingError::invalid("cursor", "it was not made by this store; begin with the first page");
    cursor.0.parse().map_err(unknown)
}

/// A page that is being filled.
struct Page<'q> {
    query: &'q TaskQuery,
    tasks: Vec<TaskInfo>,
    looked_at: usize,
    /// The last row that is done with.
    last: i64,
    /// Whether it ended before the rows did.
    is_full: bool,
}

impl Page<'_> {
    fn fill(&mut self, mut rows: Rows<'_>) -> rusqlite::Result<()> {
        while let Some(row) = rows.next()? {
            if !self.look(row)? {
                break;
            }
        }
        Ok(())
    }

    /// Looks at the next row. Answers whether it wants another.
    fn look(&mut self, row: &Row<'_>) -> rusqlite::Result<bool> {
        if self.tasks.len() >= self.query.limit || self.looked_at >= MOST_LOOKED_AT {
            self.is_full = true;
            return Ok(false);
        }
        if self.is_too_old(row) {
            return Ok(false);
        }
        self.looked_at += 1;
        self.last = row.get(0)?;
        if may_be_included(&self.query.filter, row)
            // A row that cannot be read was not written by us.
            && let Ok(task) = record::info(row)
            && self.query.filter.includes(&task)
        {
            self.tasks.push(task);
        }
        Ok(true)
    }

    /// Whether this one and all behind it were made before the time that is asked for.
    fn is_too_old(&self, row: &Row<'_>) -> bool {
        let since = self.query.filter.created_since.map(|since| since.saturating_sub(SLACK));
        since.is_some_and(|since| rows::time(row, 13).is_ok_and(|created_at| created_at < since))
    }

    fn end(self) -> TaskPage {
        let next = self.is_full.then(|| TaskCursor(self.last.to_string()));
        TaskPage { tasks: self.tasks, next }
    }
}

/// Whether it is worth reading the whole row.
fn may_be_included(filter: &TaskFilter, row: &Row<'_>) -> bool {
    let text = |column: usize| row.get_ref(column).ok().and_then(|value| value.as_str().ok()).unwrap_or_default();
    (filter.states.is_empty() || filter.states.iter().any(|state| state.as_str() == text(3)))
        && (filter.types.is_empty() || filter.types.iter().any(|task_type| task_type.as_str() == text(2)))
        && filter.within.as_ref().is_none_or(|all| !all.is_empty())
}
