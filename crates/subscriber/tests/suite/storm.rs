//! Everything goes wrong at once, and the checker looks at what became of every message.
//!
//! Subscribers run on a recorded store that refuses every third call, with handlers that panic, fail, hang and settle by
//! hand; some subscribers are dropped in the middle, as by a crash. Afterwards nothing may be lost, leased twice,
//! handled out of order or settled by a dead token.

mod flaky;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_conformance::Harness;
use postrider_conformance::broken::{Fault, SimulatedStore};
use postrider_conformance::checker::{CheckOptions, FindingKind, Verdict, Way, check};
use postrider_conformance::faults::Fault as NetworkFault;
use postrider_conformance::history::History;
use postrider_conformance::proxy::FaultProxy;
use postrider_conformance::recorded::Recorded;
use postrider_core::*;
use postrider_subscriber::{Delivery, HandlerError, Shutdown, Subscriber};
use tokio::task::JoinSet;

use crate::closure::handler;
use crate::is_long;
use crate::place::Place;
use crate::servers::{OnMariadb, OnPgmq, OnPostgres, OnRabbitmq, OnSqs};
use flaky::Flaky;

/// How many messages share a key: enough to meet, and few enough that a large storm comes to its end.
const MESSAGES_A_KEY: usize = 50;
const SUBSCRIBERS: u32 = 3;

fn queue() -> QueueName {
    QueueName::new("storm").unwrap()
}

/// How many messages: many when the long forms are asked for (`scripts/test --full`).
fn messages() -> usize {
    if is_long() { 100_000 } else { 5_000 }
}

async fn fill<P: MessagingService>(provider: &P, count: usize) {
    let keys = count / MESSAGES_A_KEY;
    let mut sent = 0;
    while sent < count {
        let batch = 500.min(count - sent);
        let message = |number: usize| {
            let message = Message::new(number.to_string());
            if number.is_multiple_of(2) {
                message.ordering_key(format!("k{}", number % keys)).unwrap()
            } else {
                message
            }
        };
        let rows = (sent..sent + batch).map(message).collect();
        let sent_rows = provider.send_batch(&queue(), rows, Deadline::default()).await.unwrap();
        assert!(sent_rows.iter().all(Result::is_ok));
        sent += batch;
    }
}

