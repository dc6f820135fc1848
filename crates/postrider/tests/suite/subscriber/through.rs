//! The suite of the law, run through a subscriber.
//!
//! A provider whose every receive is a subscriber of its own (fetched, put in line, taken by workers, and then taken
//! from them) and whose every settle goes through the outbox of another. What the suite finds of a provider it must find
//! through this one. Leases are not renewed here, because the suite waits for them to run out, and the suite's
//! settlements stand in for handlers' answers: what handlers, decisions and renewals add is tried by the subscriber's own
//! tests.

mod forward;
mod receiving;
mod settling;

use std::sync::Arc;

use postrider::*;
use postrider_conformance::{Observer, Settings, StormSettings, exercise};

use crate::place::Place;
use settling::Settling;

/// A provider that is reached through subscribers only.
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
    let storm = StormSettings { messages: 300, senders: 2, receivers: 3 };
    // Shown when the run is cut off: the tests that have ended by then.
    let observer: Observer = Arc::new(|test, ended, of| eprintln!("{ended} of {of}: {}", test.name));
    Settings { storm, observer: Some(observer), ..Settings::default() }
}

/// Tries the whole law on a store that is reached through subscribers.
async fn assert_lawful(place: Place, settings: Settings) {
    let endpoint = place.endpoint();
    let through = move || {
        let endpoint = endpoint.clone();
        async move { Ok(Through::new(endpoint.connect().await?)) }
    };
    let report = exercise(through, settings).await.unwrap();
    assert!(report.is_lawful(), "{report}");
    place.remove().await;
}

#[tokio::test(start_paused = true)]
async fn the_law_holds_through_a_subscriber_in_memory() {
    assert_lawful(Place::memory(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_sqlite() {
    assert_lawful(Place::sqlite(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_a_spool() {
    assert_lawful(Place::spool(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_postgres() {
    assert_lawful(Place::postgres(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_mariadb() {
    assert_lawful(Place::mariadb().await, settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_pgmq() {
    assert_lawful(Place::pgmq(), settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law through the subscriber on every store: scripts/test --full"]
async fn the_law_holds_through_a_subscriber_on_sqs() {
    // An emulator in Python, ten messages a call.
    assert_lawful(Place::sqs(), Settings { rows: 1000, ..settings() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_through_a_subscriber_on_rabbitmq() {
    assert_lawful(Place::rabbitmq().await, settings()).await;
}
