//! The whole law, on the emulators.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::guarantees::Section;
use postrider_conformance::proxy::FaultProxy;
use postrider_conformance::{Harness, Outcome, Settings, StormSettings};
use postrider_core::{Feature, MessagingError, QueueAdmin};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};

use crate::{Emulator, TestStore, is_long, soon};

/// A harness in which every worker opens its own store, as other processes do, through a proxy that can be cut.
struct Apart {
    proxy: FaultProxy,
    options: SqsOptions,
}

impl Harness for Apart {
    type Provider = SqsProvider;

    async fn open(&self) -> Result<SqsProvider, MessagingError> {
        SqsStore::open(&self.proxy.url(), self.options.clone()).await?.connect()
    }

    /// Cuts every connection in a loop.
    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Some(Box::pin(async {
            for _ in 0..20 {
                self.proxy.cut();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        }))
    }
}

/// Runs the suite. `unfit` are the tests whose outcome depends on the emulator alone.
async fn law_on(emulator: Emulator, options: SqsOptions, settings: Settings, unfit: &[&str]) -> Section {
    // Eleven characters: the guarantees page states the longest queue name for a prefix of this length.
    let store = TestStore { emulator, prefix: format!("law{:07x}-", rand::random::<u32>() >> 4) };
    let harness = Apart { proxy: FaultProxy::before(&store.url()).await.unwrap(), options };
    let tried = "Tried on an **emulator**, ministack, and with fewer messages on a second one, moto; not on Amazon's service. \
                 Neither can show what the service alone does: messages that a standard queue hands out twice or out of \
                 order, counts that lag, throttling, what becomes of a late receipt there. Moto deletes by a late receipt, \
                 which our own fence keeps from being sent, and hands one message to two who receive at the same moment, \
                 so that is not judged there. Every worker opens the queues for itself, as other processes do; for L14 \
                 all of their connections are cut, again and again. [More about it](sqs.md).";
    let section = Section::of(harness, settings, tried).await.unwrap();
    let report = &section.report;
    println!("{report}");
    let refused: Vec<_> = report.capabilities.iter().filter(|(_, support)| !support.is_offered()).collect();
    let refused: Vec<_> = refused.iter().map(|(feature, _)| *feature).collect();
    let never = [
        Feature::FreeRelease,
        Feature::Priority,
        Feature::AttemptHistory,
        Feature::Archive,
        Feature::WaitingMessages,
        Feature::ReceiveById,
        Feature::WakeUp,
    ];
    assert_eq!(refused, never);
    for rule in &report.rules {
        for test in &rule.tests {
            let is_refused = matches!(test.outcome, Outcome::Refused(_));
            // A dedup key is taken for five minutes, even after its message is settled; and the clock of a worker is this
            // host's, which cannot be set for one worker.
            let is_untried = matches!(test.outcome, Outcome::NotExercised(_))
                && (test.name.contains("dedup_key")
                    || test.name == "l16_a_workers_clock_moves_no_lease_and_no_due_time");
            let is_unfit = unfit.contains(&test.name);
            assert!(test.outcome == Outcome::Holds || is_refused || is_untried || is_unfit, "{}: {report}", test.name);
        }
    }
    let left = store.connect().await.list_queues(soon()).await.unwrap();
    assert_eq!(left, [], "the suite left queues behind");
    section
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_on_ministack_and_nothing_is_left_behind() {
    let (messages, rows) = if is_long() { (2000, 7000) } else { (500, 1000) };
    let storm = StormSettings { messages, ..StormSettings::default() };
    let settings = Settings { parallel: 32, storm, rows, ..Settings::default() };
    law_on(Emulator::Ministack, SqsOptions::default(), settings, &[]).await.record().unwrap();
}

/// Moto scans all messages of a queue for each that it delivers, without a lock: concurrent calls deliver one message
/// twice. So there are few messages, one call at a time for a batch, and concurrent receives are not judged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law again, on a second emulator: scripts/test --full"]
async fn every_rule_but_concurrent_receives_holds_on_moto_and_nothing_is_left_behind() {
    let storm = StormSettings { messages: 60, senders: 1, receivers: 1 };
    let options = SqsOptions { parallel_calls: 1, ..SqsOptions::default() };
    let settings = Settings { parallel: 32, storm, rows: 60, ..Settings::default() };
    law_on(Emulator::Moto, options, settings, &["l2_concurrent_receivers_share_nothing"]).await;
}
