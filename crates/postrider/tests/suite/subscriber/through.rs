//! The conformance suite, run through a subscriber.
//!
//! A provider whose every receive is a new subscriber (messages are fetched, buffered, given to workers, and then taken
//! from these) and whose every settle goes through the outbox of another one. The suite must have the same results
//! through it. Leases are not renewed here, because the suite waits for their expiry, and the suite's settlements
//! replace handlers' results: handlers, decisions and renewals have the subscriber's own tests.

mod forward;
mod receiving;
mod settling;

use std::sync::Arc;

use postrider::*;
use postrider_conformance::{Observer, Settings, StormSettings, exercise};

use crate::test_store::TestStore;
use settling::Settling;

/// A provider reached only through subscribers.
struct Through<P> {
    inner: P,
    settling: Settling,
}

impl<P: Provider + Clone> Through<P> {
    fn new(inner: P) -> Self {
        Self { settling: Settling::start(inner.clone()), inner }
    }
}

fn settings() -> Settings {
    let storm = StormSettings::small(300);
    // Shows the finished tests when the run is cut off.
    let observer: Observer = Arc::new(|test, ended, of| eprintln!("{ended} of {of}: {}", test.name));
    Settings { storm, observer: Some(observer), ..Settings::default() }
}

/// Tests the whole law on a store reached through subscribers.
async fn assert_lawful(store: TestStore, settings: Settings) {
    let endpoint = store.endpoint();
    let through = move || {
        let endpoint = endpoint.clone();
        async move { Ok(Through::new(endpoint.connect().await?)) }
    };
    let report = exercise(through, settings).await.unwrap();
    assert!(report.is_lawful(), "{report}");
    store.remove().await;
}

#[tokio::test(start_paused = true)]
async fn the_law_holds_through_a_subscriber_in_memory() {
    assert_lawful(TestStore::memory(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_sqlite() {
    assert_lawful(TestStore::sqlite(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_a_spool() {
    assert_lawful(TestStore::spool(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_postgres() {
    assert_lawful(TestStore::postgres(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_mariadb() {
    assert_lawful(TestStore::mariadb().await, settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_pgmq() {
    assert_lawful(TestStore::pgmq(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_sqs() {
    // An emulator in Python, ten messages a call.
    assert_lawful(TestStore::sqs(), Settings { rows: 1000, ..settings() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_rabbitmq() {
    assert_lawful(TestStore::rabbitmq().await, settings()).await;
}
