//! Where an attempt ends, or goes on: nothing happens without the token of its claim.
//!
//! A lease that has run out still counts as held until somebody has reaped it: the work is done, and to refuse its end
//! would only have it done twice.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::Timestamp;
use postrider_core::task::{
    AttemptOutcome, DeadReason, Finish, Heartbeat, TaskId, TaskMode, TaskOutcome, TaskStanding, TaskState,
};
use rusqlite::Connection;

use super::post::kept;
use super::record::{self, Life};
use super::step::TaskStep;
use crate::rows;
use crate::sql;

/// Who says that an attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ender {
    /// The worker that made it.
    Holder,
    /// Whoever found that its lease has run out.
    Reaper,
}

/// Who has a task.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) row: i64,
    pub(super) state: TaskState,
    token: Option<i64>,
    lease_expires_at: Option<Timestamp>,
    has_key: bool,
}

impl Hold {
    /// What somebody with this token is told.
    pub(super) fn standing(&self, token: i64) -> TaskStanding {
        if self.state == TaskState::Processing && self.token == Some(token) {
            TaskStanding::Held
        } else {
            TaskStanding::Lost(Some(self.state))
        }
    }
}

/// Who has a task; `None` when there is no such task, or none that can be read.
pub(super) fn hold(connection: &Connection, id: TaskId) -> rusqlite::Result<Option<Hold>> {
    read_hold(&mut *connection.prepare_cached(sql::TASK_HELD)?, id)
}

fn read_hold(statement: &mut rusqlite::Statement<'_>, id: TaskId) -> rusqlite::Result<Option<Hold>> {
    let hold = statement.query_row([id.as_uuid().as_bytes()], |row| {
        Ok(Hold {
            row: row.get(0)?,
            state: record::state(row, 1)?,
            token: row.get(2)?,
            lease_expires_at: rows::optional_time(row, 3)?,
            has_key: row.get(4)?,
        })
    });
    record::readable(hold)
}

impl TaskStep<'_, '_> {
    /// Ends an attempt, if it is held.
    pub(crate) fn finish(&mut self, finish: &Finish) -> rusqlite::Result<TaskStanding> {
        self.end(finish, Ender::Holder)
    }

    /// Ends an attempt whose lease has run out, if nobody has renewed it.
    pub(super) fn reap(&mut self, lost: &Finish) -> rusqlite::Result<TaskStanding> {
        self.end(lost, Ender::Reaper)
    }

    pub(super) fn hold(&mut self, id: TaskId) -> rusqlite::Result<Option<Hold>> {
        read_hold(self.session.hot.task_held.get(self.session.connection, sql::TASK_HELD)?, id)
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
        let life = match outcome {
            TaskOutcome::Succeeded { .. } if !hold.has_key => None,
            _ => self.life(hold.row)?,
        };
        match (outcome, life) {
            (TaskOutcome::Succeeded { result }, life) => self.succeed(&hold, life.as_ref(), result.as_ref())?,
            (_, None) => return Ok(TaskStanding::Lost(None)),
            // The store counts, whoever asks: a worker may not know how many attempts there are, or not care.
            (TaskOutcome::Retry { error, .. }, Some(life)) if life.attempt_count >= life.max_attempts => {
                self.note_attempt(&life, attempt_outcome(ender), Some(&kept(error)))?;
                self.die(&life, spent(ender), &kept(error))?;
                return Ok(TaskStanding::Spent);
            }
            (TaskOutcome::Retry { after, error }, Some(life)) => {
                self.note_attempt(&life, attempt_outcome(ender), Some(&kept(error)))?;
                self.retry(&life, *after, &kept(error))?;
            }
            (TaskOutcome::Dead { reason, error }, Some(life)) => {
                self.note_attempt(&life, attempt_outcome(ender), Some(&kept(error)))?;
                self.die(&life, *reason, &kept(error))?;
            }
            (TaskOutcome::Released, Some(life)) => self.release(&life)?,
        }
        Ok(TaskStanding::Held)
    }

