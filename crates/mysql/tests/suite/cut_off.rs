//! Network faults lose nothing that was accepted.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::faults::{
    Fault, lost_answers_are_told, silence_is_given_up, storm_through, until_an_answer_is_lost,
};
use postrider_conformance::{Settings, StormReport, StormSettings};
use postrider_core::MessagingError;
use postrider_mysql::{MysqlOptions, MysqlProvider, MysqlStore};

use crate::{Fixture, is_long, options};

/// Opens a provider with these options by a URL.
fn with(options: MysqlOptions) -> impl Fn(String) -> BoxFuture<'static, Result<MysqlProvider, MessagingError>> {
    move |url| {
        let options = options.clone();
        Box::pin(async move { MysqlStore::open(&url, options).await?.connect() })
    }
}

/// A storm in a database of its own.
async fn storm_under(fault: Fault) -> StormReport {
    let fixture = Fixture::new();
    let storm = StormSettings::small(if is_long() { 10_000 } else { 200 });
    let settings = Settings { storm, ..Settings::default() };
    storm_through(fault, &fixture.url(), with(options()), &settings).await.unwrap()
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
    // One connection, so that the warm one is used.
    let options = MysqlOptions { pool_size: 1, ..options() };
    lost_answers_are_told(&fixture.url(), with(options)).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    let fixture = Fixture::new();
    // Create the tables with the default timeouts.
    drop(fixture.connect().await);
    let options = MysqlOptions { pool_size: 2, statement_timeout: Duration::from_secs(1), ..options() };
    silence_is_given_up(&fixture.url(), with(options)).await.unwrap();
}