/// Panics in every tenth call, and does everything else that handlers do now and then.
async fn misbehave(delivery: Delivery, number: usize) -> Result<(), HandlerError> {
    let first = delivery.envelope.attempts_count == 0;
    match number % 100 {
        0..10 => panic!("every tenth"),
        10..15 if first => Err("not now".into()),
        15..17 => Err(HandlerError::permanent("never")),
        17..20 if first => Err(HandlerError::retry_after(Duration::from_millis(5), "later")),
        20..23 => {
            delivery.control().release();
            Ok(())
        }
        23..25 => {
            tokio::time::sleep(Duration::from_millis(120)).await;
            Ok(())
        }
        // Never returns, until it is dropped.
        25 if number % 1000 == 25 => std::future::pending().await,
        26..40 => {
            tokio::task::yield_now().await;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// What a storm came to.
struct Storm {
    verdict: Verdict,
    generations: usize,
}

/// Far more than it takes: a message that is stranded must fail the storm and not prolong it.
const MOST_GENERATIONS: usize = 300;

/// Runs generations of subscribers, each of which ends before the work is done, by a stop or as by a crash, until
/// nothing is left to do.
async fn storm<P, F, Fut>(open: F, count: usize, most_generations: usize) -> Storm
where
    P: Provider,
    F: Fn() -> Fut,
    Fut: Future<Output = P>,
{
    let sender = open().await;
    storm_under_faults(sender, open, count, most_generations, None).await
}

/// The same, while faults befall the network between the subscribers and their server. The sender is beside it.
async fn storm_under_faults<P, F, Fut>(
    sender: P,
    open: F,
    count: usize,
    most_generations: usize,
    network: Option<Arc<FaultProxy>>,
) -> Storm
where
    P: Provider,
    F: Fn() -> Fut,
    Fut: Future<Output = P>,
{
    let history = History::new();
    let sender = Recorded::new(sender, history.clone(), 0);
    sender.ensure_queue(&queue(), Deadline::default()).await.unwrap();
    fill(&sender, count).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let mut worker = 1;
    let mut generations = 0;
    while generations < most_generations {
        let mut generation = JoinSet::new();
        let shutdown = Shutdown::new();
        let mut monitors = Vec::new();
        for _ in 0..SUBSCRIBERS {
            let provider = Flaky::new(Recorded::new(open().await, history.clone(), worker));
            worker += 1;
            let calls = calls.clone();
            let misbehaving = handler(move |delivery| misbehave(delivery, calls.fetch_add(1, Ordering::SeqCst)));
            let subscriber = Subscriber::builder(provider, queue())
                .handler(misbehaving)
                .max_workers(20)
                .visibility(Duration::from_millis(500))
                .retry_strategy(RetryStrategy::constant(Duration::from_millis(2)))
                .max_deliveries(1000)
                .graceful_timeout(Duration::from_millis(200))
                .build()
                .unwrap();
            monitors.push(subscriber.monitor());
            generation.spawn(subscriber.run(shutdown.clone()));
        }
        let mut faults = JoinSet::new();
        if let Some(network) = network.clone() {
            faults.spawn(async move { NetworkFault::Cuts.befall(&network).await });
        }
        let share = count as u64 / 4;
        let mut idle_looks = 0;
        let mut before = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let done: u64 = monitors.iter().map(|monitor| monitor.counts().acked + monitor.counts().dead).sum();
            // What is left then is with handlers that never return: the next generation gets it.
            idle_looks = if done == before { idle_looks + 1 } else { 0 };
            before = done;
            if (done > share && generations < 2) || idle_looks > 50 {
                break;
            }
        }
        generations += 1;
        if generations == 1 {
            generation.abort_all();
        }
        shutdown.request();
        drop(monitors);
        faults.shutdown().await;
        while generation.join_next().await.is_some() {}
        if sender.queue_stats(&queue(), Deadline::default()).await.unwrap().message_count() == Some(0) {
            break;
        }
    }
    sender.record_final(&[queue()], Deadline::default()).await.unwrap();
    let mut options = CheckOptions::for_provider(sender.capabilities(), Way::Faulty);
    options.tolerance += history.lead();
    Storm { verdict: check(&history.events(), &options), generations }
}

fn assert_weathered(storm: &Storm) {
    let Storm { verdict, generations } = storm;
    println!("{generations} generations, {} events: {verdict}", verdict.counts.events);
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!(verdict.counts.live, 0);
    assert!(*generations > 2, "the storm was over before anything was cut short");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_in_memory() {
    let store = MemoryStore::new();
    assert_weathered(&storm(|| async { store.open() }, messages(), MOST_GENERATIONS).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_sqlite() {
    let place = Place::on_disk();
    let store = place.open().await;
    assert_weathered(&storm(|| async { store.connect().await.unwrap() }, messages(), MOST_GENERATIONS).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_a_spool() {
    let place = Place::on_disk();
    assert_weathered(&storm(|| place.connect_to_spool(), messages(), MOST_GENERATIONS).await);
}

/// On servers, which are slower: how many messages.
fn fewer_messages() -> usize {
    if is_long() { 20_000 } else { 500 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_postgres() {
    let place = OnPostgres::new();
    let proxy = Arc::new(FaultProxy::before(&place.url()).await.unwrap());
    let beside = place.store(&place.url()).await.unwrap().connect().unwrap();
    let behind = place.store(&proxy.url()).await.unwrap();
    let open = || async { behind.connect().unwrap() };
    assert_weathered(&storm_under_faults(beside, open, fewer_messages(), MOST_GENERATIONS, Some(proxy)).await);
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_mariadb() {
    let place = OnMariadb::new().await;
    let proxy = Arc::new(FaultProxy::before(&place.url()).await.unwrap());
    let beside = place.store(&place.url()).await.unwrap().connect().unwrap();
    let behind = place.store(&proxy.url()).await.unwrap();
    let open = || async { behind.connect().unwrap() };
    assert_weathered(&storm_under_faults(beside, open, fewer_messages(), MOST_GENERATIONS, Some(proxy)).await);
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_pgmq() {
    let place = OnPgmq::new();
    let proxy = Arc::new(FaultProxy::before(&place.url()).await.unwrap());
    let beside = place.store(&place.url()).await.unwrap().connect().unwrap();
    let behind = place.store(&proxy.url()).await.unwrap();
    // The queues are everybody's: what a run left that was cut short is not part of this one.
    beside.delete_queue(&queue(), Deadline::default()).await.unwrap();
    let open = || async { behind.connect().unwrap() };
    let storm = storm_under_faults(beside.clone(), open, fewer_messages(), MOST_GENERATIONS, Some(proxy)).await;
    assert_weathered(&storm);
    beside.delete_queue(&queue(), Deadline::default()).await.unwrap();
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_sqs() {
    let place = OnSqs::new();
    let proxy = Arc::new(FaultProxy::before(&place.url()).await.unwrap());
    let beside = place.store(&place.url()).await.unwrap().connect().unwrap();
    let behind = place.store(&proxy.url()).await.unwrap();
    let open = || async { behind.connect().unwrap() };
    let count = if is_long() { 5_000 } else { 200 };
    let storm = storm_under_faults(beside.clone(), open, count, MOST_GENERATIONS, Some(proxy)).await;
    assert_weathered(&storm);
    beside.delete_queue(&queue(), Deadline::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_reordered_on_rabbitmq() {
    let proxy = Arc::new(FaultProxy::before(&OnRabbitmq.url()).await.unwrap());
    let beside = OnRabbitmq.store(&OnRabbitmq.url()).connect().await.unwrap();
    let behind = OnRabbitmq.store(&proxy.url());
    // What a run left that was cut short is not part of this one.
    beside.delete_queue(&queue(), Deadline::default()).await.unwrap();
    let open = || async { behind.connect().await.unwrap() };
    let count = if is_long() { 5_000 } else { 200 };
    let storm = storm_under_faults(beside.clone(), open, count, MOST_GENERATIONS, Some(proxy)).await;
    assert_weathered(&storm);
    beside.delete_queue(&queue(), Deadline::default()).await.unwrap();
}

/// The same storm on stores that keep everything but one rule: the checker must say so.
#[tokio::test(start_paused = true)]
async fn a_storm_shows_what_a_broken_store_does() {
    for (fault, kind) in [
        (Fault::LosesSends, FindingKind::Lost),
        (Fault::LeasesTwice, FindingKind::TwoLeases),
        (Fault::LosesOrder, FindingKind::Reordered),
        (Fault::AcksTwice, FindingKind::StaleSettle),
    ] {
        let store = SimulatedStore::with_fault(fault);
        let Storm { verdict, .. } = storm(|| async { store.open().await.unwrap() }, 400, 4).await;
        assert!(verdict.has(kind), "{fault:?}: {verdict}");
    }
    let store = SimulatedStore::lawful();
    let Storm { verdict, .. } = storm(|| async { store.open().await.unwrap() }, 400, 4).await;
    assert!(verdict.is_clean(), "{verdict}");
}
