//! Network faults between client and broker: no accepted message is lost.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::faults::{
    Fault, lost_answers_are_told, silence_is_given_up, storm_through, until_an_answer_is_lost,
};
use postrider_conformance::{Settings, StormReport, StormSettings};
use postrider_core::{Deadline, MessagingError, MessagingService};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider, RabbitmqStore, lapin};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::{is_long, options, prefix, url};

/// Opens a provider with these options by a URL.
fn with(options: RabbitmqOptions) -> impl Fn(String) -> BoxFuture<'static, Result<RabbitmqProvider, MessagingError>> {
    move |url| {
        let options = options.clone();
        Box::pin(async move { RabbitmqStore::new(&url, options)?.connect().await })
    }
}

/// A storm on a queue of its own.
async fn storm_under(fault: Fault) -> StormReport {
    let options = RabbitmqOptions { heartbeat: Duration::from_secs(5), ..options() };
    let storm = StormSettings::small(if is_long() { 10_000 } else { 200 });
    let settings = Settings { storm, prefix: prefix(), ..Settings::default() };
    storm_through(fault, &url(), with(options), &settings).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_in_a_loop_lose_nothing() {
    storm_under(Fault::Cuts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_lose_nothing() {
    until_an_answer_is_lost(|| storm_under(Fault::LostAnswers)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_network_loses_nothing() {
    storm_under(Fault::Delays).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_for_seconds_loses_nothing() {
    storm_under(Fault::Away(Duration::from_secs(2))).await;
}

#[tokio::test]
async fn a_lost_answer_is_reported_as_an_unknown_outcome() {
    lost_answers_are_told(&url(), with(options())).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    let options = RabbitmqOptions { heartbeat: Duration::from_secs(1), ..options() };
    silence_is_given_up(&url(), with(options)).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_is_accepted_and_never_answered_is_tried_again() {
    let broker: lapin::uri::AMQPUri = url().parse().unwrap();
    let port = broker.authority.port;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let behind = url().replace(&format!(":{port}"), &format!(":{}", listener.local_addr().unwrap().port()));
    let serving = tokio::spawn(async move {
        let _silent = listener.accept().await.unwrap();
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let options = RabbitmqOptions { connection_timeout: Duration::from_secs(60), ..options() };
    let begun = Instant::now();
    let provider = RabbitmqStore::new(&behind, options).unwrap().connect().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    provider.close(Deadline::after(Duration::from_secs(20))).await.unwrap();
    serving.abort();
}
