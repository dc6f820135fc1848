//! Notifications after a commit, and the names they use.
//!
//! Polling workers are notified under the name of their type's queue, as are receivers of that queue in this schema.
//! The enqueuer and the sender of the outbox are notified under a name of their own.

use std::collections::BTreeSet;
use std::time::Instant;

use postrider_core::task::{Post, TaskMode, TaskNotice, TaskRoutes, TaskType};
use postrider_core::{MessagingError, QueueName, WakeUps};

use super::{PostgresTasks, Tasks};
use crate::options::WakeUpMode;

/// The names to notify.
#[derive(Debug, Default)]
pub(super) struct Notices {
    names: BTreeSet<QueueName>,
}

impl Notices {
    pub(super) fn names(&self) -> impl Iterator<Item = &QueueName> {
        self.names.iter()
    }
}

impl Tasks {
    /// Returns the queue of a type; `None` if the type is invalid: another program wrote it, and no worker waits for
    /// it.
    fn queue(&self, task_type: &str) -> Option<QueueName> {
        self.routes.queue(&TaskType::new(task_type).ok()?).ok()
    }

    /// Notes a task that waits to be claimed, or to be enqueued.
    pub(super) fn note_pending(&self, notices: &mut Notices, task_type: &str) {
        match self.routes.mode {
            TaskMode::Polling => notices.names.extend(self.queue(task_type)),
            TaskMode::Queue => self.note_to_send(notices),
        }
    }

    /// Notes a task that went back; where queues deliver tasks, with its message.
    pub(super) fn note_offered(&self, notices: &mut Notices, task_type: &str) {
        match (self.routes.mode, self.routes.post) {
            (TaskMode::Queue, Post::Outbox) => self.note_to_send(notices),
            (TaskMode::Polling, _) | (TaskMode::Queue, Post::Here) => notices.names.extend(self.queue(task_type)),
        }
    }

    /// Notes a message that was sent to the queue of a type, or is in the outbox.
    pub(super) fn note_sent(&self, notices: &mut Notices, task_type: &str) {
        match self.routes.post {
            Post::Here => notices.names.extend(self.queue(task_type)),
            Post::Outbox => self.note_to_send(notices),
        }
    }

    /// Notes a task's death.
    pub(super) fn note_death(&self, notices: &mut Notices) {
        match (&self.routes.dead_events, self.routes.post) {
            (None, _) => {}
            (Some(queue), Post::Here) => drop(notices.names.insert(queue.clone())),
            (Some(_), Post::Outbox) => self.note_to_send(notices),
        }
    }

    fn note_to_send(&self, notices: &mut Notices) {
        notices.names.insert(TaskRoutes::to_send_notice());
    }

    /// Wakes waiting workers, here and in other processes, after a transaction that began at `began`.
    pub(super) fn notify(&self, notices: &Notices, began: Instant) {
        if !notices.names.is_empty() {
            self.shared.touch(&notices.names, began);
        }
    }
}

impl PostgresTasks {
    /// Returns a stream of hints. In `PollOnly` mode it also has one every poll interval.
    pub(super) fn hints(&self, notice: &TaskNotice) -> Result<WakeUps, MessagingError> {
        let names = match notice {
            TaskNotice::Claimable(types) => {
                types.iter().map(|task_type| self.tasks.routes.queue(task_type)).collect::<Result<Vec<_>, _>>()?
            }
            TaskNotice::ToSend => vec![TaskRoutes::to_send_notice()],
        };
        let options = &self.tasks.shared.options;
        let pause = (options.wake_up == WakeUpMode::PollOnly).then_some(options.poll_interval);
        Ok(postrider_sql::hints(self.provider.store(), &names, pause, self.provider.closing()))
    }
}
