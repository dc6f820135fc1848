//! Operator commands on tasks: cancel, run now, replay, edit the payload.

use postrider_core::MessagingError;
use postrider_core::task::{AttemptOutcome, TaskId, TaskState};

use super::finish::Hold;
use super::keys::KeyPosition;
use super::record::TaskRow;
use super::step::TaskStep;
use crate::error::Failure;
use crate::rows;
use crate::sql;

fn conflict(id: TaskId, hold: &Hold, operation: &'static str) -> Failure {
    MessagingError::TaskConflict { id, state: hold.state, operation }.into()
}

impl TaskStep<'_, '_> {
    fn known(&mut self, id: TaskId) -> Result<Hold, Failure> {
        self.hold(id)?.ok_or_else(|| MessagingError::TaskNotFound { id }.into())
    }

    fn known_task(&mut self, id: TaskId, hold: &Hold) -> Result<TaskRow, Failure> {
        self.task_row(hold.row)?.ok_or_else(|| MessagingError::TaskNotFound { id }.into())
    }

    /// Cancels a task. Returns the state that it left.
    pub(super) fn cancel(&mut self, id: TaskId) -> Result<TaskState, Failure> {
        let hold = self.known(id)?;
        if hold.state.is_terminal() {
            return Err(conflict(id, &hold, "canceled"));
        }
        let task = self.known_task(id, &hold)?;
        if hold.state == TaskState::Processing {
            self.note_attempt(&task, AttemptOutcome::Canceled, None)?;
        }
        let mut statement = self.session.connection.prepare_cached(sql::TASK_CANCEL)?;
        statement.execute((hold.row, self.session.now.as_micros()))?;
        self.free_key(&task)?;
        Ok(hold.state)
    }

    /// Makes a waiting task due now. The message that was sent for its later time then finds it claimable or claimed.
    pub(super) fn run_now(&mut self, id: TaskId) -> Result<(), Failure> {
        let hold = self.known(id)?;
        if !matches!(hold.state, TaskState::Pending | TaskState::Enqueued) {
            return Err(conflict(id, &hold, "run now"));
        }
        let connection = self.session.connection;
        let now = self.now();
        let due =
            connection.prepare_cached(sql::TASK_SCHEDULED_FOR)?.query_row([hold.row], |row| rows::time(row, 0))?;
        if due > now {
            let task = self.known_task(id, &hold)?;
            connection.prepare_cached(sql::TASK_RUN_NOW)?.execute((hold.row, now.as_micros()))?;
            self.wake_for_task(&task.task_type, now);
        }
        Ok(())
    }

    /// Makes a dead task runnable again, behind every living task of its key.
    pub(super) fn replay(&mut self, id: TaskId) -> Result<(), Failure> {
        let hold = self.known(id)?;
        if hold.state != TaskState::Dead {
            return Err(conflict(id, &hold, "replayed"));
        }
        let task = self.known_task(id, &hold)?;
        let key = match &task.ordering_key {
            Some(key) => self.tail(&task.task_type, key)?,
            None => KeyPosition::NONE,
        };
        let now = self.now();
        let mut statement = self.session.connection.prepare_cached(sql::TASK_REPLAY)?;
        statement.execute((hold.row, now.as_micros(), key.is_blocked, key.position))?;
        if !key.is_blocked {
            self.wake_for_task(&task.task_type, now);
        }
        Ok(())
    }

    /// Replaces the payload of a dead task and keeps the old one.
    pub(super) fn edit_payload(&mut self, id: TaskId, payload: &[u8]) -> Result<u32, Failure> {
        let hold = self.known(id)?;
        if hold.state != TaskState::Dead {
            return Err(conflict(id, &hold, "edited"));
        }
        let task = self.known_task(id, &hold)?;
        let (connection, now) = (self.session.connection, self.now().as_micros());
        connection.prepare_cached(sql::TASK_KEEP_REVISION)?.execute((hold.row, now))?;
        connection.prepare_cached(sql::TASK_EDIT_PAYLOAD)?.execute((hold.row, payload))?;
        Ok(task.revision.saturating_add(1))
    }
}
