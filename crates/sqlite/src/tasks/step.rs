//! One write transaction, seen by the transitions of tasks.

use postrider_core::task::{TaskMode, TaskRoutes, TaskType};
use postrider_core::{MessagingError, QueueName, Timestamp};

use crate::session::Session;

/// A session, and where what it does is told.
pub(crate) struct TaskStep<'s, 'c> {
    pub(super) session: &'s mut Session<'c>,
    pub(super) routes: &'s TaskRoutes,
    /// The queue of the last type that was met: a batch is mostly of one type.
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

    /// After the commit, those who wait are told that a task can be claimed, or sent on its way, at `due`. A type that
    /// makes no queue's name has nobody who waits for it.
    pub(super) fn tell_of_task(&mut self, task_type: &TaskType, due: Timestamp) {
        match self.routes.mode {
            TaskMode::Polling => {
                if let Ok(queue) = self.queue(task_type) {
                    self.session.touch(&queue, due);
                }
            }
            TaskMode::Queue => self.tell_of_sending(due),
        }
    }

    /// After the commit, those who wait are told that something is to be sent at `due`.
    pub(super) fn tell_of_sending(&mut self, due: Timestamp) {
        self.session.touch(&self.to_send, due);
    }
}
