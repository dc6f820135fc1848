//! Ends attempts and extends their leases. Nothing happens without the lease token of the claim.
//!
//! An expired lease still counts until the reaper has returned it: the work is done, and refusing its end would only
//! repeat it.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::Timestamp;
use postrider_core::task::{
    AttemptOutcome, DeadReason, Finish, Heartbeat, TaskId, TaskMode, TaskOutcome, TaskStanding, TaskState,
};
use rusqlite::Connection;

use super::record::{self, TaskRow};
use super::step::TaskStep;
use super::task_messages::kept;
use crate::rows::{self, Columns, columns};
use crate::sql;

columns! {
    /// Where the columns of [`Hold`] are.
    TaskHeldColumns { id, state, lease_token, lease_expires_at, has_key }
}

/// The caller that ends an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ender {
    /// The worker that holds the lease.
    Holder,
    /// The reaper, which found that the lease has expired.
    Reaper,
}

/// The state and the lease of a task.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) row: i64,
    pub(super) state: TaskState,
    token: Option<i64>,
    lease_expires_at: Option<Timestamp>,
    has_key: bool,
}

impl Hold {
    /// The standing of a caller with this lease token.
    pub(super) fn standing(&self, token: i64) -> TaskStanding {
        if self.state == TaskState::Processing && self.token == Some(token) {
            TaskStanding::Held
        } else {
            TaskStanding::Lost(Some(self.state))
        }
    }
}

/// The state and the lease of a task; `None` if it does not exist or is unreadable.
pub(super) fn hold(connection: &Connection, id: TaskId) -> rusqlite::Result<Option<Hold>> {
    let mut statement = connection.prepare_cached(sql::TASK_HELD)?;
    let columns = TaskHeldColumns::of(&statement)?;
    read_hold(&mut statement, columns, id)
}

fn read_hold(
    statement: &mut rusqlite::Statement<'_>,
    columns: TaskHeldColumns,
    id: TaskId,
) -> rusqlite::Result<Option<Hold>> {
    let hold = statement.query_row([id.as_uuid().as_bytes()], |row| {
        Ok(Hold {
            row: row.get(columns.id)?,
            state: record::state(row, columns.state)?,
            token: row.get(columns.lease_token)?,
            lease_expires_at: rows::optional_time(row, columns.lease_expires_at)?,
            has_key: row.get(columns.has_key)?,
        })
    });
    record::readable(hold)
}

impl TaskStep<'_, '_> {
    /// Ends an attempt, if its lease is still the current one.
    pub(crate) fn finish(&mut self, finish: &Finish) -> rusqlite::Result<TaskStanding> {
        self.end(finish, Ender::Holder)
    }

    /// Ends an attempt whose lease has expired, unless it was extended meanwhile.
    pub(super) fn reap(&mut self, lost: &Finish) -> rusqlite::Result<TaskStanding> {
        self.end(lost, Ender::Reaper)
    }

    pub(super) fn hold(&mut self, id: TaskId) -> rusqlite::Result<Option<Hold>> {
        let (statement, columns) = self.session.hot.task_held.with_columns(self.session.connection, sql::TASK_HELD)?;
        read_hold(statement, columns, id)
    }

    fn end(&mut self, finish: &Finish, ender: Ender) -> rusqlite::Result<TaskStanding> {
        let Finish { lease, outcome } = finish;
        let Some(hold) = self.hold(lease.id)? else { return Ok(TaskStanding::Lost(None)) };
        if let lost @ TaskStanding::Lost(_) = hold.standing(lease.token) {
            return Ok(lost);
        }
        let has_run_out = hold.lease_expires_at.is_none_or(|end| end <= self.now());
        if ender == Ender::Reaper && !has_run_out {
            return Ok(TaskStanding::Lost(Some(hold.state)));
        }
        let task = match outcome {
            TaskOutcome::Succeeded { .. } if !hold.has_key => None,
            _ => self.task_row(hold.row)?,
        };
        match (outcome, task) {
            (TaskOutcome::Succeeded { result }, task) => self.succeed(&hold, task.as_ref(), result.as_ref())?,
            (_, None) => return Ok(TaskStanding::Lost(None)),
            // The store counts the attempts: a worker may not know how many there are.
            (TaskOutcome::Retry { error, .. }, Some(task)) if task.attempt_count >= task.max_attempts => {
                self.note_attempt(&task, attempt_outcome(ender), Some(&kept(error)))?;
                self.die(&task, spent(ender), &kept(error))?;
                return Ok(TaskStanding::Spent);
            }
            (TaskOutcome::Retry { after, error }, Some(task)) => {
                self.note_attempt(&task, attempt_outcome(ender), Some(&kept(error)))?;
                self.retry(&task, *after, &kept(error))?;
            }
            (TaskOutcome::Dead { reason, error }, Some(task)) => {
                self.note_attempt(&task, attempt_outcome(ender), Some(&kept(error)))?;
                self.die(&task, *reason, &kept(error))?;
            }
            (TaskOutcome::Released, Some(task)) => self.release(&task)?,
        }
        Ok(TaskStanding::Held)
    }

