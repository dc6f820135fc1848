//! One write transaction, as the transitions of tasks use it.

use postrider_core::task::{TaskMode, TaskRoutes, TaskType};
use postrider_core::{MessagingError, QueueName, Timestamp};

use crate::session::Session;

/// A session, and the routes of the messages of its transitions.
pub(crate) struct TaskStep<'s, 'c> {
    pub(super) session: &'s mut Session<'c>,
    pub(super) routes: &'s TaskRoutes,
    /// The queue of the last used type: a batch is mostly of one type.
    queue: Option<(TaskType, QueueName)>,
    to_send: QueueName,
}

impl<'s, 'c> TaskStep<'s, 'c> {
    pub(crate) fn new(session: &'s mut Session<'c>, routes: &'s TaskRoutes) -> Self {
        Self { session, routes, queue: None, to_send: TaskRoutes::to_send_notice() }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.session.now
    }

    /// The queue of a type's tasks.
    pub(super) fn queue(&mut self, task_type: &TaskType) -> Result<QueueName, MessagingError> {
        match &self.queue {
            Some((known, queue)) if known == task_type => Ok(queue.clone()),
            _ => {
                let queue = self.routes.queue(task_type)?;
                self.queue = Some((task_type.clone(), queue.clone()));
                Ok(queue)
            }
        }
    }

    /// Wakes workers, or the enqueuer in queue mode, after the commit: a task is due at `due`. No worker can wait for a
    /// type that gives no valid queue name.
    pub(super) fn wake_for_task(&mut self, task_type: &TaskType, due: Timestamp) {
        match self.routes.mode {
            TaskMode::Polling => {
                if let Ok(queue) = self.queue(task_type) {
                    self.session.touch(&queue, due);
                }
            }
            TaskMode::Queue => self.wake_enqueuer(due),
        }
    }

    /// Wakes the enqueuer after the commit: there is something to send at `due`.
    pub(super) fn wake_enqueuer(&mut self, due: Timestamp) {
        self.session.touch(&self.to_send, due);
    }
}
