//! Sends tasks: the enqueuer of due tasks, the relay of the outbox, and the search for lost messages.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_core::task::{OutboxRow, Stranded, TaskNotice, TaskStore};
use postrider_core::{
    Deadline, Feature, Message, MessagingError, MessagingService, Priority, QueueAdmin, QueueName, Support,
};

use crate::keeper::{Chore, Pause};

/// Messages of the outbox that are sent in one round.
const MAX_RELAYED: usize = 500;

/// Lease of a relay on messages of the outbox. A send that takes longer may be repeated by another.
const RELAY_LEASE: Duration = Duration::from_secs(30);

/// Upper bound of tasks of a type that are sent again in one round.
const MAX_RESENT: usize = 1000;

/// Enqueues due PENDING tasks: the transaction that makes them ENQUEUED also writes their messages.
#[derive(Debug)]
pub(crate) struct Enqueue<S> {
    pub(crate) store: S,
    pub(crate) batch: usize,
}

impl<S: TaskStore> Chore for Enqueue<S> {
    const NAME: &'static str = "enqueue due tasks";

    async fn run(&mut self) -> Result<Pause, MessagingError> {
        let enqueued = self.store.enqueue_due(self.batch, Deadline::default()).await?;
        Ok(match enqueued.count {
            count if count >= self.batch => Pause::None,
            _ => Pause::Until(enqueued.next_due),
        })
    }

    fn notice(&self) -> Option<TaskNotice> {
        Some(TaskNotice::ToSend)
    }
}

/// Sends the messages of the outbox until each is confirmed.
#[derive(Debug)]
pub(crate) struct Relay<S, P> {
    pub(crate) store: S,
    pub(crate) provider: P,
}

impl<S: TaskStore, P: MessagingService> Chore for Relay<S, P> {
    const NAME: &'static str = "send the outbox";

    async fn run(&mut self) -> Result<Pause, MessagingError> {
        let batch = self.store.take_outbox(MAX_RELAYED, RELAY_LEASE, Deadline::default()).await?;
        let is_full = batch.rows.len() >= MAX_RELAYED;
        let mut by_queue: BTreeMap<QueueName, Vec<OutboxRow>> = BTreeMap::new();
        for row in batch.rows {
            by_queue.entry(row.queue.clone()).or_default().push(row);
        }
        let (mut failed, mut is_any_sent) = (None, false);
        for (queue, rows) in by_queue {
            match self.send(&queue, rows).await {
                Ok(()) => is_any_sent = true,
                // Other queues may still accept messages.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            // The failed messages stay leased for a while; those behind them need not wait.
            Some(error) if is_full && is_any_sent => {
                tracing::warn!(%error, "some messages of the outbox could not be sent; retrying them");
                Ok(Pause::None)
            }
            Some(error) => Err(error),
            None if is_full => Ok(Pause::None),
            None => Ok(Pause::Until(batch.next_due)),
        }
    }

    fn notice(&self) -> Option<TaskNotice> {
        Some(TaskNotice::ToSend)
    }
}

impl<S: TaskStore, P: MessagingService> Relay<S, P> {
    /// Sends messages of one queue. Unconfirmed messages stay in the outbox and are sent again when their lease ends.
    async fn send(&self, queue: &QueueName, rows: Vec<OutboxRow>) -> Result<(), MessagingError> {
        let names: Vec<(i64, i64)> = rows.iter().map(|row| (row.id, row.token)).collect();
        let messages = rows.into_iter().map(|row| self.sendable(row.message)).collect();
        let deadline = Deadline::after(RELAY_LEASE / 2);
        let results = self.provider.send_batch(queue, messages, deadline).await?;
        let (mut sent, mut failed) = (Vec::with_capacity(names.len()), None);
        for (name, result) in names.into_iter().zip(results) {
            match result {
                Ok(_) => sent.push(name),
                Err(error) => failed = Some(error),
            }
        }
        if !sent.is_empty() {
            self.store.outbox_sent(&sent, Deadline::default()).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// The message as the provider accepts it. Without priorities at the provider, the store still has the task's.
    fn sendable(&self, message: Message) -> Message {
        match self.provider.capabilities().support(Feature::Priority) {
            Support::Refused { .. } => message.priority(Priority::default()),
            Support::Native | Support::Emulated { .. } => message,
        }
    }
}

/// Finds ENQUEUED tasks whose messages were lost, and sends those again.
///
/// A task that was enqueued long ago need not have lost its message: a million may be before it. So the enqueued tasks
/// of the store are counted against the queue's messages, and only the difference is sent again, the longest due first.
/// If one of these was not lost, its second message finds nothing to do.
#[derive(Debug)]
pub(crate) struct Sweep<S, P> {
    pub(crate) store: S,
    pub(crate) provider: P,
    pub(crate) grace: Duration,
}

impl<S: TaskStore, P: MessagingService + QueueAdmin> Chore for Sweep<S, P> {
    const NAME: &'static str = "look for lost messages of tasks";

    async fn run(&mut self) -> Result<Pause, MessagingError> {
        let mut failed = None;
        for stranded in self.store.stranded(self.grace, Deadline::default()).await? {
            // An unreachable queue must not stop the other types.
            failed = self.sweep(&stranded).await.err().or(failed);
        }
        failed.map_or(Ok(Pause::For(self.grace / 2)), Err)
    }
}

impl<S: TaskStore, P: MessagingService + QueueAdmin> Sweep<S, P> {
    async fn sweep(&self, stranded: &Stranded) -> Result<(), MessagingError> {
        let queue = self.store.routes().queue(&stranded.task_type)?;
        let lost = self.lost(stranded, &queue).await?;
        if lost > 0 {
            let limit = lost.min(MAX_RESENT);
            let resent = self.store.resend(&stranded.task_type, limit, self.grace, Deadline::default()).await?;
            if resent > 0 {
                tracing::warn!(%queue, resent, "messages of tasks were lost, and sent again");
            }
        }
        Ok(())
    }

    /// The number of missing messages.
    async fn lost(&self, stranded: &Stranded, queue: &QueueName) -> Result<usize, MessagingError> {
        let stats = self.provider.queue_stats(queue, Deadline::default()).await?;
        // Messages of running tasks are in flight too, but belong to no enqueued task.
        let in_flight = stats.in_flight.value().unwrap_or(0).saturating_sub(stranded.processing);
        let waiting = stats.ready.value().unwrap_or(0) + stats.delayed.value().unwrap_or(0) + in_flight;
        let lost = stranded.enqueued.saturating_sub(waiting + stranded.in_outbox);
        Ok(usize::try_from(lost).unwrap_or(usize::MAX))
    }
}
