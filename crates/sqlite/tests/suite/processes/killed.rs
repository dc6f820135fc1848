//! Workers that are killed at any moment: nothing is lost, and no message is ever held twice.

use std::path::Path;
use std::time::Duration;

use postrider_conformance::checker::{CheckOptions, check};
use postrider_conformance::history::{History, merge};
use postrider_conformance::recorded::Recorded;
use postrider_core::{
    Disposition, Message, MessagingError, MessagingService, Nack, Priority, QueueAdmin, QueueName, QueuedMessage,
    ReceiptHandle, ReceiveOptions, Settlement,
};
use postrider_sqlite::SqliteProvider;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::spawn;
use crate::{Place, is_long, queue, soon};

/// Short, so that what a dead worker held comes back soon.
const LEASE: Duration = Duration::from_millis(250);
const LIMIT: u32 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_held_twice_when_workers_are_killed() {
    let kills = if is_long() { 500 } else { 50 };
    kill_workers(2, kills).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_share_a_file() {
    kill_workers(4, if is_long() { 100 } else { 8 }).await;
}

async fn kill_workers(workers: usize, kills: u32) {
    let place = Place::new();
    let provider = place.connect().await;
    let seed: u64 = rand::random();
    let mut chance = StdRng::seed_from_u64(seed);
    let mut number = 0;
    let journal = |number: u32| place.folder.path().join(format!("{number}.journal"));
    let mut next = || {
        number += 1;
        (number, spawn("killed", &place.file(), &journal(number), number))
    };
    let mut running: Vec<_> = (0..workers).map(|_| next()).collect();
    for _ in 0..kills {
        let victim = chance.random_range(0..running.len());
        let (number, victim) = running.swap_remove(victim);
        // It has done something, and now it is anywhere in its next call.
        has_written(&journal(number), chance.random_range(1..10_000)).await;
        tokio::time::sleep(Duration::from_micros(chance.random_range(0..5_000))).await;
        victim.kill().unwrap();
        running.push(next());
    }
    for (_, worker) in running {
        worker.kill().unwrap();
    }
    let queue = queue("storm");
    let history = History::new();
    let recorded = Recorded::new(provider, history.clone(), 0);
    drain(&recorded, &queue).await;
    recorded.record_final(std::slice::from_ref(&queue), soon()).await.unwrap();

    let journals = (1..=number).map(|number| History::read_journal(&journal(number)).unwrap());
    let events = merge(journals.chain([history.events()]));
    let mut options = CheckOptions::for_limits(&recorded.capabilities().limits);
    options.tolerance += history.lead();
    let verdict = check(&events, &options);
    assert!(verdict.is_clean(), "seed {seed}: {verdict}");
    let counts = &verdict.counts;
    assert!(counts.acks > 2 * u64::from(kills), "hardly anything was done: {counts:?}");
    assert!(counts.unknown_sends + counts.unknown_acks + counts.unknown_receives > 0, "nobody was interrupted");
}

/// Waits until a journal has so many bytes.
async fn has_written(journal: &Path, bytes: u64) {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while std::fs::metadata(journal).map_or(0, |metadata| metadata.len()) < bytes {
        assert!(std::time::Instant::now() < end, "a worker does nothing");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Acknowledges everything that is left.
async fn drain(provider: &Recorded<SqliteProvider>, queue: &QueueName) {
    let options =
        ReceiveOptions::batch(100).visibility(Duration::from_secs(20)).wait(LEASE * 2).max_receive_count(LIMIT);
    loop {
        let received = provider.receive_messages(queue, &options, soon()).await.unwrap();
        if received.is_empty() {
            assert_eq!(provider.queue_stats(queue, soon()).await.unwrap().message_count(), Some(0));
            return;
        }
        let acks = received.into_iter().map(Settlement::ack).collect();
        for row in provider.settle(acks, soon()).await.unwrap() {
            row.unwrap();
        }
    }
}

/// The worker's side: sends, receives and settles, rightly and wrongly, until it is killed.
pub(super) async fn work(file: &Path, report: &Path, number: u32) {
    let history = History::journaled(report).unwrap();
    let mut worker = Busy {
        provider: Recorded::new(crate::connect(file).await, history, number),
        chance: StdRng::seed_from_u64(u64::from(number)),
        queue: queue("storm"),
        held: Vec::new(),
    };
    loop {
        match worker.chance.random_range(0..10) {
            0..3 => worker.send().await,
            3..6 => worker.receive().await,
            _ => worker.settle().await,
        }
    }
}

struct Busy {
    provider: Recorded<SqliteProvider>,
    chance: StdRng,
    queue: QueueName,
    /// Receipts that were handed out, settled or not: some are used again, too late.
    held: Vec<ReceiptHandle>,
}

impl Busy {
    fn message(&mut self) -> Message {
        let mut message = Message::new(self.chance.random::<u64>().to_string());
        if self.chance.random_bool(0.5) {
            message = message.ordering_key(format!("key {}", self.chance.random_range(0..10))).unwrap();
        }
        if self.chance.random_bool(0.1) {
            message = message.dedup_key(format!("dedup {}", self.chance.random_range(0..20))).unwrap();
        }
        if self.chance.random_bool(0.2) {
            message = message.priority(Priority::new(self.chance.random_range(0..10)).unwrap());
        }
        if self.chance.random_bool(0.1) {
            message = message.delay(Duration::from_millis(self.chance.random_range(1..100)));
        }
        message
    }

    async fn send(&mut self) {
        let messages: Vec<_> = (0..self.chance.random_range(1..6)).map(|_| self.message()).collect();
        for row in self.provider.send_batch(&self.queue, messages, soon()).await.unwrap() {
            row.unwrap();
        }
    }

    async fn receive(&mut self) {
        let max = self.chance.random_range(1..10);
        let options = ReceiveOptions::batch(max).visibility(LEASE).max_receive_count(LIMIT);
        let received = self.provider.receive_messages(&self.queue, &options, soon()).await.unwrap();
        self.held.extend(received.into_iter().map(QueuedMessage::into_receipt));
    }

    async fn settle(&mut self) {
        let Some(receipt) = self.held.choose(&mut self.chance).cloned() else { return };
        if self.chance.random_bool(0.9) {
            self.held.retain(|held| *held != receipt);
        }
        let disposition = match self.chance.random_range(0..20) {
            0..3 => Disposition::Nack(Nack::retry_after(Duration::from_millis(self.chance.random_range(0..50)))),
            3 => Disposition::Nack(Nack::Release),
            4 => Disposition::Nack(Nack::dead_letter("storm")),
            _ => Disposition::Ack,
        };
        match self.provider.settle(vec![Settlement { receipt, disposition }], soon()).await.unwrap().remove(0) {
            Ok(()) | Err(MessagingError::VisibilityExpired { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
