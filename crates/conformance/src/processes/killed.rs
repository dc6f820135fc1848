//! Workers that are killed at any moment: no message is lost or leased twice at a time.
//!
//! Each worker sends, receives and settles, also with ended leases, and keeps its history in a journal until it is
//! killed. Afterwards the queue is drained, and the checker checks all histories together.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postrider_core::{
    Deadline, Disposition, Message, MessagingError, MessagingService, Nack, Priority, Provider, QueueAdmin, QueueName,
    QueuedMessage, ReceiptHandle, ReceiveOptions, Settlement,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::WorkerProcess;
use crate::checker::{CheckOptions, Verdict, check};
use crate::history::{History, merge};
use crate::recorded::Recorded;

/// Length of the workers' leases: short, so that messages of killed workers come back soon.
pub const LEASE: Duration = Duration::from_millis(250);
/// Delivery limit: more than the kills that can hit one message.
pub const LIMIT: u32 = 50;
const QUEUE: &str = "storm";

/// The queue that the workers share.
pub fn shared_queue() -> QueueName {
    QueueName::new(QUEUE).expect("a queue's name")
}

fn soon() -> Deadline {
    Deadline::default()
}

/// Starts workers with `start`, which gets a number and the path of the journal, and kills one after the other, each
/// replaced by the next. Panics when the checker finds anything.
pub async fn kill_workers<P: Provider>(
    provider: P,
    journals: &Path,
    workers: usize,
    kills: u32,
    start: impl Fn(u32, &Path) -> WorkerProcess,
) {
    let seed: u64 = rand::random();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut number = 0;
    let journal = |number: u32| journals.join(format!("{number}.journal"));
    let mut next = || {
        number += 1;
        (number, start(number, &journal(number)))
    };
    let mut running: Vec<_> = (0..workers).map(|_| next()).collect();
    for _ in 0..kills {
        let victim = rng.random_range(0..running.len());
        let (number, victim) = running.swap_remove(victim);
        // It has finished some calls and is somewhere in its next one.
        has_written(&journal(number), rng.random_range(1..10_000)).await;
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..5_000))).await;
        victim.kill().expect("a worker can be killed");
        running.push(next());
    }
    for (_, worker) in running {
        worker.kill().expect("a worker can be killed");
    }
    let journals: Vec<_> = (1..=number).map(journal).collect();
    let verdict = judge(provider, &journals).await;
    assert!(verdict.is_clean(), "seed {seed}: {verdict}");
    let counts = &verdict.counts;
    assert!(counts.acks > 2 * u64::from(kills), "too few acks: {counts:?}");
    assert!(counts.unknown_sends + counts.unknown_acks + counts.unknown_receives > 0, "no call was interrupted");
}

/// Drains the queue and checks all histories.
pub async fn judge<P: Provider>(provider: P, journals: &[PathBuf]) -> Verdict {
    let history = History::new();
    let recorded = Recorded::new(provider, history.clone(), 0);
    let queue = shared_queue();
    drain(&recorded, &queue).await;
    recorded.record_final(std::slice::from_ref(&queue), soon()).await.expect("the final state can be listed");
    let journals = journals.iter().map(|journal| History::read_journal(journal).expect("a journal"));
    let events = merge(journals.chain([history.events()]));
    let mut options = CheckOptions::for_limits(&recorded.capabilities().limits);
    options.tolerance += history.lead();
    check(&events, &options)
}

/// Waits until a journal has `bytes` bytes.
async fn has_written(journal: &Path, bytes: u64) {
    let end = Instant::now() + Duration::from_secs(30);
    while std::fs::metadata(journal).map_or(0, |metadata| metadata.len()) < bytes {
        assert!(Instant::now() < end, "a worker makes no progress");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Acknowledges every message left, including those leased by killed workers.
async fn drain<P: Provider>(provider: &Recorded<P>, queue: &QueueName) {
    let options =
        ReceiveOptions::batch(100).visibility(Duration::from_secs(20)).wait(LEASE * 2).max_receive_count(LIMIT);
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let received = provider.receive_messages(queue, &options, soon()).await.expect("an answer");
        if received.is_empty() {
            let left = provider.queue_stats(queue, soon()).await.expect("an answer").message_count();
            if left == Some(0) {
                return;
            }
            assert!(Instant::now() < end, "messages are stuck: {left:?}");
        }
        let acks = received.into_iter().map(Settlement::ack).collect();
        for row in provider.settle(acks, soon()).await.expect("an answer") {
            row.expect("a row that was carried out");
        }
    }
}

/// The worker's side: sends, receives and settles, also with ended leases, until it is killed.
pub async fn work<P: Provider>(provider: P, journal: &Path, number: u32) {
    let history = History::journaled(journal).expect("a journal");
    let mut worker = Worker {
        provider: Recorded::new(provider, history, number),
        rng: StdRng::seed_from_u64(u64::from(number)),
        queue: shared_queue(),
        held: Vec::new(),
    };
    loop {
        match worker.rng.random_range(0..10) {
            0..3 => worker.send().await,
            3..6 => worker.receive().await,
            _ => worker.settle().await,
        }
    }
}

struct Worker<P> {
    provider: Recorded<P>,
    rng: StdRng,
    queue: QueueName,
    /// Receipts of deliveries, settled or not: some are used again too late.
    held: Vec<ReceiptHandle>,
}

impl<P: Provider> Worker<P> {
    fn message(&mut self) -> Message {
        let mut message = Message::new(self.rng.random::<u64>().to_string());
        if self.rng.random_bool(0.5) {
            message =
                message.ordering_key(format!("key {}", self.rng.random_range(0..10))).expect("a value that is allowed");
        }
        if self.rng.random_bool(0.1) {
            message =
                message.dedup_key(format!("dedup {}", self.rng.random_range(0..20))).expect("a value that is allowed");
        }
        if self.rng.random_bool(0.2) {
            message = message.priority(Priority::new(self.rng.random_range(0..10)).expect("a value that is allowed"));
        }
        if self.rng.random_bool(0.1) {
            message = message.delay(Duration::from_millis(self.rng.random_range(1..100)));
        }
        message
    }

    async fn send(&mut self) {
        let messages: Vec<_> = (0..self.rng.random_range(1..6)).map(|_| self.message()).collect();
        for row in self.provider.send_batch(&self.queue, messages, soon()).await.expect("an answer") {
            row.expect("a row that was carried out");
        }
    }

    async fn receive(&mut self) {
        let max = self.rng.random_range(1..10);
        let options = ReceiveOptions::batch(max).visibility(LEASE).max_receive_count(LIMIT);
        let received = self.provider.receive_messages(&self.queue, &options, soon()).await.expect("an answer");
        self.held.extend(received.into_iter().map(QueuedMessage::into_receipt));
    }

    async fn settle(&mut self) {
        let Some(receipt) = self.held.choose(&mut self.rng).cloned() else { return };
        if self.rng.random_bool(0.9) {
            self.held.retain(|held| *held != receipt);
        }
        let disposition = match self.rng.random_range(0..20) {
            0..3 => Disposition::Nack(Nack::retry_after(Duration::from_millis(self.rng.random_range(0..50)))),
            3 => Disposition::Nack(Nack::Release),
            4 => Disposition::Nack(Nack::dead_letter("storm")),
            _ => Disposition::Ack,
        };
        match self
            .provider
            .settle(vec![Settlement::new(receipt, disposition)], soon())
            .await
            .expect("an answer")
            .remove(0)
        {
            Ok(()) | Err(MessagingError::VisibilityExpired { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
