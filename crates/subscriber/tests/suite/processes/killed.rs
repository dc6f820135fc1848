//! Subscribers that are killed at any moment, and replaced.

use std::time::Duration;

use postrider_conformance::checker::{FindingKind, Verdict};
use postrider_conformance::history::{LeaseOutcome, Operation};
use postrider_conformance::recorded::Recorded;
use postrider_core::{Json, Message, MessagingService, QueueAdmin, QueueMessage, RetryStrategy, SharedProvider};
use postrider_subscriber::{Context, HandlerError, Shutdown, Subscriber};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::{Store, WorkerProcesses, until};
use crate::fixture::{queue, soon};
use crate::held::max_held;
use crate::is_long;

/// Short, so that the messages of a killed subscriber are delivered again soon.
const LEASE: Duration = Duration::from_secs(1);
/// Long enough that none is lost on a busy machine.
const LONG_LEASE: Duration = Duration::from_secs(3);
const WORKERS: usize = 8;
const OVERFETCH: f64 = 1.5;
/// Upper bound of messages that a crash charges: workers × overfetch.
const CAPACITY: usize = 12;
const PROCESSES: usize = 3;
/// Messages sent before each kill.
const BATCH: usize = 200;
/// Few enough that messages of one key would run at the same time if nothing prevented it.
const KEYS: u64 = 10;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
}

/// Sends messages, half of them with keys, while subscribers are killed and replaced, until everything is settled.
async fn storm(mut workers: WorkerProcesses, kills: usize) -> (WorkerProcesses, Verdict) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let mut running: Vec<_> = (0..PROCESSES).map(|_| workers.start()).collect();
    let mut sent = 0;
    for _ in 0..kills {
        send(&workers, &mut sent).await;
        let (number, victim) = running.swap_remove(chance.random_range(0..PROCESSES));
        // The victim has made progress, and is killed at a random moment.
        let written = chance.random_range(1..60_000);
        let journal = workers.journal(number);
        until("the victim makes progress", Duration::from_secs(30), || async {
            let has_written = std::fs::metadata(&journal).map_or(0, |metadata| metadata.len()) >= written;
            has_written || workers.is_empty().await
        })
        .await;
        tokio::time::sleep(Duration::from_micros(chance.random_range(0..20_000))).await;
        victim.kill().unwrap();
        running.push(workers.start());
    }
    send(&workers, &mut sent).await;
    until("everything is settled", Duration::from_secs(if is_long() { 300 } else { 60 }), || workers.is_empty()).await;
    drop(running);
    let verdict = workers.verdict().await;
    (workers, verdict)
}

async fn send(workers: &WorkerProcesses, sent: &mut u64) {
    let first = *sent;
    *sent += BATCH as u64;
    let message = |number: u64| {
        let message = Message::new(Json(Order { number }).to_bytes().unwrap());
        if number.is_multiple_of(2) {
            message.ordering_key(format!("k{}", number / 2 % KEYS)).unwrap()
        } else {
            message
        }
    };
    let messages = (first..*sent).map(message).collect();
    for row in workers.own.send_batch(&queue(), messages, soon()).await.unwrap() {
        row.unwrap();
    }
}

