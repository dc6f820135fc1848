//! The whole law, on a server.

use std::time::Duration;

use futures_util::future::BoxFuture;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use postrider_conformance::guarantees::Section;
use postrider_conformance::model::{TimedHarness, compare_with_model};
use postrider_conformance::{Harness, IdempotencyHarness, Outcome, Settings, exercise_idempotency};
use postrider_core::{MessagingError, QueueAdmin, QueueName};
use postrider_mysql::{MysqlProvider, MysqlStore, mysql_async};

use crate::{Fixture, database_url, is_long, options, soon};

/// Every worker opens the database itself, like another process.
struct SeparateProcesses {
    name: String,
}

impl Harness for SeparateProcesses {
    type Provider = MysqlProvider;

    async fn open(&self) -> Result<MysqlProvider, MessagingError> {
        MysqlStore::open(&database_url(&self.name), options()).await?.connect()
    }

    /// Ends the sessions of the test's workers repeatedly.
    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Some(Box::pin(async {
            let mut killer = Conn::from_url(crate::url()).await.expect("a connection");
            let sessions = format!("select id from information_schema.processlist where db = '{}'", self.name);
            for _ in 0..20 {
                let ids: Vec<u64> = killer.query(&sessions).await.expect("the right to see sessions");
                for id in ids {
                    // It may have ended by itself.
                    let _ = killer.query_drop(format!("kill {id}")).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        }))
    }
}

/// Cannot be tested: no statement uses a worker's clock.
const UNTRIED: &str = "l16_a_workers_clock_moves_no_lease_and_no_due_time";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_and_the_database_is_left_clean() {
    let fixture = Fixture::new();
    let harness = SeparateProcesses { name: fixture.name.clone() };
    let settings = Settings { parallel: 4, ..Settings::default() };
    let tried = "Tried on MariaDB. Every worker opens the database for itself, as other processes do. For L14 the server \
                 ends all of their sessions, again and again. [More about it](mysql.md).";
    let section = Section::of(harness, settings, tried).await.unwrap();
    let report = &section.report;
    for rule in &report.rules {
        assert_eq!(rule.outcome, Outcome::Holds, "{report}");
        for test in rule.tests.iter().filter(|test| test.name != UNTRIED) {
            assert_eq!(test.outcome, Outcome::Holds, "{}: {report}", test.name);
        }
    }
    let left = fixture.connect().await.list_queues(soon()).await.unwrap();
    assert_eq!(left, [], "the suite left queues behind");
    section.record().unwrap();
}

/// A database with a manual clock: stored times are moved into the past.
struct ManualClock {
    name: String,
}

/// The columns that hold times, by table.
const TIMES: &[(&str, &[&str])] = &[
    ("message", &["next_attempt_at", "created_at", "first_attempt_at", "last_attempt_at", "acquired_at", "expires_at"]),
    ("dead_letter", &["created_at", "first_attempt_at", "last_attempt_at", "dead_at"]),
    ("idempotency", &["at"]),
];

impl ManualClock {
    async fn elapse(&self, time: Duration) {
        let mut client = Conn::from_url(database_url(&self.name)).await.expect("a connection");
        for (table, columns) in TIMES {
            let back = |column: &&str| format!("{column} = {column} - interval {} microsecond", time.as_micros());
            let columns = columns.iter().map(back).collect::<Vec<_>>().join(", ");
            client.query_drop(format!("update {table} set {columns}")).await.expect("time passes");
        }
        client.disconnect().await.expect("an end");
    }
}

impl Harness for ManualClock {
    type Provider = MysqlProvider;

    async fn open(&self) -> Result<MysqlProvider, MessagingError> {
        MysqlStore::open(&database_url(&self.name), options()).await?.connect()
    }
}

impl TimedHarness for ManualClock {
    fn short(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn elapse<'a>(&'a self, time: Duration, _: &'a QueueName) -> BoxFuture<'a, Result<(), MessagingError>> {
        Box::pin(async move {
            self.elapse(time).await;
            Ok(())
        })
    }
}

#[test]
fn it_does_what_the_model_does() {
    let fixture = Fixture::new();
    let cases = if is_long() { 1000 } else { 40 };
    compare_with_model(&ManualClock { name: fixture.name.clone() }, cases, 11).unwrap();
}

impl IdempotencyHarness for ManualClock {
    type Store = MysqlProvider;

    async fn open(&self) -> Result<MysqlProvider, MessagingError> {
        Harness::open(self).await
    }

    async fn elapse(&self, time: Duration) {
        self.elapse(time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_kept_as_they_should_be() {
    let fixture = Fixture::new();
    for finding in exercise_idempotency(&ManualClock { name: fixture.name.clone() }).await {
        assert_eq!(finding.fault, None, "{finding}");
    }
}
