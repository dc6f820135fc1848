//! Tasks created inside a transaction of the caller on the same database.
//!
//! The transaction may stay open for any time. A task with an ordering key is created blocked, and the next claim after
//! the commit promotes it; nothing waits for the key meanwhile.

use postgres_types::ToSql;
use postrider_core::MessagingError;
use postrider_core::task::{Created, NewTask, TaskMode, TaskRoutes};
use tokio_postgres::{Row, Transaction};

use super::PostgresTasks;
use super::holders::id_is_taken;
use super::rows::{state, strategy_column, task_id, when_columns};
use crate::in_transaction::inside;

impl PostgresTasks {
    /// Creates a task inside the caller's transaction: it exists if and only if the transaction commits.
    ///
    /// The rules of every creation hold. The transaction may stay open for any time: the next claim after the commit
    /// promotes a task with an ordering key. Only a creation with the same *idempotency* key waits for it. An error
    /// leaves the transaction as it was before the call; the caller commits it or rolls it back.
    pub async fn create_in(
        &self,
        transaction: &mut Transaction<'_>,
        task: &NewTask,
    ) -> Result<Created, MessagingError> {
        let tasks = &self.tasks;
        tasks.check(task)?;
        let (scheduled_for, delay) = when_columns(task.scheduled_for);
        let (deadline, lifetime) = task.deadline.map_or((None, None), when_columns);
        let strategy = strategy_column(task.retry_strategy.as_ref())?;
        let (task_type, payload) = (task.task_type.as_str(), &*task.payload);
        let (priority, max_attempts) = (i32::from(task.priority.get()), i64::from(task.attempts().get()));
        let ordering_key = task.ordering_key.as_ref().map(|key| key.as_str());
        let idempotency_key = task.idempotency_key.as_ref().map(|key| key.as_str());
        let notice = match tasks.routes.mode {
            TaskMode::Polling => tasks.routes.queue(&task.task_type)?,
            TaskMode::Queue => TaskRoutes::to_send_notice(),
        };
        let notices = vec![notice.as_str()];
        let parameters: [&(dyn ToSql + Sync); 15] = [
            &task_type,
            &payload,
            &scheduled_for,
            &delay,
            &priority,
            &max_attempts,
            &ordering_key,
            &idempotency_key,
            &strategy,
            &deadline,
            &lifetime,
            &task.tags,
            &task.schedule,
            task.id.as_uuid(),
            &notices,
        ];
        let found = inside("create a task", transaction, &tasks.sql().task_create_in, &parameters).await?;
        let created = |row: &Row| {
            row.get::<_, Option<&str>>("state")?;
            Some(Created { id: task_id(row, "id"), is_new: row.get("is_new"), state: state(row, "state") })
        };
        found.first().and_then(created).ok_or_else(|| id_is_taken(task.id))
    }
}