async fn nothing_is_lost_doubled_or_reordered_by_kills(store: Store) {
    let kills = if is_long() { 250 } else { 15 };
    let (workers, verdict) = storm(WorkerProcesses::on(store, "busy").await, kills).await;
    println!("{} processes, {kills} killed: {verdict}", workers.started);
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!((verdict.counts.live, verdict.counts.dead), (0, 0));
    assert_eq!(verdict.counts.sends, (BATCH * (kills + 1)) as u64);
    assert!(verdict.counts.deliveries > verdict.counts.sends, "no handler was interrupted");
    let most = (1..=workers.started).map(|number| max_held(&workers.events_of(number))).max().unwrap();
    assert!((WORKERS..=CAPACITY).contains(&most), "a process held {most} leases at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_when_subscribers_are_killed() {
    nothing_is_lost_doubled_or_reordered_by_kills(Store::File).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "processes on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_when_subscribers_of_a_spool_are_killed() {
    nothing_is_lost_doubled_or_reordered_by_kills(Store::Folder).await;
}

/// The same on files without one of the guards: the checker must report it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_subscribers_reveal_a_broken_file() {
    for (kind, trigger) in [
        (
            FindingKind::Lost,
            "create trigger forget after insert on message when new.ordering_key is null and new.id % 10 = 2
             begin delete from message where id = new.id; end",
        ),
        (
            FindingKind::TwoLeases,
            "create trigger cut_short after update of lease_token on message
             when new.lease_token is not null and new.deliveries_count = 1 and new.id % 10 = 1
             begin update message set next_attempt_at = new.acquired_at where id = new.id; end",
        ),
        (
            FindingKind::Reordered,
            "create trigger unblock after insert on message when new.blocked = 1
             begin update message set blocked = 0 where id = new.id; end",
        ),
    ] {
        let workers = WorkerProcesses::new("busy").await;
        workers.sabotage(trigger);
        let (_, verdict) = storm(workers, 1).await;
        assert!(verdict.has(kind), "{kind}: {verdict}");
    }
}

/// A subscriber's crash is charged to its leased messages, and to no others.
async fn a_crash_charges_what_was_leased(store: Store) {
    let mut workers = WorkerProcesses::on(store, "hanging").await;
    send(&workers, &mut 0).await;
    for crashes in 1..=3 {
        let (number, process) = workers.start();
        // When it has renewed its leases, it has fetched as many messages as it will.
        until("the leases are renewed", Duration::from_secs(30), || async {
            let is_renewal = |operation: &Operation| match operation {
                Operation::Extend(call) => call.outcome == LeaseOutcome::Done,
                _ => false,
            };
            let events = workers.events_of(number);
            events.iter().filter(|event| is_renewal(&event.operation)).count() >= CAPACITY
        })
        .await;
        process.kill().unwrap();
        let messages = workers.own.peek(&queue(), BATCH, soon()).await.unwrap();
        let charged: u32 = messages.iter().map(|message| message.deliveries_count).sum();
        assert_eq!(charged as usize, CAPACITY * crashes, "charged by {crashes} crashes");
        assert_eq!(max_held(&workers.events_of(number)), CAPACITY);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_charges_what_was_leased_and_nothing_else() {
    a_crash_charges_what_was_leased(Store::File).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "processes on every store: scripts/test --full"]
async fn a_crash_charges_what_was_leased_from_a_spool_and_nothing_else() {
    a_crash_charges_what_was_leased(Store::Folder).await;
}

/// The worker process: a subscriber whose every tenth handler panics.
pub(super) async fn be_busy(provider: Recorded<SharedProvider>) {
    // These panics are intended, and must not fill the output of the test.
    std::panic::set_hook(Box::new(|_| {}));
    run(provider, LEASE, |Json(order): Json<Order>, context: Context| async move {
        tokio::time::sleep(Duration::from_micros(order.number * 7919 % 8000)).await;
        let is_first = context.envelope().attempts_count == 0;
        assert!(!is_first || order.number % 10 != 3, "every tenth");
        Ok(())
    })
    .await;
}

/// The worker process: a subscriber whose handlers never return.
pub(super) async fn hang(provider: Recorded<SharedProvider>) {
    run(provider, LONG_LEASE, |_: Json<Order>, _: Context| std::future::pending()).await;
}

async fn run<H, F>(provider: Recorded<SharedProvider>, lease: Duration, handle: H)
where
    H: Fn(Json<Order>, Context) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    let subscriber = Subscriber::builder(provider, queue())
        .handler(handle)
        .max_workers(WORKERS)
        .overfetch_factor(OVERFETCH)
        .visibility(lease)
        .retry_strategy(RetryStrategy::constant(Duration::from_millis(2)))
        .max_deliveries(1000)
        .build()
        .unwrap();
    subscriber.run(Shutdown::new()).await;
}
