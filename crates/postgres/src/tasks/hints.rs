//! What is told after a commit, and under which names.
//!
//! A worker that polls hears of tasks under the name of their type's queue, and so does one that waits for messages in
//! that queue, here. What has to be sent on its way by somebody is told under a name of its own.

use std::collections::BTreeSet;
use std::time::Instant;

use postrider_core::task::{Post, TaskMode, TaskNotice, TaskRoutes, TaskType};
use postrider_core::{MessagingError, QueueName, WakeUps};

use super::{PostgresTasks, Tasks};
use crate::options::WakeUpMode;

/// What there is to tell.
#[derive(Debug, Default)]
pub(super) struct News {
    names: BTreeSet<QueueName>,
}

impl News {
    pub(super) fn names(&self) -> impl Iterator<Item = &QueueName> {
        self.names.iter()
    }
}

impl Tasks {
    /// The queue of a type. A name that is none was not written by us, and nobody waits for it.
    fn queue(&self, task_type: &str) -> Option<QueueName> {
        self.routes.queue(&TaskType::new(task_type).ok()?).ok()
    }

    /// A task of the type waits to be claimed, or to be sent on its way.
    pub(super) fn note_pending(&self, news: &mut News, task_type: &str) {
        match self.routes.mode {
            TaskMode::Polling => news.names.extend(self.queue(task_type)),
            TaskMode::Queue => self.note_to_send(news),
        }
    }

    /// A task of the type has gone back; where queues carry tasks, with its message.
    pub(super) fn note_offered(&self, news: &mut News, task_type: &str) {
        match (self.routes.mode, self.routes.post) {
            (TaskMode::Queue, Post::Outbox) => self.note_to_send(news),
            (TaskMode::Polling, _) | (TaskMode::Queue, Post::Here) => news.names.extend(self.queue(task_type)),
        }
    }

    /// A message to the queue of a type was sent, or waits in the outbox.
    pub(super) fn note_sent(&self, news: &mut News, task_type: &str) {
        match self.routes.post {
            Post::Here => news.names.extend(self.queue(task_type)),
            Post::Outbox => self.note_to_send(news),
        }
    }

    /// A task has died.
    pub(super) fn note_death(&self, news: &mut News) {
        match (&self.routes.dead_events, self.routes.post) {
            (None, _) => {}
            (Some(queue), Post::Here) => drop(news.names.insert(queue.clone())),
            (Some(_), Post::Outbox) => self.note_to_send(news),
        }
    }

    fn note_to_send(&self, news: &mut News) {
        news.names.insert(TaskRoutes::to_send_notice());
    }

    /// Tells those who wait, here and in other processes, of a transaction that was begun then and is committed.
    pub(super) fn tell(&self, news: &News, began: Instant) {
        if !news.names.is_empty() {
            self.shared.touch(&news.names, began);
        }
    }
}

impl PostgresTasks {
    /// A stream of hints. Where nobody tells what other processes do, one comes now and then.
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
