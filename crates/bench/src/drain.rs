//! Draining: lease, do nothing, acknowledge, until everything is gone.

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

/// Longer than any workload takes with what it holds: a lease that runs out would be the workload's own fault.
pub(crate) const LEASE: Duration = Duration::from_secs(300);

/// A queue in which nothing comes for that long is taken to be empty.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What the workers share.
struct Shared {
    /// A lock, because every worker notes what it has drained; it is held once a batch.
    tally: Mutex<Tally>,
    /// Ends the waiting of the others when one has drained the last message.
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
        // The sender is here, so it cannot be gone.
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
    }
}

/// Drains what was sent and answers how long it took.
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
    shared.tally.lock().unwrap_or_else(PoisonError::into_inner).judge()?;
    Ok(end - start)
}

/// Answers when its last message was acknowledged.
async fn work<P: MessagingService>(
    provider: Arc<P>,
    queue: QueueName,
    batch: usize,
    shared: Arc<Shared>,
) -> Result<Instant, BenchError> {
    let at_once = ReceiveOptions::batch(batch).visibility(LEASE);
    let patiently = at_once.clone().wait(PATIENCE);
    let mut acks: Vec<Settlement> = Vec::new();
    let mut last = Instant::now();
    loop {
        let ids: Vec<_> = acks.iter().map(|ack| ack.receipt.message_id()).collect();
        // Without a wait: the acknowledgements must not be kept from their answer by an empty queue.
        let queues = slice::from_ref(&queue);
        let both = provider.settle_and_receive(acks, queues, &at_once, Deadline::default()).await?;
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
                received = provider.receive_messages(&queue, &patiently, Deadline::default()) => received?,
                () = shared.completed() => return Ok(last),
            };
            if received.is_empty() {
                // What is missing is judged when all workers have ended.
                return Ok(last);
            }
        }
        acks = received.into_iter().map(Settlement::ack).collect();
    }
}
