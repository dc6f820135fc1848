//! The cost of an idle subscriber.

use std::path::Path;
use std::time::Duration;

use postrider_core::{SharedProvider, failpoint};
use postrider_subscriber::Subscriber;

use super::{Store, WorkerProcesses};
use crate::fixture::{handler, queue, start};

/// Time of the measurement.
const WATCHED: Duration = Duration::from_secs(3);
/// Upper bound of its share of one processor, in percent. A debug build needs more steps for the same work.
const MAX_PERCENT: u64 = if cfg!(debug_assertions) { 3 } else { 1 };

async fn idling_costs_a_query_a_second_and_no_processor(store: Store) {
    let mut workers = WorkerProcesses::on(store, "idle").await;
    let (number, worker) = workers.start();
    assert!(worker.wait().unwrap());
    let report = std::fs::read_to_string(workers.journal(number)).unwrap();
    let numbers: Vec<u64> = report.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [queries, processor_ms, watched_ms] = numbers[..] else { panic!("{report}") };
    println!("{queries} queries and {processor_ms} ms of the processor in {watched_ms} ms");
    // A query may be due at both ends of the time: four in three seconds.
    assert!((1..=watched_ms / 1000 + 1).contains(&queries), "{queries} queries in {watched_ms} ms");
    assert!(processor_ms * 100 <= watched_ms * MAX_PERCENT, "{processor_ms} ms of the processor in {watched_ms} ms");
}

#[tokio::test]
async fn an_idle_subscriber_costs_a_query_a_second_and_no_processor() {
    idling_costs_a_query_a_second_and_no_processor(Store::File).await;
}

#[tokio::test]
#[ignore = "processes on every store: scripts/test --full"]
async fn an_idle_subscriber_of_a_spool_costs_a_query_a_second_and_no_processor() {
    idling_costs_a_query_a_second_and_no_processor(Store::Folder).await;
}

/// The worker process: measures itself while idle.
pub(super) async fn be_idle(provider: SharedProvider, report: &Path) {
    let subscriber = Subscriber::builder(provider, queue()).handler(handler(|_| async { Ok(()) })).build().unwrap();
    let running = start(subscriber);
    // The first fetches, before and after the subscription to hints, belong to the start.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (began, queries, processor) = (tokio::time::Instant::now(), queries(), processor_ms());
    tokio::time::sleep(WATCHED).await;
    let watched = began.elapsed().as_millis();
    let text = format!("{} {} {watched}", self::queries() - queries, processor_ms() - processor);
    running.stop().await;
    std::fs::write(report, text).unwrap();
}

/// Transactions so far, of the writer and of readers (a check of `data_version` is in neither), or locks of a queue.
fn queries() -> u64 {
    failpoint::passed("sqlite.begin") + failpoint::passed("sqlite.read") + failpoint::passed("spool.lock")
}

/// The processor time of this process, in all threads.
fn processor_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name before the last parenthesis may hold anything; user and system time are the 12th and 13th after it.
    let fields: Vec<_> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    // Linux counts a hundred ticks a second on every platform that Rust supports.
    ticks * 10
}
