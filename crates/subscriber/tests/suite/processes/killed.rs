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

use super::{Crew, Store, until};
use crate::fixture::{queue, soon};
use crate::held::most_held;
use crate::is_long;

/// Short, so that what a dead subscriber held comes back soon.
const LEASE: Duration = Duration::from_secs(1);
/// Long enough that a busy machine loses none.
const LONG_LEASE: Duration = Duration::from_secs(3);
const WORKERS: usize = 8;
const OVERFETCH: f64 = 1.5;
/// All that a crash may charge: workers × overfetch.
const CAPACITY: usize = 12;
const PROCESSES: usize = 3;
/// So many messages are sent before each kill.
const BATCH: usize = 200;
/// So few that messages of one key would meet if nothing kept them apart.
const KEYS: u64 = 10;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    number: u64,
}

/// Sends messages, half of them with keys, while subscribers are killed and replaced, until everything is settled.
async fn storm(mut crew: Crew, kills: usize) -> (Crew, Verdict) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let mut running: Vec<_> = (0..PROCESSES).map(|_| crew.start()).collect();
    let mut sent = 0;
    for _ in 0..kills {
        send(&crew, &mut sent).await;
        let (number, victim) = running.swap_remove(chance.random_range(0..PROCESSES));
        // It has done something, and now it is anywhere.
        let written = chance.random_range(1..60_000);
        let journal = crew.journal(number);
        until("the victim does something", Duration::from_secs(30), || async {
            let has_written = std::fs::metadata(&journal).map_or(0, |metadata| metadata.len()) >= written;
            has_written || crew.is_empty().await
        })
        .await;
        tokio::time::sleep(Duration::from_micros(chance.random_range(0..20_000))).await;
        victim.kill().unwrap();
        running.push(crew.start());
    }
    send(&crew, &mut sent).await;
    until("everything is settled", Duration::from_secs(if is_long() { 300 } else { 60 }), || crew.is_empty()).await;
    drop(running);
    let verdict = crew.verdict().await;
    (crew, verdict)
}

async fn send(crew: &Crew, sent: &mut u64) {
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
    for row in crew.own.send_batch(&queue(), messages, soon()).await.unwrap() {
        row.unwrap();
    }
}

async fn nothing_is_lost_doubled_or_reordered_by_kills(store: Store) {
    let kills = if is_long() { 250 } else { 15 };
    let (crew, verdict) = storm(Crew::on(store, "busy").await, kills).await;
    println!("{} processes, {kills} killed: {verdict}", crew.started);
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!((verdict.counts.live, verdict.counts.dead), (0, 0));
    assert_eq!(verdict.counts.sends, (BATCH * (kills + 1)) as u64);
    assert!(verdict.counts.deliveries > verdict.counts.sends, "nobody was interrupted");
    let most = (1..=crew.started).map(|number| most_held(&crew.events_of(number))).max().unwrap();
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

/// The same on files from which one guard was taken: the checker must say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_subscribers_show_what_a_broken_file_does() {
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
        let crew = Crew::new("busy").await;
        crew.sabotage(trigger);
        let (_, verdict) = storm(crew, 1).await;
        assert!(verdict.has(kind), "{kind}: {verdict}");
    }
}

/// A subscriber's crash is charged to the messages that it had leased, and to no others.
async fn a_crash_charges_what_was_leased(store: Store) {
    let mut crew = Crew::on(store, "hanging").await;
    send(&crew, &mut 0).await;
    for crashes in 1..=3 {
        let (number, process) = crew.start();
        // It has renewed what it holds: by then it has taken all that it wants.
        until("the leases are renewed", Duration::from_secs(30), || async {
            let is_renewal = |operation: &Operation| match operation {
                Operation::Extend(call) => call.outcome == LeaseOutcome::Done,
                _ => false,
            };
            let events = crew.events_of(number);
            events.iter().filter(|event| is_renewal(&event.operation)).count() >= CAPACITY
        })
        .await;
        process.kill().unwrap();
        let messages = crew.own.peek(&queue(), BATCH, soon()).await.unwrap();
        let charged: u32 = messages.iter().map(|message| message.deliveries_count).sum();
        assert_eq!(charged as usize, CAPACITY * crashes, "charged by {crashes} crashes");
        assert_eq!(most_held(&crew.events_of(number)), CAPACITY);
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

/// The worker's side: a subscriber whose every tenth handler panics.
pub(super) async fn be_busy(provider: Recorded<SharedProvider>) {
    // They are meant to, and the test's output is for what is not.
    std::panic::set_hook(Box::new(|_| {}));
    run(provider, LEASE, |Json(order): Json<Order>, context: Context| async move {
        tokio::time::sleep(Duration::from_micros(order.number * 7919 % 8000)).await;
        let is_first = context.envelope().attempts_count == 0;
        assert!(!is_first || order.number % 10 != 3, "every tenth");
        Ok(())
    })
    .await;
}

/// The worker's side: a subscriber whose handlers never return.
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
