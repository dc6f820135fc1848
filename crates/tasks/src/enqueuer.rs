//! What sends tasks on their way: the due-task enqueuer, the relay of the outbox, and the search for lost messages.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_core::task::{OutboxRow, Stranded, TaskNotice, TaskStore};
use postrider_core::{
    Deadline, Feature, Message, MessagingError, MessagingService, Priority, QueueAdmin, QueueName, Support,
};

use crate::keeper::{Rest, Round};

/// So many messages of the outbox are sent at a time.
const MOST_RELAYED: usize = 500;

/// How long a message of the outbox is with one relay. A send that takes longer may be repeated by another.
const RELAY_LEASE: Duration = Duration::from_secs(30);

/// So many tasks are sent again in one round for each type.
const MOST_RESENT: usize = 1000;

/// Sends what is PENDING and due on its way: in the transaction that makes it ENQUEUED, its message is written.
#[derive(Debug)]
pub(crate) struct Enqueue<S> {
    pub(crate) store: S,
    pub(crate) batch: usize,
}

impl<S: TaskStore> Round for Enqueue<S> {
    const NAME: &'static str = "enqueue due tasks";

    async fn round(&mut self) -> Result<Rest, MessagingError> {
        let enqueued = self.store.enqueue_due(self.batch, Deadline::default()).await?;
        Ok(match enqueued.count {
            count if count >= self.batch => Rest::None,
            _ => Rest::Until(enqueued.next_due),
        })
    }

    fn notice(&self) -> Option<TaskNotice> {
        Some(TaskNotice::ToSend)
    }
}

/// Sends what the outbox holds, until each was confirmed.
#[derive(Debug)]
pub(crate) struct Relay<S, P> {
    pub(crate) store: S,
    pub(crate) provider: P,
}

impl<S: TaskStore, P: MessagingService> Round for Relay<S, P> {
    const NAME: &'static str = "send the outbox";

    async fn round(&mut self) -> Result<Rest, MessagingError> {
        let batch = self.store.take_outbox(MOST_RELAYED, RELAY_LEASE, Deadline::default()).await?;
        let is_full = batch.rows.len() >= MOST_RELAYED;
        let mut by_queue: BTreeMap<QueueName, Vec<OutboxRow>> = BTreeMap::new();
        for row in batch.rows {
            by_queue.entry(row.queue.clone()).or_default().push(row);
        }
        let (mut failed, mut is_any_sent) = (None, false);
        for (queue, rows) in by_queue {
            match self.send(&queue, rows).await {
                Ok(()) => is_any_sent = true,
                // Another queue may be well.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            // What failed is leased for a while; those behind it need not wait for it.
            Some(error) if is_full && is_any_sent => {
                tracing::warn!(%error, "some messages of the outbox could not be sent; trying them again");
                Ok(Rest::None)
            }
            Some(error) => Err(error),
            None if is_full => Ok(Rest::None),
            None => Ok(Rest::Until(batch.next_due)),
        }
    }

    fn notice(&self) -> Option<TaskNotice> {
        Some(TaskNotice::ToSend)
    }
}

impl<S: TaskStore, P: MessagingService> Relay<S, P> {
    /// Sends messages of one queue. What was not confirmed stays in the outbox and is sent again when the lease is over.
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

    /// The message as the provider takes it. Where there are no priorities the store still knows the task's.
    fn sendable(&self, message: Message) -> Message {
        match self.provider.capabilities().support(Feature::Priority) {
            Support::Refused { .. } => message.priority(Priority::default()),
            Support::Native | Support::Emulated { .. } => message,
        }
    }
}

/// Looks for tasks that are on their way by the store and whose message is nowhere, and sends those again.
///
/// A task that was enqueued long ago has not lost its message: there may be a million before it. So the store's tasks on
/// their way are counted against the queue's messages, and only as many as there are too few are sent again, the longest
/// due first. If one of these was not lost, its second message finds nothing to do.
#[derive(Debug)]
pub(crate) struct Sweep<S, P> {
    pub(crate) store: S,
    pub(crate) provider: P,
    pub(crate) grace: Duration,
}

impl<S: TaskStore, P: MessagingService + QueueAdmin> Round for Sweep<S, P> {
    const NAME: &'static str = "look for lost messages of tasks";

    async fn round(&mut self) -> Result<Rest, MessagingError> {
        let mut failed = None;
        for stranded in self.store.stranded(self.grace, Deadline::default()).await? {
            // A queue that cannot be asked about holds the other types up for nothing.
            failed = self.sweep(&stranded).await.err().or(failed);
        }
        failed.map_or(Ok(Rest::For(self.grace / 2)), Err)
    }
}

impl<S: TaskStore, P: MessagingService + QueueAdmin> Sweep<S, P> {
    async fn sweep(&self, stranded: &Stranded) -> Result<(), MessagingError> {
        let queue = self.store.routes().queue(&stranded.task_type)?;
        let lost = self.lost(stranded, &queue).await?;
        if lost > 0 {
            let limit = lost.min(MOST_RESENT);
            let resent = self.store.resend(&stranded.task_type, limit, self.grace, Deadline::default()).await?;
            if resent > 0 {
                tracing::warn!(%queue, resent, "messages of tasks were lost, and sent again");
            }
        }
        Ok(())
    }

    /// How many messages are missing.
    async fn lost(&self, stranded: &Stranded, queue: &QueueName) -> Result<usize, MessagingError> {
        let stats = self.provider.queue_stats(queue, Deadline::default()).await?;
        // Messages of tasks that are being worked on are in flight as well; these do not wait for anybody.
        let in_flight = stats.in_flight.value().unwrap_or(0).saturating_sub(stranded.processing);
        let waiting = stats.ready.value().unwrap_or(0) + stats.delayed.value().unwrap_or(0) + in_flight;
        let lost = stranded.enqueued.saturating_sub(waiting + stranded.in_outbox);
        Ok(usize::try_from(lost).unwrap_or(usize::MAX))
    }
}
