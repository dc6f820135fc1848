//! Draining: lease and acknowledge until the queue is empty.

use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postrider_core::{Deadline, MessageId, MessagingService, QueueName, ReceiveOptions, Settlement};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::bench::Progress;
use crate::error::{BenchError, Mismatch};
use crate::load::Load;
use crate::tally::Tally;

/// Lease duration, longer than any workload holds a message.
pub(crate) const LEASE: Duration = Duration::from_secs(300);

/// Time without a message after which a queue counts as empty.
pub(crate) const EMPTY_AFTER: Duration = Duration::from_secs(5);

/// State shared by the workers.
struct Shared {
    /// Locked once a batch, by every worker.
    tally: Mutex<Tally>,
    /// Ends the waits of the workers when the last message was drained.
    complete: watch::Sender<bool>,
    progress: Progress,
}

impl Shared {
    fn drained(&self, ids: &[MessageId]) -> Result<(), Mismatch> {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            tally.drained(*id)?;
        }
        if tally.is_complete() {
            self.complete.send_replace(true);
        }
        drop(tally);
        (self.progress)(ids.len());
        Ok(())
    }

    fn is_complete(&self) -> bool {
        *self.complete.borrow()
    }

    async fn completed(&self) {
        // Cannot fail: the sender is in `self`.
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
    }
}

/// Drains the sent messages and returns the time.
pub(crate) async fn drain<P: MessagingService>(
    provider: &Arc<P>,
    queue: &QueueName,
    load: &Load,
    sent: Vec<MessageId>,
    progress: &Progress,
) -> Result<Duration, BenchError> {
    let tally = Mutex::new(Tally::new(sent)?);
    let shared = Arc::new(Shared { tally, complete: watch::Sender::new(false), progress: progress.clone() });
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..load.workers {
        workers.spawn(work(provider.clone(), queue.clone(), load.batch, shared.clone()));
    }
    let mut end = start;
    while let Some(worker) = workers.join_next().await {
        end = end.max(worker??);
    }
    shared.tally.lock().unwrap_or_else(PoisonError::into_inner).finish()?;
    Ok(end - start)
}

/// Drains until the queue is empty; returns when its last message was acknowledged.
async fn work<P: MessagingService>(
    provider: Arc<P>,
    queue: QueueName,
    batch: usize,
    shared: Arc<Shared>,
) -> Result<Instant, BenchError> {
    let no_wait = ReceiveOptions::batch(batch).visibility(LEASE);
    let waiting = no_wait.clone().wait(EMPTY_AFTER);
    let mut acks: Vec<Settlement> = Vec::new();
    let mut last = Instant::now();
    loop {
        let ids: Vec<_> = acks.iter().map(|ack| ack.receipt.message_id()).collect();
        // No wait, so that an empty queue does not delay the result of the acknowledgements.
        let queues = slice::from_ref(&queue);
        let both = provider.settle_and_receive(acks, queues, &no_wait, Deadline::default()).await?;
        for row in both.settled {
            row?;
        }
        if !ids.is_empty() {
            last = Instant::now();
            shared.drained(&ids)?;
        }
        let mut received = both.received?;
        if received.is_empty() {
            if shared.is_complete() {
                return Ok(last);
            }
            received = tokio::select! {
                received = provider.receive_messages(&queue, &waiting, Deadline::default()) => received?,
                () = shared.completed() => return Ok(last),
            };
            if received.is_empty() {
                // Missing messages are found when all workers have ended.
                return Ok(last);
            }
        }
        acks = received.into_iter().map(Settlement::ack).collect();
    }
}
