//! The whole law, on a file.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::guarantees::Section;
use postrider_conformance::model::{TimedHarness, compare_with_model};
use postrider_conformance::{Harness, Outcome, Settings};
use postrider_core::{ManualClock, MessagingError, QueueAdmin, QueueName};
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore, rusqlite};

use crate::{TestStore, soon};

/// Every worker opens the file separately, as other processes do.
struct SeparateStores {
    file: PathBuf,
}

impl Harness for SeparateStores {
    type Provider = SqliteProvider;

    async fn open(&self) -> Result<SqliteProvider, MessagingError> {
        SqliteStore::open(&self.file, SqliteOptions::default()).await?.connect().await
    }

    /// Locks the file for a moment, as another program can: there is no server to restart.
    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Some(Box::pin(async {
            let other = rusqlite::Connection::open(&self.file).expect("the file can be opened");
            other.busy_timeout(Duration::from_secs(10)).expect("a time-out");
            other.execute_batch("begin immediate").expect("the lock");
            tokio::time::sleep(Duration::from_millis(300)).await;
            other.execute_batch("rollback").expect("the end of the lock");
            Ok(())
        }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_and_the_file_is_left_clean() {
    let test_store = TestStore::new();
    let tried = "Every worker opens the same file for itself, as other processes do. There is no server to restart: for L14 \
                 another program holds the file locked. [More about it](sqlite.md).";
    let section = Section::of(SeparateStores { file: test_store.file() }, Settings::default(), tried).await.unwrap();
    let report = &section.report;
    for rule in &report.rules {
        assert_eq!(rule.outcome, Outcome::Holds, "{report}");
        for test in &rule.tests {
            // All workers are on one host and share its clock, so no worker can have another one.
            let is_untried = test.name == "l16_a_workers_clock_moves_no_lease_and_no_due_time";
            let is_expected = match test.outcome {
                Outcome::NotExercised(_) => is_untried,
                _ => !is_untried && test.outcome == Outcome::Holds,
            };
            assert!(is_expected, "{}: {report}", test.name);
        }
    }
    let left = test_store.connect().await.list_queues(soon()).await.unwrap();
    assert_eq!(left, [], "the suite must delete its queues");
    section.record().unwrap();
}

/// A file with a clock that the test moves.
struct ManualClockHarness {
    store: SqliteStore,
    clock: ManualClock,
}

impl Harness for ManualClockHarness {
    type Provider = SqliteProvider;

    async fn open(&self) -> Result<SqliteProvider, MessagingError> {
        self.store.connect().await
    }
}

impl TimedHarness for ManualClockHarness {
    fn elapse<'a>(&'a self, time: Duration, _: &'a QueueName) -> BoxFuture<'a, Result<(), MessagingError>> {
        self.clock.advance(time);
        Box::pin(std::future::ready(Ok(())))
    }
}

#[test]
fn it_behaves_like_the_model() {
    let test_store = TestStore::in_memory();
    let clock = ManualClock::default();
    let options = SqliteOptions { clock: std::sync::Arc::new(clock.clone()), ..SqliteOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(SqliteStore::open(test_store.file(), options)).unwrap();
    let cases = if crate::is_long() { 5000 } else { 500 };
    compare_with_model(&ManualClockHarness { store, clock }, cases, 11).unwrap();
}
