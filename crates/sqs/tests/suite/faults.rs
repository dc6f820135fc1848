//! Network faults between client and SQS: no accepted message is lost.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::faults::{
    Fault, lost_answers_are_told, silence_is_given_up, storm_through, until_an_answer_is_lost,
};
use postrider_conformance::{Settings, StormReport, StormSettings};
use postrider_core::MessagingError;
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};

use crate::{Emulator, TestStore, is_long};

/// Opens a provider by a URL, whose calls end after this time.
fn with(call_timeout: Duration) -> impl Fn(String) -> BoxFuture<'static, Result<SqsProvider, MessagingError>> {
    move |url| {
        let options = SqsOptions { call_timeout, ..SqsOptions::default() };
        Box::pin(async move { SqsStore::open(&url, options).await?.connect() })
    }
}

/// A storm on a queue of its own.
async fn storm_under(fault: Fault) -> StormReport {
    let store = TestStore::new(Emulator::Ministack);
    let storm = StormSettings::small(if is_long() { 5_000 } else { 100 });
    let settings = Settings { storm, unit: Duration::from_secs(1), ..Settings::default() };
    // Long enough for a local emulator, and short because an interrupted copy hides its message for three times as long.
    let open = with(Duration::from_secs(3));
    let report = storm_through(fault, &store.url(), open, &settings).await.unwrap();
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
        let open = with(SqsOptions::default().call_timeout);
        if let Err(breach) = lost_answers_are_told(&store.url(), open).await {
            panic!("{emulator:?}: {breach}");
        }
        store.delete_queues().await;
    }
}

#[tokio::test]
async fn an_endpoint_that_falls_silent_is_given_up() {
    let store = TestStore::new(Emulator::Ministack);
    silence_is_given_up(&store.url(), with(Duration::from_secs(1))).await.unwrap();
    store.delete_queues().await;
}