    fn succeed(&mut self, hold: &Hold, task: Option<&TaskRow>, result: Option<&Bytes>) -> rusqlite::Result<()> {
        let now = self.now().as_micros();
        let statement = self.session.hot.task_succeed.get(self.session.connection, sql::TASK_SUCCEED)?;
        statement.execute((hold.row, now, result.map(AsRef::<[u8]>::as_ref)))?;
        match task {
            Some(task) => self.free_key(task),
            None => Ok(()),
        }
    }

    /// Makes a task due again for a retry. In queue mode its message is sent too.
    fn retry(&mut self, task: &TaskRow, after: Duration, error: &str) -> rusqlite::Result<()> {
        let due = self.now().saturating_add(after);
        let sent_at = self.sent_at();
        let mut statement = self.session.connection.prepare_cached(sql::TASK_RETRY)?;
        statement.execute((task.row, due.as_micros(), error, sent_at.map(Timestamp::as_micros)))?;
        self.offer(task, due)
    }

    /// Undoes a claim.
    fn release(&mut self, task: &TaskRow) -> rusqlite::Result<()> {
        let (now, sent_at) = (self.now(), self.sent_at());
        // Its due time stays, which keeps its order among the other tasks.
        let state = if sent_at.is_some() { TaskState::Enqueued } else { TaskState::Pending };
        let mut statement = self.session.connection.prepare_cached(sql::TASK_RELEASE)?;
        statement.execute((task.row, state.as_str(), sent_at.map(Timestamp::as_micros)))?;
        self.offer(task, now)
    }

    /// The time at which a returned task is enqueued; `None` in polling mode.
    fn sent_at(&self) -> Option<Timestamp> {
        (self.routes.mode == TaskMode::Queue).then(|| self.now())
    }

    /// Wakes workers for a returned task, or sends its message.
    fn offer(&mut self, task: &TaskRow, due: Timestamp) -> rusqlite::Result<()> {
        match self.routes.mode {
            TaskMode::Polling => {
                self.wake_for_task(&task.task_type, due);
                Ok(())
            }
            TaskMode::Queue => self.send_task(task.id, &task.task_type, task.priority, due),
        }
    }

    /// Ends a task as dead, sends its event, and unblocks the next task of its key.
    pub(super) fn die(&mut self, task: &TaskRow, reason: DeadReason, error: &str) -> rusqlite::Result<()> {
        let mut statement = self.session.connection.prepare_cached(sql::TASK_DIE)?;
        statement.execute((task.row, self.session.now.as_micros(), reason.as_str(), error))?;
        self.send_dead_event(task, reason, error)?;
        self.free_key(task)
    }

    pub(super) fn free_key(&mut self, task: &TaskRow) -> rusqlite::Result<()> {
        match &task.ordering_key {
            Some(key) => self.promote_task(&task.task_type, key),
            None => Ok(()),
        }
    }

    /// Records how an attempt ended that did not succeed.
    pub(super) fn note_attempt(
        &mut self,
        task: &TaskRow,
        outcome: AttemptOutcome,
        error: Option<&str>,
    ) -> rusqlite::Result<()> {
        let now = self.now();
        let mut statement = self.session.connection.prepare_cached(sql::TASK_NOTE_ATTEMPT)?;
        statement.execute((
            task.row,
            task.replay_count,
            task.attempt_count,
            task.worker.as_deref().unwrap_or_default(),
            task.started_at.unwrap_or(now).as_micros(),
            now.as_micros(),
            outcome.as_str(),
            error,
        ))?;
        Ok(())
    }

    /// The columns that a transition needs; `None` if the row is unreadable.
    pub(super) fn task_row(&mut self, row: i64) -> rusqlite::Result<Option<TaskRow>> {
        let mut statement = self.session.connection.prepare_cached(sql::TASK_ROW)?;
        record::readable(statement.query_row([row], |found| TaskRow::read(found, row)))
    }

    /// Extends a lease, and stores the reported progress.
    pub(super) fn heartbeat(&mut self, heartbeat: &Heartbeat, lease: Duration) -> rusqlite::Result<TaskStanding> {
        let Heartbeat { lease: held, progress } = heartbeat;
        let until = self.now().saturating_add(lease).as_micros();
        let connection = self.session.connection;
        let id = held.id.as_uuid().as_bytes();
        let renewed = match progress {
            None => connection.prepare_cached(sql::TASK_HEARTBEAT)?.execute((id, held.token, until))?,
            Some(progress) => connection.prepare_cached(sql::TASK_PROGRESS)?.execute((
                id,
                held.token,
                until,
                progress.fraction,
                progress.text.as_deref(),
            ))?,
        };
        if renewed > 0 {
            return Ok(TaskStanding::Held);
        }
        Ok(TaskStanding::Lost(self.hold(held.id)?.map(|hold| hold.state)))
    }
}

/// Why a task dies when its last attempt fails.
fn spent(ender: Ender) -> DeadReason {
    match ender {
        Ender::Holder => DeadReason::MaxAttempts,
        Ender::Reaper => DeadReason::LeaseLost,
    }
}

fn attempt_outcome(ender: Ender) -> AttemptOutcome {
    match ender {
        Ender::Holder => AttemptOutcome::Failed,
        Ender::Reaper => AttemptOutcome::LeaseLost,
    }
}
