//! Network faults lose nothing that was accepted.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::faults::{
    Fault, lost_answers_are_told, silence_is_given_up, storm_through, until_an_answer_is_lost,
};
use postrider_conformance::proxy::FaultProxy;
use postrider_conformance::{Settings, StormReport, StormSettings};
use postrider_core::{Deadline, Message, MessageId, MessagingError, MessagingService, ReceiveOptions};
use postrider_postgres::{PostgresOptions, PostgresProvider, PostgresStore};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::wake_ups::listening;
use crate::{Fixture, is_long, queue, soon, url};

const PATIENCE: Duration = Duration::from_secs(20);

/// Opens a provider with these options by a URL.
fn with(options: PostgresOptions) -> impl Fn(String) -> BoxFuture<'static, Result<PostgresProvider, MessagingError>> {
    move |url| {
        let options = options.clone();
        Box::pin(async move { PostgresStore::open(&url, options).await?.connect() })
    }
}

/// A storm in a schema of its own.
async fn storm_under(fault: Fault) -> StormReport {
    let fixture = Fixture::new();
    let storm = StormSettings::small(if is_long() { 10_000 } else { 200 });
    let settings = Settings { storm, ..Settings::default() };
    storm_through(fault, &url(), with(fixture.options()), &settings).await.unwrap()
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
    let options = PostgresOptions { pool_size: 1, ..fixture.options() };
    lost_answers_are_told(&url(), with(options)).await.unwrap();
}

/// Starts a receiver behind the proxy, which waits and listens. It fails if it receives nothing.
async fn waiting(fixture: &Fixture, proxy: &FaultProxy, poll_interval: Duration) -> JoinHandle<MessageId> {
    // A short timeout: the answer of a look may be lost.
    let options = PostgresOptions { poll_interval, statement_timeout: Duration::from_secs(2), ..fixture.options() };
    let receiver = PostgresStore::open(&proxy.url(), options).await.unwrap().connect().unwrap();
    let options = ReceiveOptions::default().wait(Deadline::DEFAULT);
    let received = tokio::spawn(async move {
        loop {
            match receiver.receive_messages(&queue("orders"), &options, soon()).await {
                Ok(messages) => return messages.first().expect("the receiver was not woken").id(),
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    });
    listening(fixture).await;
    received
}

/// A sender that does not use the proxy, whose sessions have another name.
async fn beside(fixture: &Fixture) -> PostgresProvider {
    fixture.connect_with(PostgresOptions { application_name: Some("beside".into()), ..fixture.options() }).await
}

#[tokio::test]
async fn wake_ups_come_back_after_the_listening_connection_was_cut() {
    let fixture = Fixture::new();
    let proxy = FaultProxy::before(&url()).await.unwrap();
    // So long that the receiver is not woken by its poll.
    let received = waiting(&fixture, &proxy, PATIENCE * 10).await;
    let first = listening(&fixture).await;
    proxy.cut();
    let end = Instant::now() + PATIENCE;
    while listening(&fixture).await == first {
        assert!(Instant::now() < end, "it does not listen again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let sender = beside(&fixture).await;
    let id = sender.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    assert_eq!(received.await.unwrap(), id);
}

#[tokio::test]
async fn polling_covers_the_time_without_wake_ups() {
    let fixture = Fixture::new();
    let proxy = FaultProxy::before(&url()).await.unwrap();
    let received = waiting(&fixture, &proxy, Duration::from_millis(500)).await;
    let sender = beside(&fixture).await;
    // The wake-up is lost, and the connection stays.
    proxy.drop_replies();
    let id = sender.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    proxy.reply_was_lost().await;
    proxy.restore();
    assert_eq!(received.await.unwrap(), id);
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    let fixture = Fixture::new();
    // Create the tables with the default timeouts.
    drop(fixture.connect().await);
    let options = PostgresOptions { pool_size: 2, statement_timeout: Duration::from_secs(1), ..fixture.options() };
    silence_is_given_up(&url(), with(options)).await.unwrap();
}
