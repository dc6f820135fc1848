//! Creates tasks.

use postrider_core::MessagingError;
use postrider_core::task::{Created, NewTask, TaskId, TaskState};
use rusqlite::OptionalExtension;

use super::keys::KeyPosition;
use super::record::{self, tags_column};
use super::step::TaskStep;
use crate::error::Failure;
use crate::sql;

impl TaskStep<'_, '_> {
    /// Creates a task, or returns the one that has its idempotency key. A refused task writes nothing.
    pub(crate) fn create(&mut self, task: &NewTask) -> Result<Created, Failure> {
        task.check(self.session.rules.capabilities.limits.max_body_bytes)?;
        self.session.require_space(task.payload.len())?;
        self.make(task)
    }

    /// [`Self::create`] for a task that was checked and has its disk space reserved.
    pub(super) fn make(&mut self, task: &NewTask) -> Result<Created, Failure> {
        self.queue(&task.task_type)?;
        let now = self.now();
        let key = match &task.ordering_key {
            Some(key) => self.tail(&task.task_type, key.as_str())?,
            None => KeyPosition::NONE,
        };
        let due = task.scheduled_for.resolve(now);
        let retry_strategy = task.retry_strategy.as_ref().map(record::retry_strategy_column).transpose()?;
        let statement = self.session.hot.task_create.get(self.session.connection, sql::TASK_CREATE)?;
        let created = statement.execute(rusqlite::params![
            task.id.as_uuid().as_bytes(),
            task.task_type.as_str(),
            task.priority.get(),
            key.is_blocked,
            due.as_micros(),
            task.attempts().get(),
            now.as_micros(),
            task.deadline.map(|deadline| deadline.resolve(now).as_micros()),
            task.ordering_key.as_ref().map(|key| key.as_str()),
            key.position,
            task.idempotency_key.as_ref().map(|key| key.as_str()),
            retry_strategy,
            tags_column(&task.tags),
            task.schedule,
            task.payload.as_ref(),
        ])?;
        if created == 0 {
            return self.holder(task);
        }
        if !key.is_blocked {
            self.wake_for_task(&task.task_type, due);
        }
        Ok(Created { id: task.id, is_new: true, state: TaskState::Pending })
    }

    /// The task that has the idempotency key; an error if the id is taken instead.
    fn holder(&mut self, task: &NewTask) -> Result<Created, Failure> {
        if let Some(key) = &task.idempotency_key {
            let mut statement = self.session.connection.prepare_cached(sql::TASK_HOLDER)?;
            let holder = statement.query_row((task.task_type.as_str(), key.as_str()), |row| {
                let (id, state) = (record::task_id(row, "task_id")?, record::state(row, "state")?);
                Ok(Created { id, is_new: false, state })
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
        format!("task {id} already exists; use a new id, or an idempotency key to create a task once"),
    )
}
