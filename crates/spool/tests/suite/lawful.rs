//! The whole law, in a folder.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::guarantees::Section;
use postrider_conformance::model::{TimedHarness, compare_with_model};
use postrider_conformance::{Harness, Outcome, Settings};
use postrider_core::{ManualClock, MessagingError, QueueAdmin, QueueName};
use postrider_spool::{SpoolOptions, SpoolProvider, SpoolStore, Watch};

use crate::{Scratch, soon};

/// A harness in which every worker opens its own store, as other processes do.
struct Apart {
    spool: PathBuf,
    watch: Watch,
}

impl Apart {
    fn options(&self) -> SpoolOptions {
        let poll_interval = Duration::from_millis(50);
        SpoolOptions { watch: self.watch, poll_interval, ..SpoolOptions::default() }
    }
}

impl Harness for Apart {
    type Provider = SpoolProvider;

    async fn open(&self) -> Result<SpoolProvider, MessagingError> {
        SpoolStore::open(&self.spool, self.options()).await?.connect()
    }

    /// There is no server to restart: the folder is removed for a moment, as an unmounted disk is.
    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Some(Box::pin(async {
            let away = self.spool.with_extension("away");
            std::fs::rename(&self.spool, &away).expect("the folder can be taken away");
            tokio::time::sleep(Duration::from_millis(300)).await;
            std::fs::rename(&away, &self.spool).expect("the folder can be put back");
            Ok(())
        }))
    }
}

async fn every_rule_holds(watch: Watch) -> Section {
    let scratch = Scratch::new();
    let tried = "Every worker opens the folder for itself, as other processes do. There is no server to restart: for L14 \
                 the folder is renamed away and put back. [More about it](spool.md).";
    let harness = Apart { spool: scratch.spool(), watch };
    let section = Section::of(harness, Settings::default(), tried).await.unwrap();
    let report = &section.report;
    for rule in &report.rules {
        assert_eq!(rule.outcome, Outcome::Holds, "{report}");
        for test in &rule.tests {
            // All workers share the clock of one host.
            let is_untried = test.name == "l16_a_workers_clock_moves_no_lease_and_no_due_time";
            let is_expected = match test.outcome {
                Outcome::NotExercised(_) => is_untried,
                // A file has one error, and is removed when its message is settled.
                Outcome::Refused(_) => [
                    "failed_attempt",
                    "archive",
                    "kept_after_its_end",
                    "by_hand",
                    "from_its_worker",
                    "deleted",
                    "delivered_now",
                    "waiting_messages",
                ]
                .iter()
                .any(|what| test.name.contains(what)),
                _ => !is_untried && test.outcome == Outcome::Holds,
            };
            assert!(is_expected, "{}: {report}", test.name);
        }
    }
    let left = scratch.connect().await.list_queues(soon()).await.unwrap();
    assert_eq!(left, [], "the suite left queues behind");
    let files: Vec<_> = std::fs::read_dir(scratch.spool()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(files.is_empty(), "the suite left files behind: {files:?}");
    section
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_and_the_folder_is_left_clean() {
    every_rule_holds(Watch::Auto).await.record().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law again, by polling: scripts/test --full"]
async fn every_rule_holds_where_there_is_no_inotify() {
    every_rule_holds(Watch::Poll).await;
}

/// A spool with a manual clock.
struct ByHand {
    store: SpoolStore,
    clock: ManualClock,
}

impl Harness for ByHand {
    type Provider = SpoolProvider;

    async fn open(&self) -> Result<SpoolProvider, MessagingError> {
        self.store.connect()
    }
}

impl TimedHarness for ByHand {
    fn elapse<'a>(&'a self, time: Duration, _: &'a QueueName) -> BoxFuture<'a, Result<(), MessagingError>> {
        self.clock.advance(time);
        Box::pin(std::future::ready(Ok(())))
    }
}

#[test]
fn it_does_what_the_model_does() {
    let scratch = Scratch::in_memory();
    for watch in [Watch::Auto, Watch::Poll] {
        let clock = ManualClock::default();
        let options = SpoolOptions { clock: Arc::new(clock.clone()), watch, ..SpoolOptions::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(SpoolStore::open(scratch.spool(), options)).unwrap();
        let cases = if crate::is_long() { 5000 } else { 250 };
        compare_with_model(&ByHand { store, clock }, cases, 11).unwrap();
    }
}
