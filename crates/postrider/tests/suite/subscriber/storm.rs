//! A storm of subscribers under many faults, whose history is checked.
//!
//! Subscribers run on a recorded store that fails every third call, with handlers that panic, fail, hang and settle
//! explicitly; some subscribers are dropped in the middle, as by a crash. No message may be lost, leased twice, handled
//! out of order or settled by an ended lease.

mod flaky;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider::subscriber::{Delivery, HandlerError, Shutdown, Subscriber};
use postrider::*;
use postrider_conformance::Harness;
use postrider_conformance::broken::{Fault, SimulatedStore};
use postrider_conformance::checker::{CheckOptions, FindingKind, Network, Verdict, check};
use postrider_conformance::faults::Fault as NetworkFault;
use postrider_conformance::history::History;
use postrider_conformance::proxy::FaultProxy;
use postrider_conformance::recorded::Recorded;
use tokio::task::JoinSet;

use crate::is_long;
use crate::test_store::{TestStore, own_name};
use flaky::Flaky;

/// Messages per key: enough for contention, few enough for a large storm to finish.
const MESSAGES_A_KEY: usize = 50;
const SUBSCRIBERS: u32 = 3;

async fn fill(provider: &Recorded<MessagingProvider>, queue: &QueueName, count: usize) {
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
        let sent_rows = provider.send_batch(queue, rows, Deadline::default()).await.unwrap();
        assert!(sent_rows.iter().all(Result::is_ok));
        sent += batch;
    }
}

/// A handler that panics in every tenth call and shows every other behaviour at times.
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

/// The result of a storm.
struct Storm {
    verdict: Verdict,
    generations: usize,
}

/// Upper bound of generations: a stranded message must fail the storm, not prolong it.
const MAX_GENERATIONS: usize = 300;

/// The setup of a storm.
struct StormSetup {
    /// Reaches the store without the faults.
    sender: MessagingProvider,
    messages: usize,
    max_generations: usize,
    /// The network with faults between the subscribers and their server.
    network: Option<Arc<FaultProxy>>,
}

/// Runs generations of subscribers, each stopped or dropped before the work is done, until no message is left.
async fn storm(setup: StormSetup, open: impl AsyncFn() -> MessagingProvider) -> Storm {
    let StormSetup { sender, messages: count, max_generations, network } = setup;
    // On some servers queues are shared with other tests.
    let queue = QueueName::new(own_name()).unwrap();
    let history = History::new();
    let sender = Recorded::new(sender, history.clone(), 0);
    sender.ensure_queue(&queue, Deadline::default()).await.unwrap();
    fill(&sender, &queue, count).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let mut worker = 1;
    let mut generations = 0;
    while generations < max_generations {
        let mut generation = JoinSet::new();
        let shutdown = Shutdown::new();
        let mut monitors = Vec::new();
        for _ in 0..SUBSCRIBERS {
            let provider = Flaky::new(Recorded::new(open().await, history.clone(), worker));
            worker += 1;
            let calls = calls.clone();
            let misbehaving =
                tower::service_fn(move |delivery| misbehave(delivery, calls.fetch_add(1, Ordering::SeqCst)));
            let subscriber = Subscriber::builder(provider, &queue)
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
            // The rest is with handlers that never return: the next generation gets it.
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
        if sender.queue_stats(&queue, Deadline::default()).await.unwrap().message_count() == Some(0) {
            break;
        }
    }
    sender.record_final(std::slice::from_ref(&queue), Deadline::default()).await.unwrap();
    let mut options = CheckOptions::for_provider(sender.capabilities(), Network::Faulty);
    options.tolerance += history.lead();
    let verdict = check(&history.events(), &options);
    sender.delete_queue(&queue, Deadline::default()).await.unwrap();
    Storm { verdict, generations }
}

fn assert_survived(storm: &Storm) {
    let Storm { verdict, generations } = storm;
    println!("{generations} generations, {} events: {verdict}", verdict.counts.events);
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!(verdict.counts.live, 0);
    assert!(*generations > 2, "the storm ended before any subscriber was cut short");
}

/// Messages of a long and a short storm on a database server.
const DATABASE: [usize; 2] = [20_000, 500];
/// The same on a broker.
const BROKER: [usize; 2] = [5_000, 200];

/// A storm without network faults.
fn without_network_faults(sender: MessagingProvider) -> StormSetup {
    let messages = if is_long() { 100_000 } else { 5_000 };
    StormSetup { sender, messages, max_generations: MAX_GENERATIONS, network: None }
}

/// On a server, with network faults.
async fn assert_survived_on_server(store: TestStore, [long, short]: [usize; 2]) {
    let network = Arc::new(FaultProxy::before(store.url()).await.unwrap());
    let behind = store.endpoint_by(&network.url());
    let setup = StormSetup {
        messages: if is_long() { long } else { short },
        network: Some(network),
        ..without_network_faults(store.connect().await)
    };
    assert_survived(&storm(setup, async || behind.connect().await.unwrap()).await);
    store.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_in_memory() {
    let store = MemoryStore::new();
    let open = async || MessagingProvider::Memory(store.open());
    assert_survived(&storm(without_network_faults(open().await), open).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_sqlite() {
    let store = TestStore::sqlite();
    let open = async || store.connect().await;
    assert_survived(&storm(without_network_faults(open().await), open).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_on_a_spool() {
    let store = TestStore::spool();
    let open = async || store.connect().await;
    assert_survived(&storm(without_network_faults(open().await), open).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_postgres() {
    assert_survived_on_server(TestStore::postgres(), DATABASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_on_mariadb() {
    assert_survived_on_server(TestStore::mariadb().await, DATABASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_on_pgmq() {
    assert_survived_on_server(TestStore::pgmq(), DATABASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_on_sqs() {
    assert_survived_on_server(TestStore::sqs(), BROKER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_or_reordered_on_rabbitmq() {
    assert_survived_on_server(TestStore::rabbitmq().await, BROKER).await;
}

/// The same storm on stores that break one rule: the checker must find it.
#[tokio::test(start_paused = true)]
async fn a_storm_shows_what_a_broken_store_does() {
    async fn verdict_on(store: SimulatedStore) -> Verdict {
        let open = async || MessagingProvider::custom(store.open().await.unwrap());
        let setup = StormSetup { sender: open().await, messages: 400, max_generations: 4, network: None };
        storm(setup, open).await.verdict
    }
    for (fault, kind) in [
        (Fault::LosesSends, FindingKind::Lost),
        (Fault::LeasesTwice, FindingKind::TwoLeases),
        (Fault::LosesOrder, FindingKind::Reordered),
        (Fault::AcksTwice, FindingKind::StaleSettle),
    ] {
        let verdict = verdict_on(SimulatedStore::with_fault(fault)).await;
        assert!(verdict.has(kind), "{fault:?}: {verdict}");
    }
    let verdict = verdict_on(SimulatedStore::lawful()).await;
    assert!(verdict.is_clean(), "{verdict}");
}
