//! Network faults lose nothing that was accepted.

use std::time::Duration;

use futures_util::future::join_all;
use postrider_conformance::faults::{
    Fault, STEPS, lost_answers_are_told, silence_is_given_up, storm_through, until_an_answer_is_lost,
};
use postrider_conformance::proxy::FaultProxy;
use postrider_conformance::{Settings, StormReport, StormSettings};
use postrider_pgmq::{PgmqOptions, PgmqStore};

use crate::{Fixture, is_long, url};

/// A storm on a queue of its own.
async fn storm_under(fault: Fault) -> StormReport {
    let fixture = Fixture::new();
    let options = fixture.options();
    let open = move |url: String| {
        let options = options.clone();
        async move { PgmqStore::open(&url, options).await?.connect() }
    };
    let messages = if is_long() { 10_000 } else { 200 };
    let storm = StormSettings { messages, senders: 2, receivers: 3 };
    let settings = Settings { storm, prefix: fixture.schema.clone(), ..Settings::default() };
    let report = storm_through(fault, &url(), open, &settings).await.unwrap();
    let verdict = &report.verdict;
    assert!(verdict.is_clean() && verdict.counts.live == 0, "seed {}: {verdict}", report.seed);
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_in_a_loop_lose_nothing() {
    storm_under(Fault::Cuts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_lose_and_double_nothing() {
    until_an_answer_is_lost(|| storm_under(Fault::LostAnswers)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_network_loses_nothing() {
    storm_under(Fault::Delays).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_for_seconds_loses_nothing() {
    storm_under(Fault::Away(Duration::from_secs(2))).await;
}

#[tokio::test]
async fn a_lost_answer_is_told_as_an_unknown_outcome() {
    let fixture = Fixture::new();
    let proxy = FaultProxy::before(&url()).await.unwrap();
    // One connection, so that the warm one is used.
    let options = PgmqOptions { pool_size: 1, ..fixture.options() };
    let provider = PgmqStore::open(&proxy.url(), options).await.unwrap().connect().unwrap();
    let told = lost_answers_are_told(&proxy, &provider).await.unwrap();
    assert!(told.unknown_sends > 0 && told.carried_out > 0 && told.unknown_acks > 0, "{told:?}");
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    let fixture = Fixture::new();
    // Create the tables with the default timeouts.
    drop(fixture.connect().await);
    let tries = (0..STEPS).map(|passing| {
        let fixture = &fixture;
        async move {
            let proxy = FaultProxy::before(&url()).await.unwrap();
            let options = PgmqOptions { pool_size: 2, statement_timeout: Duration::from_secs(1), ..fixture.options() };
            let provider = PgmqStore::open(&proxy.url(), options).await.unwrap().connect().unwrap();
            silence_is_given_up(&proxy, &provider, passing).await
        }
    });
    for outcome in join_all(tries).await {
        outcome.unwrap();
    }
}
