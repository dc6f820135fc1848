//! Network faults between client and broker: no accepted message is lost.

use std::time::Duration;

use futures_util::future::join_all;
use postrider_conformance::faults::{
    Fault, STEPS, lost_answers_are_told, silence_is_given_up, storm_through, until_an_answer_is_lost,
};
use postrider_conformance::proxy::FaultProxy;
use postrider_conformance::{Settings, StormReport, StormSettings};
use postrider_core::{Deadline, MessagingService};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqStore, lapin};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::{is_long, options, prefix, url};

/// A storm on a queue of its own.
async fn storm_under(fault: Fault) -> StormReport {
    let prefix = prefix();
    let options = RabbitmqOptions { heartbeat: Duration::from_secs(5), ..options() };
    let open = move |url: String| {
        let options = options.clone();
        async move { RabbitmqStore::new(&url, options)?.connect().await }
    };
    let messages = if is_long() { 10_000 } else { 200 };
    let storm = StormSettings { messages, senders: 2, receivers: 3 };
    let settings = Settings { storm, prefix, ..Settings::default() };
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
    let proxy = FaultProxy::before(&url()).await.unwrap();
    let provider = RabbitmqStore::new(&proxy.url(), options()).unwrap().connect().await.unwrap();
    let told = lost_answers_are_told(&proxy, &provider).await.unwrap();
    assert!(told.unknown_sends > 0 && told.carried_out > 0 && told.unknown_acks > 0, "{told:?}");
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    let tries = (0..STEPS).map(|passing| async move {
        let proxy = FaultProxy::before(&url()).await.unwrap();
        let options = RabbitmqOptions { heartbeat: Duration::from_secs(1), ..options() };
        let provider = RabbitmqStore::new(&proxy.url(), options).unwrap().connect().await.unwrap();
        silence_is_given_up(&proxy, &provider, passing).await
    });
    for outcome in join_all(tries).await {
        outcome.unwrap();
    }
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
