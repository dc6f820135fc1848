//! Network faults between client and SQS: no accepted message is lost.

use std::time::Duration;

use futures_util::future::join_all;
use postrider_conformance::faults::{
    Fault, STEPS, lost_answers_are_told, silence_is_given_up, storm_through, until_an_answer_is_lost,
};
use postrider_conformance::proxy::FaultProxy;
use postrider_conformance::{Settings, StormReport, StormSettings};
use postrider_sqs::{SqsOptions, SqsStore};

use crate::{Emulator, TestStore, is_long};

/// A storm on a queue of its own.
async fn storm_under(fault: Fault) -> StormReport {
    let store = TestStore::new(Emulator::Ministack);
    let open = |url: String| async move {
        // Long enough for a local emulator, and short because an interrupted copy hides its message for three times as long.
        let options = SqsOptions { call_timeout: Duration::from_secs(3), ..SqsOptions::default() };
        SqsStore::open(&url, options).await?.connect()
    };
    let messages = if is_long() { 5_000 } else { 100 };
    let storm = StormSettings { messages, senders: 2, receivers: 3 };
    let settings = Settings { storm, unit: Duration::from_secs(1), ..Settings::default() };
    let report = storm_through(fault, &store.url(), open, &settings).await.unwrap();
    let verdict = &report.verdict;
    assert!(verdict.is_clean() && verdict.counts.live == 0, "{fault:?}, seed {}: {verdict}", report.seed);
    store.delete_queues().await;
    report
}

/// Three storms at the same time, because most of a storm is waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_is_cut_off_or_loses_answers_or_is_away_loses_no_message() {
    let away = Fault::Away(Duration::from_secs(2));
    let deprived = until_an_answer_is_lost(|| storm_under(Fault::LostAnswers));
    tokio::join!(storm_under(Fault::Cuts), deprived, storm_under(away));
}

#[tokio::test]
async fn a_lost_answer_is_reported_as_an_unknown_outcome() {
    for emulator in Emulator::ALL {
        let store = TestStore::new(emulator);
        let proxy = FaultProxy::before(&store.url()).await.unwrap();
        let provider = SqsStore::open(&proxy.url(), SqsOptions::default()).await.unwrap().connect().unwrap();
        let told = lost_answers_are_told(&proxy, &provider).await.unwrap();
        assert!(told.unknown_sends > 0 && told.carried_out > 0 && told.unknown_acks > 0, "{emulator:?}: {told:?}");
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn an_endpoint_that_falls_silent_is_given_up() {
    let store = TestStore::new(Emulator::Ministack);
    let tries = (0..STEPS).map(|passing| {
        let store = &store;
        async move {
            let proxy = FaultProxy::before(&store.url()).await.unwrap();
            let options = SqsOptions { call_timeout: Duration::from_secs(1), ..SqsOptions::default() };
            let provider = SqsStore::open(&proxy.url(), options).await.unwrap().connect().unwrap();
            silence_is_given_up(&proxy, &provider, passing).await
        }
    });
    for outcome in join_all(tries).await {
        outcome.unwrap();
    }
    store.delete_queues().await;
}