    fn succeed(&mut self, hold: &Hold, life: Option<&Life>, result: Option<&Bytes>) -> rusqlite::Result<()> {
        let now = self.now().as_micros();
        let statement = self.session.hot.task_succeed.get(self.session.connection, sql::TASK_SUCCEED)?;
        statement.execute((hold.row, now, result.map(AsRef::<[u8]>::as_ref)))?;
        match life {
            Some(life) => self.free_key(life),
            None => Ok(()),
        }
    }

    /// Back to be tried again. Where queues carry tasks, its message goes with it.
    fn retry(&mut self, life: &Life, after: Duration, error: &str) -> rusqlite::Result<()> {
        let due = self.now().saturating_add(after);
        let sent_at = self.sent_at();
        let mut statement = self.session.connection.prepare_cached(sql::TASK_RETRY)?;
        statement.execute((life.row, due.as_micros(), error, sent_at.map(Timestamp::as_micros)))?;
        self.offer(life, due)
    }

    /// Back as if it had not been claimed.
    fn release(&mut self, life: &Life) -> rusqlite::Result<()> {
        let (now, sent_at) = (self.now(), self.sent_at());
        // It stays due since when it was, which is its place among the others.
        let state = if sent_at.is_some() { TaskState::Enqueued } else { TaskState::Pending };
        let mut statement = self.session.connection.prepare_cached(sql::TASK_RELEASE)?;
        statement.execute((life.row, state.as_str(), sent_at.map(Timestamp::as_micros)))?;
        self.offer(life, now)
    }

    /// When a task that goes back now is sent on its way; `None` where workers look for themselves.
    fn sent_at(&self) -> Option<Timestamp> {
        (self.routes.mode == TaskMode::Queue).then(|| self.now())
    }

    /// Brings a task that has gone back to whoever may claim it.
    fn offer(&mut self, life: &Life, due: Timestamp) -> rusqlite::Result<()> {
        match self.routes.mode {
            TaskMode::Polling => {
                self.tell_of_task(&life.task_type, due);
                Ok(())
            }
            TaskMode::Queue => self.send_task(life.id, &life.task_type, life.priority, due),
        }
    }

    /// The task's life ends: it dies, is told of, and leaves its key to the next.
    pub(super) fn die(&mut self, life: &Life, reason: DeadReason, error: &str) -> rusqlite::Result<()> {
        let mut statement = self.session.connection.prepare_cached(sql::TASK_DIE)?;
        statement.execute((life.row, self.session.now.as_micros(), reason.as_str(), error))?;
        self.tell_of_death(life, reason, error)?;
        self.free_key(life)
    }

    pub(super) fn free_key(&mut self, life: &Life) -> rusqlite::Result<()> {
        match &life.ordering_key {
            Some(key) => self.promote_task(&life.task_type, key),
            None => Ok(()),
        }
    }

    /// Writes down how an attempt ended that did not succeed.
    pub(super) fn note_attempt(
        &mut self,
        life: &Life,
        outcome: AttemptOutcome,
        error: Option<&str>,
    ) -> rusqlite::Result<()> {
        let now = self.now();
        let mut statement = self.session.connection.prepare_cached(sql::TASK_NOTE_ATTEMPT)?;
        statement.execute((
            life.row,
            life.replay_count,
            life.attempt_count,
            life.worker.as_deref().unwrap_or_default(),
            life.started_at.unwrap_or(now).as_micros(),
            now.as_micros(),
            outcome.as_str(),
            error,
        ))?;
        Ok(())
    }

    /// What a row's task has been through; `None` when nobody can read it.
    pub(super) fn life(&mut self, row: i64) -> rusqlite::Result<Option<Life>> {
        let mut statement = self.session.connection.prepare_cached(sql::TASK_LIFE)?;
        record::readable(statement.query_row([row], |found| Life::read(found, row)))
    }

    /// Lets a lease end later, and keeps what is told of progress.
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

/// Why a task dies whose last attempt shall be tried again.
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
