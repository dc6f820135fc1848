//! What a subscriber costs that has nothing to do.

use std::path::Path;
use std::time::Duration;

use postrider_core::{SharedProvider, failpoint};
use postrider_subscriber::Subscriber;

use super::{Crew, Store};
use crate::fixture::{handler, queue, start};

/// How long it is watched.
const WATCHED: Duration = Duration::from_secs(3);
/// The most of one processor that it may take, in percent. A build for debugging does the same little with more steps.
const MOST_PERCENT: u64 = if cfg!(debug_assertions) { 3 } else { 1 };

async fn idling_costs_a_look_a_second_and_no_processor(store: Store) {
    let mut crew = Crew::on(store, "idle").await;
    let (number, worker) = crew.start();
    assert!(worker.wait().unwrap());
    let report = std::fs::read_to_string(crew.journal(number)).unwrap();
    let numbers: Vec<u64> = report.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [queries, processor_ms, watched_ms] = numbers[..] else { panic!("{report}") };
    println!("{queries} queries and {processor_ms} ms of the processor in {watched_ms} ms");
    // A look may be due at either end of the time: in three seconds, four.
    assert!((1..=watched_ms / 1000 + 1).contains(&queries), "{queries} queries in {watched_ms} ms");
    assert!(processor_ms * 100 <= watched_ms * MOST_PERCENT, "{processor_ms} ms of the processor in {watched_ms} ms");
}

#[tokio::test]
async fn an_idle_subscriber_costs_a_query_a_second_and_no_processor() {
    idling_costs_a_look_a_second_and_no_processor(Store::File).await;
}

#[tokio::test]
#[ignore = "processes on every store: scripts/test --full"]
async fn an_idle_subscriber_of_a_spool_costs_a_look_a_second_and_no_processor() {
    idling_costs_a_look_a_second_and_no_processor(Store::Folder).await;
}

/// The worker's side: watches itself being idle.
pub(super) async fn be_idle(provider: SharedProvider, report: &Path) {
    let subscriber = Subscriber::builder(provider, queue()).handler(handler(|_| async { Ok(()) })).build().unwrap();
    let running = start(subscriber);
    // The first looks, before and after it is registered for hints, belong to the start.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (began, queries, processor) = (tokio::time::Instant::now(), queries(), processor_ms());
    tokio::time::sleep(WATCHED).await;
    let watched = began.elapsed().as_millis();
    let text = format!("{} {} {watched}", self::queries() - queries, processor_ms() - processor);
    running.stop().await;
    std::fs::write(report, text).unwrap();
}

/// Transactions so far, of the writer and of readers (the look at `data_version` is in neither), or locks of a queue.
fn queries() -> u64 {
    failpoint::passed("sqlite.begin") + failpoint::passed("sqlite.read") + failpoint::passed("spool.lock")
}

/// The processor's time that this process has had, in all threads.
fn processor_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name before the last parenthesis may hold anything; user and system time are the 12th and 13th after it.
    let fields: Vec<_> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    // Linux counts a hundred ticks a second on every platform that Rust supports.
    ticks * 10
}
