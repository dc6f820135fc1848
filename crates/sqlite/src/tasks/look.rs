//! Read-only queries on tasks.

use std::time::Duration;

use postrider_core::task::{
    AttemptOutcome, LostLease, PayloadRevision, Task, TaskAttempt, TaskCount, TaskCursor, TaskFilter, TaskId, TaskInfo,
    TaskLease, TaskPage, TaskQuery, TaskStanding, TaskState,
};
use postrider_core::{Measured, MessagingError, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, Rows};

use super::finish::hold;
use super::record::{self, TaskInfoColumns};
use crate::error::Failure;
use crate::rows::{self, Columns};
use crate::sql;

/// Upper bound of rows read for one page, whatever its filter leaves of them.
const MAX_READ: usize = 10_000;

/// One row more shows whether there are further rows.
const MAX_ROWS: i64 = MAX_READ as i64 + 1;

/// Upper bound of the clock difference between processes: rows are in the order of creation except for it.
const SLACK: Duration = Duration::from_secs(60);

pub(super) fn get(connection: &Connection, id: TaskId) -> rusqlite::Result<Option<Task>> {
    let mut statement = connection.prepare_cached(sql::TASK_GET)?;
    let columns = TaskInfoColumns::of(&statement)?;
    statement.query_row([id.as_uuid().as_bytes()], |row| record::task(row, &columns)).optional()
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
    // An unreadable task cannot be ended.
    let lost = statement.query_map((now.as_micros(), limit), |row| Ok(record::lost_lease(row, now).ok()))?;
    lost.filter_map(Result::transpose).collect()
}

/// Every attempt: failed attempts have their own rows, the running or successful one is in the task's row.
pub(super) fn attempts(connection: &Connection, id: TaskId) -> Result<Vec<TaskAttempt>, Failure> {
    let mut statement = connection.prepare_cached(sql::TASK_GET)?;
    let columns = TaskInfoColumns::of(&statement)?;
    let task = statement
        .query_row([id.as_uuid().as_bytes()], |row| Ok((row.get::<_, i64>(columns.id)?, record::info(row, &columns)?)));
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
            revision: rows::count(row, "revision")?,
            payload: rows::bytes(row, "payload")?,
            replaced_at: rows::time(row, "replaced_at")?,
        })
    })?;
    Ok(revisions.collect::<rusqlite::Result<_>>()?)
}

/// One page, newest first.
pub(super) fn list(connection: &Connection, query: &TaskQuery) -> Result<TaskPage, Failure> {
    let before = query.after.as_ref().map_or(Ok(i64::MAX), cursor)?;
    let states = &query.filter.states;
    let is_ended = |state: &TaskState| matches!(state, TaskState::Dead | TaskState::Canceled);
    let mut page = Page { query, tasks: Vec::new(), read: 0, last: before, is_full: false };
    if !states.is_empty() && states.iter().all(is_ended) {
        let wanted = (states.contains(&TaskState::Dead), states.contains(&TaskState::Canceled));
        let mut statement = connection.prepare_cached(sql::TASK_LIST_ENDED)?;
        let columns = TaskInfoColumns::of(&statement)?;
        page.fill(statement.query((before, MAX_ROWS, wanted.0, wanted.1))?, &columns)?;
    } else {
        let mut statement = connection.prepare_cached(sql::TASK_LIST)?;
        let columns = TaskInfoColumns::of(&statement)?;
        page.fill(statement.query((before, MAX_ROWS))?, &columns)?;
    }
    Ok(page.end())
}

/// The number of tasks by type and state; ended tasks among the newest `max_ended` only.
pub(super) fn counts(connection: &Connection, max_ended: u32) -> rusqlite::Result<Vec<TaskCount>> {
    let mut statement = connection.prepare_cached(sql::TASK_COUNTS)?;
    let mut rows = statement.query([max_ended])?;
    let mut counts = Vec::new();
    while let Some(row) = rows.next()? {
        // A row with an unreadable type or state was written by another program.
        let (Ok(task_type), Ok(state)) = (record::task_type(row, "task_type"), record::state(row, "state")) else {
            continue;
        };
        let count = row.get::<_, i64>("count")?.max(0).cast_unsigned();
        let count = if row.get("has_more")? { Measured::Approximate(count) } else { Measured::Exact(count) };
        counts.push(TaskCount { task_type, state, count });
    }
    Ok(counts)
}

fn cursor(cursor: &TaskCursor) -> Result<i64, MessagingError> {
    cursor.0.parse().map_err(|_| MessagingError::invalid_cursor(&cursor.0))
}

/// A page that is being filled.
struct Page<'q> {
    query: &'q TaskQuery,
    tasks: Vec<TaskInfo>,
    /// Number of rows read.
    read: usize,
    /// The last row that was read.
    last: i64,
    /// Whether it is full and there are further rows.
    is_full: bool,
}

impl Page<'_> {
    fn fill(&mut self, mut rows: Rows<'_>, columns: &TaskInfoColumns) -> rusqlite::Result<()> {
        while let Some(row) = rows.next()? {
            if !self.add(row, columns)? {
                break;
            }
        }
        Ok(())
    }

    /// Adds the next row if the filter includes it. Returns whether the page takes further rows.
    fn add(&mut self, row: &Row<'_>, columns: &TaskInfoColumns) -> rusqlite::Result<bool> {
        if self.tasks.len() >= self.query.limit || self.read >= MAX_READ {
            self.is_full = true;
            return Ok(false);
        }
        if self.is_too_old(row, columns) {
            return Ok(false);
        }
        self.read += 1;
        self.last = row.get(columns.id)?;
        if may_be_included(&self.query.filter, row, columns)
            // An unreadable row was written by another program.
            && let Ok(task) = record::info(row, columns)
            && self.query.filter.includes(&task)
        {
            self.tasks.push(task);
        }
        Ok(true)
    }

    /// Whether this task and all older ones were created before the requested time.
    fn is_too_old(&self, row: &Row<'_>, columns: &TaskInfoColumns) -> bool {
        let since = self.query.filter.created_since.map(|since| since.saturating_sub(SLACK));
        since.is_some_and(|since| rows::time(row, columns.created_at).is_ok_and(|created_at| created_at < since))
    }

    fn end(self) -> TaskPage {
        let next = self.is_full.then(|| TaskCursor(self.last.to_string()));
        TaskPage { tasks: self.tasks, next }
    }
}

/// Whether the filter may include a row, by its cheap columns.
fn may_be_included(filter: &TaskFilter, row: &Row<'_>, columns: &TaskInfoColumns) -> bool {
    let text = |column: usize| row.get_ref(column).ok().and_then(|value| value.as_str().ok()).unwrap_or_default();
    (filter.states.is_empty() || filter.states.iter().any(|state| state.as_str() == text(columns.state)))
        && (filter.types.is_empty()
            || filter.types.iter().any(|task_type| task_type.as_str() == text(columns.task_type)))
        && filter.within.as_ref().is_none_or(|all| !all.is_empty())
}
