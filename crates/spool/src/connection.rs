//! A connection to a spool: runs file operations on blocking threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider_core::coalescer::{BatchFailure, ExtendRow, SendRow, with_same_receipts};
use postrider_core::{MessageId, MessagingError, QueueName, ReceiptHandle, RowResults, Settlement, Timestamp};
use postrider_provider::{Batches, Look, Looked};

use crate::PROVIDER;
use crate::queue::Queue;
use crate::store::Shared;
use crate::work::{self, Claim};

/// A connection to a [`SpoolStore`](crate::SpoolStore). Clones are the same connection.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(crate) shared: Arc<Shared>,
    /// Estimated number of messages that were received and not settled on this connection. Receipts may be settled twice, or
    /// on another connection.
    held: Arc<AtomicUsize>,
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, held: Arc::new(AtomicUsize::new(0)) }
    }

    /// Runs a file operation on a blocking thread.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, MessagingError> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let shared = self.shared.clone();
        match tokio::task::spawn_blocking(move || work(&shared)).await {
            Ok(result) => result,
            // The runtime is shutting down, or the work panicked.
            Err(_) => {
                Err(MessagingError::OutcomeUnknown { operation: "the file operation", ids: Vec::new(), source: None })
            }
        }
    }

    /// Runs a batch. When it does not finish, the outcome is unknown.
    async fn batch<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> RowResults<T> + Send + 'static,
    ) -> Result<RowResults<T>, BatchFailure> {
        let done = self.on_disk(move |shared| Ok(work(shared))).await;
        done.map_err(|_| BatchFailure::Unknown(MessagingError::Closed { provider: PROVIDER }))
    }

    /// Counts received messages.
    pub(crate) fn hand_out(&self, messages: usize) {
        self.held.fetch_add(messages, Ordering::Relaxed);
    }

    fn no_longer_held(&self, fewer: usize) {
        let _ = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| Some(held.saturating_sub(fewer)));
    }

    fn count_settled(&self, settled: &RowResults<()>) {
        let is_over = |row: &&Result<(), MessagingError>| !row.as_ref().is_err_and(MessagingError::is_retryable);
        self.no_longer_held(settled.iter().filter(is_over).count());
    }

    /// Opens these queues, which stay watched while the result lives.
    pub(crate) fn kept_open(&self, queues: &[QueueName]) -> Vec<Arc<Queue>> {
        queues.iter().filter_map(|queue| self.shared.queue(queue).ok()).collect()
    }

    /// Settles, then leases due messages.
    pub(crate) async fn settle_and_claim(&self, look: Look) -> Result<Looked, MessagingError> {
        // A worker that still has messages does not wait for an incomplete file.
        let is_idle = self.held.load(Ordering::Relaxed) == 0;
        let looked = self.on_disk(move |shared| Ok(look_now(shared, look))).await?;
        self.count_settled(&looked.settled);
        self.hand_out(looked.messages.len());
        Ok(Looked { is_imminent: looked.is_imminent && is_idle, ..looked })
    }
}

fn look_now(shared: &Shared, look: Look) -> Looked {
    let Look { settlements, queues, options, patience, deliver, .. } = look;
    let mut looked = Looked { settled: work::settle(shared, &settlements), ..Looked::default() };
    let still_leased = |row: &&Result<(), MessagingError>| {
        row.as_ref().is_err_and(|error| error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. }))
    };
    // A message that is still leased takes a place of the batch.
    let room = options.max.saturating_sub(looked.settled.iter().filter(still_leased).count());
    let mut failed = None;
    for queue in &queues {
        // A closing connection leases nothing more.
        if looked.messages.len() >= room || patience.is_closing() {
            break;
        }
        match work::claim(shared, queue, &options, room - looked.messages.len()) {
            Ok(Claim { messages, next, is_settling, is_cut_short }) => {
                looked.is_imminent |= is_settling;
                looked.is_cut_short |= is_cut_short;
                looked.messages.extend(messages.into_iter().map(|claimed| deliver.message(claimed)));
                looked.next = looked.next.min(next);
            }
            Err(_) if !looked.messages.is_empty() => break,
            Err(error) => failed = Some(error),
        }
    }
    looked.failed = failed.filter(|_| looked.messages.is_empty());
    looked
}

/// Returns the next time after `after` at which a queue should be claimed from.
pub(crate) async fn next_due(connection: &Connection, queue: QueueName, after: Timestamp) -> Timestamp {
    // After a failure the next hint comes from a change of the queue, or the caller polls.
    let next = connection.on_disk(move |shared| work::next_due(shared, &queue, after)).await;
    next.unwrap_or(Timestamp::MAX)
}

impl Batches for Connection {
    async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        let rows = rows.to_vec();
        self.batch(move |shared| work::send(shared, &rows)).await
    }

    async fn settle(&self, rows: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        let rows = rows.to_vec();
        let settled = self.batch(move |shared| work::settle(shared, &rows)).await?;
        self.count_settled(&settled);
        Ok(settled)
    }

    async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<ReceiptHandle>, BatchFailure> {
        let rows = rows.to_vec();
        self.batch(move |shared| with_same_receipts(&rows, work::extend(shared, &rows))).await
    }

    async fn give_up(&self, receipts: Vec<ReceiptHandle>) -> Result<(), MessagingError> {
        self.no_longer_held(receipts.len());
        self.on_disk(move |shared| work::give_up(shared, &receipts)).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_core::{Deadline, MessagingService, QueueAdmin, ReceiveOptions};

    use super::*;
    use crate::{SpoolOptions, SpoolStore};

    #[tokio::test]
    async fn an_empty_receive_has_read_every_file() {
        // More than are dead-lettered under one lock.
        const BAD: u64 = 1_500;
        let folder = tempfile::tempdir().unwrap();
        let options = SpoolOptions { grace_period: Duration::ZERO, ..SpoolOptions::default() };
        let store = SpoolStore::open(folder.path(), options).await.unwrap();
        let provider = store.connect().unwrap();
        let queue = QueueName::new("orders").unwrap();
        provider.ensure_queue(&queue, Deadline::default()).await.unwrap();
        for number in 0..BAD {
            let file = folder.path().join("orders").join("incoming").join(format!("bad-{number:04}.json"));
            std::fs::write(file, "{\"cut\": ").unwrap();
        }
        let received = provider.receive_messages(&queue, &ReceiveOptions::default(), Deadline::default()).await;
        assert_eq!(received.unwrap().len(), 0);
        let stats = provider.queue_stats(&queue, Deadline::default()).await.unwrap();
        assert_eq!((stats.dead.value(), stats.message_count()), (Some(BAD), Some(0)));
    }
}
