//! Hints to claim tasks, or to send them.

use std::sync::Arc;

use postrider_core::task::{TaskNotice, TaskRoutes};
use postrider_core::{MessagingError, QueueName, WakeUps};

use super::claim::next_claimable;
use super::{SqliteTasks, outbox, upkeep};

impl SqliteTasks {
    /// A hint for every change after which there may be something to claim or to send, and whenever a task becomes due.
    pub(super) fn hints(&self, notice: TaskNotice) -> Result<WakeUps, MessagingError> {
        match notice {
            TaskNotice::Claimable(types) => {
                let queues = types.iter().map(|task_type| self.routes.queue(task_type));
                let queues = queues.collect::<Result<Vec<QueueName>, _>>()?;
                let next = move |connection: &_, after| next_claimable(connection, &types, after);
                self.provider.hints(&queues, Arc::new(next))
            }
            TaskNotice::ToSend => {
                let next = |connection: &_, after| {
                    let task = upkeep::next_to_enqueue(connection, after)?;
                    Ok(task.min(outbox::next_due(connection, after)?))
                };
                self.provider.hints(&[TaskRoutes::to_send_notice()], Arc::new(next))
            }
        }
    }
}
