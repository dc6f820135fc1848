//! Where a task is made.

use postrider_core::MessagingError;
use postrider_core::task::{Created, NewTask, TaskId, TaskState};
use rusqlite::OptionalExtension;

use super::keys::Place;
use super::record::{self, tags_column};
use super::step::TaskStep;
use crate::error::Failure;
use crate::sql;

impl TaskStep<'_, '_> {
    /// Makes a task, or answers the one that has its idempotency key. What is refused has written nothing.
    pub(crate) fn create(&mut self, task: &NewTask) -> Result<Created, Failure> {
        task.check(self.session.rules.capabilities.limits.max_body_bytes)?;
        self.session.require_room(task.payload.len())?;
        self.make(task)
    }

    /// The same for a task that was checked, and that there is room for.
    pub(super) fn make(&mut self, task: &NewTask) -> Result<Created, Failure> {
        self.queue(&task.task_type)?;
        let now = self.now();
        let place = match &task.ordering_key {
            Some(key) => self.tail(&task.task_type, key.as_str())?,
            None => Place::FREE,
        };
        let due = task.scheduled_for.resolve(now);
        let retry_strategy = task.retry_strategy.as_ref().map(record::retry_strategy_column).transpose()?;
        let statement = self.session.hot.task_create.get(self.session.connection, sql::TASK_CREATE)?;
        let made = statement.execute(rusqlite::params![
            task.id.as_uuid().as_bytes(),
            task.task_type.as_str(),
            task.priority.get(),
            place.is_blocked,
            due.as_micros(),
            task.attempts().get(),
            now.as_micros(),
            task.deadline.map(|deadline| deadline.resolve(now).as_micros()),
            task.ordering_key.as_ref().map(|key| key.as_str()),
            place.position,
            task.idempotency_key.as_ref().map(|key| key.as_str()),
            retry_strategy,
            tags_column(&task.tags),
            task.schedule,
            task.payload.as_ref(),
        ])?;
        if made == 0 {
            return self.holder(task);
        }
        if !place.is_blocked {
            self.tell_of_task(&task.task_type, due);
        }
        Ok(Created { id: task.id, is_new: true, state: TaskState::Pending })
    }

    /// Why a task was not made: its idempotency key is taken, or its id.
    fn holder(&mut self, task: &NewTask) -> Result<Created, Failure> {
        if let Some(key) = &task.idempotency_key {
            let mut statement = self.session.connection.prepare_cached(sql::TASK_HOLDER)?;
            let holder = statement.query_row((task.task_type.as_str(), key.as_str()), |row| {
                Ok(Created { id: record::task_id(row, 0)?, is_new: false, state: record::state(row, 1)? })
            });
            if let Some(created) = holder.optional()? {
                return Ok(created);
            }
        }
        Err(id_is_taken(task.id).into())
    }
}

fn id_is_taken(id: TaskId) -> MessagingError {
    MessagingError::invalid(
        "task id",
        format!("there is a task {id} already; make a new id, or use an idempotency key to make a task once"),
    )
}
