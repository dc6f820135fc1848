//! Everything goes wrong at once, and the checker looks at what became of every message.
//!
//! Subscribers run on a recorded store that refuses every third call, with handlers that panic, fail, hang and settle by
//! hand; some subscribers are dropped in the middle, as by a crash. Afterwards nothing may be lost, leased twice,
//! handled out of order or settled by a dead token.

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
use crate::place::{Place, own_name};
use flaky::Flaky;

/// How many messages share a key: enough to meet, and few enough that a large storm comes to its end.
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

/// Where a storm is, and how bad it is.
struct Weather {
    /// Reaches the store beside the faults.
    sender: MessagingProvider,
    messages: usize,
    most_generations: usize,
    /// The network between the subscribers and their server, which faults befall.
    network: Option<Arc<FaultProxy>>,
}

/// Runs generations of subscribers, each of which ends before the work is done, by a stop or as by a crash, until
/// nothing is left to do.
async fn storm(weather: Weather, open: impl AsyncFn() -> MessagingProvider) -> Storm {
    let Weather { sender, messages: count, most_generations, network } = weather;
    // Queues are everybody's on some servers.
    let queue = QueueName::new(own_name()).unwrap();
    let history = History::new();
    let sender = Recorded::new(sender, history.clone(), 0);
    sender.ensure_queue(&queue, Deadline::default()).await.unwrap();
    fill(&sender, &queue, count).await;
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

fn assert_weathered(storm: &Storm) {
    let Storm { verdict, generations } = storm;
    println!("{generations} generations, {} events: {verdict}", verdict.counts.events);
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!(verdict.counts.live, 0);
    assert!(*generations > 2, "the storm was over before anything was cut short");
}

/// Messages of a storm on a database server, in the long form and in the short.
const DATABASE: [usize; 2] = [20_000, 500];
/// The same on a broker.
const BROKER: [usize; 2] = [5_000, 200];

/// A storm in which only handlers fail, and every third call.
fn calm(sender: MessagingProvider) -> Weather {
    let messages = if is_long() { 100_000 } else { 5_000 };
    Weather { sender, messages, most_generations: MOST_GENERATIONS, network: None }
}

/// On a server, which is slower, and whose network fails too.
async fn assert_weathered_on_server(place: Place, [long, short]: [usize; 2]) {
    let network = Arc::new(FaultProxy::before(place.url()).await.unwrap());
    let behind = place.endpoint_by(&network.url());
    let weather = Weather {
        messages: if is_long() { long } else { short },
        network: Some(network),
        ..calm(place.connect().await)
    };
    assert_weathered(&storm(weather, async || behind.connect().await.unwrap()).await);
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_in_memory() {
    let store = MemoryStore::new();
    let open = async || MessagingProvider::Memory(store.open());
    assert_weathered(&storm(calm(open().await), open).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_sqlite() {
    let place = Place::sqlite();
    let open = async || place.connect().await;
    assert_weathered(&storm(calm(open().await), open).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_on_a_spool() {
    let place = Place::spool();
    let open = async || place.connect().await;
    assert_weathered(&storm(calm(open().await), open).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_reordered_on_postgres() {
    assert_weathered_on_server(Place::postgres(), DATABASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_on_mariadb() {
    assert_weathered_on_server(Place::mariadb().await, DATABASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_on_pgmq() {
    assert_weathered_on_server(Place::pgmq(), DATABASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_doubled_or_reordered_on_sqs() {
    assert_weathered_on_server(Place::sqs(), BROKER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the storm on every store: scripts/test --full"]
async fn nothing_is_lost_or_reordered_on_rabbitmq() {
    assert_weathered_on_server(Place::rabbitmq().await, BROKER).await;
}

/// The same storm on stores that keep everything but one rule: the checker must say so.
#[tokio::test(start_paused = true)]
async fn a_storm_shows_what_a_broken_store_does() {
    async fn verdict_on(store: SimulatedStore) -> Verdict {
        let open = async || MessagingProvider::custom(store.open().await.unwrap());
        let weather = Weather { sender: open().await, messages: 400, most_generations: 4, network: None };
        storm(weather, open).await.verdict
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
