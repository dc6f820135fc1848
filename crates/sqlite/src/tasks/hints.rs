//! Hints that there may be something to claim, or to send.

use std::sync::Arc;

use postrider_core::task::{TaskNotice, TaskRoutes};
use postrider_core::{MessagingError, QueueName, WakeUps};

use super::claim::next_claimable;
use super::{SqliteTasks, outbox, upkeep};

impl SqliteTasks {
    /// One for every change that could have made something claimable, or something to send, and one whenever a time comes
    /// at which it becomes so by itself.
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
