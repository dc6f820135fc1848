//! What people ask of tasks: to be called off, to run now, to be brought back, to have another payload.

use postrider_core::MessagingError;
use postrider_core::task::{AttemptOutcome, TaskId, TaskState};

use super::finish::Hold;
use super::keys::Place;
use super::record::Life;
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

    fn known_life(&mut self, id: TaskId, hold: &Hold) -> Result<Life, Failure> {
        self.life(hold.row)?.ok_or_else(|| MessagingError::TaskNotFound { id }.into())
    }

    /// Calls a task off. Answers the state that it left.
    pub(super) fn cancel(&mut self, id: TaskId) -> Result<TaskState, Failure> {
        let hold = self.known(id)?;
        if hold.state.is_terminal() {
            return Err(conflict(id, &hold, "canceled"));
        }
        let life = self.known_life(id, &hold)?;
        if hold.state == TaskState::Processing {
            self.note_attempt(&life, AttemptOutcome::Canceled, None)?;
        }
        let mut statement = self.session.connection.prepare_cached(sql::TASK_CANCEL)?;
        statement.execute((hold.row, self.session.now.as_micros()))?;
        self.free_key(&life)?;
        Ok(hold.state)
    }

    /// Makes a task due now that waits for its time. A message that it was sent with finds it, or nothing to do.
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
            let life = self.known_life(id, &hold)?;
            connection.prepare_cached(sql::TASK_RUN_NOW)?.execute((hold.row, now.as_micros()))?;
            self.tell_of_task(&life.task_type, now);
        }
        Ok(())
    }

    /// Brings a dead task back, behind everybody of its key.
    pub(super) fn replay(&mut self, id: TaskId) -> Result<(), Failure> {
        let hold = self.known(id)?;
        if hold.state != TaskState::Dead {
            return Err(conflict(id, &hold, "replayed"));
        }
        let life = self.known_life(id, &hold)?;
        let place = match &life.ordering_key {
            Some(key) => self.tail(&life.task_type, key)?,
            None => Place::FREE,
        };
        let now = self.now();
        let mut statement = self.session.connection.prepare_cached(sql::TASK_REPLAY)?;
        statement.execute((hold.row, now.as_micros(), place.is_blocked, place.position))?;
        if !place.is_blocked {
            self.tell_of_task(&life.task_type, now);
        }
        Ok(())
    }

    /// Gives a dead task another payload and keeps the one before.
    pub(super) fn edit_payload(&mut self, id: TaskId, payload: &[u8]) -> Result<u32, Failure> {
        let hold = self.known(id)?;
        if hold.state != TaskState::Dead {
            return Err(conflict(id, &hold, "edited"));
        }
        let life = self.known_life(id, &hold)?;
        let (connection, now) = (self.session.connection, self.now().as_micros());
        connection.prepare_cached(sql::TASK_KEEP_REVISION)?.execute((hold.row, now))?;
        connection.prepare_cached(sql::TASK_EDIT_PAYLOAD)?.execute((hold.row, payload))?;
        Ok(life.revision.saturating_add(1))
    }
}
