//! The whole law, on a server.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::guarantees::Section;
use postrider_conformance::model::{TimedHarness, compare_with_model};
use postrider_conformance::{
    Harness, IdempotencyHarness, Outcome, Settings, StateRecordsHarness, exercise_idempotency, exercise_state_records,
};
use postrider_core::{MessagingError, QueueAdmin, QueueName};
use postrider_postgres::{PostgresProvider, PostgresStateRecords, PostgresStore};

use crate::{Fixture, client, is_long, options, soon, url};

/// Every worker opens the database itself, like another process.
struct SeparateProcesses {
    schema: String,
}

impl Harness for SeparateProcesses {
    type Provider = PostgresProvider;

    async fn open(&self) -> Result<PostgresProvider, MessagingError> {
        PostgresStore::open(&url(), options(&self.schema)).await?.connect()
    }

    /// Ends the sessions of the test's workers repeatedly.
    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Some(Box::pin(async {
            let killer = client().await;
            let kill = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1";
            for _ in 0..20 {
                killer.query(kill, &[&self.schema]).await.expect("the right to end own sessions");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        }))
    }
}

/// Cannot be tested: no statement uses a worker's clock.
const UNTRIED: &str = "l16_a_workers_clock_moves_no_lease_and_no_due_time";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_and_the_schema_is_left_clean() {
    let fixture = Fixture::new();
    let harness = SeparateProcesses { schema: fixture.schema.clone() };
    let settings = Settings { parallel: 4, ..Settings::default() };
    let tried = "Every worker opens the schema for itself, as other processes do. For L14 the server ends all of their \
                 sessions, again and again. [More about it](postgres.md).";
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

/// A schema with a manual clock: its function adds the time that the test lets pass.
pub(crate) struct ManualClock {
    pub(crate) schema: String,
}

impl ManualClock {
    /// Moves the clock of a schema.
    pub(crate) async fn elapse(&self, time: Duration) {
        let schema = &self.schema;
        let micros = time.as_micros();
        client()
            .await
            .batch_execute(&format!(
                "create table if not exists {schema}.passed (time interval);
                 insert into {schema}.passed values ({micros} * interval '1 microsecond');
                 create or replace function {schema}.clock() returns timestamptz language sql stable as
                 'select pg_catalog.statement_timestamp() + coalesce((select sum(time) from {schema}.passed), ''0'')'"
            ))
            .await
            .unwrap();
    }
}

impl Harness for ManualClock {
    type Provider = PostgresProvider;

    async fn open(&self) -> Result<PostgresProvider, MessagingError> {
        PostgresStore::open(&url(), options(&self.schema)).await?.connect()
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
    compare_with_model(&ManualClock { schema: fixture.schema.clone() }, cases, 11).unwrap();
}

impl IdempotencyHarness for ManualClock {
    type Store = PostgresProvider;

    async fn open(&self) -> Result<PostgresProvider, MessagingError> {
        Harness::open(self).await
    }

    async fn elapse(&self, time: Duration) {
        self.elapse(time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_kept_as_they_should_be() {
    let fixture = Fixture::new();
    for finding in exercise_idempotency(&ManualClock { schema: fixture.schema.clone() }).await {
        assert_eq!(finding.fault, None, "{finding}");
    }
}

impl StateRecordsHarness for ManualClock {
    type Store = PostgresStateRecords;

    async fn open(&self) -> Result<PostgresStateRecords, MessagingError> {
        Ok(PostgresStateRecords::new(Harness::open(self).await?))
    }

    async fn elapse(&self, time: Duration) {
        self.elapse(time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_records_are_kept_as_they_should_be() {
    let fixture = Fixture::new();
    for finding in exercise_state_records(&ManualClock { schema: fixture.schema.clone() }).await {
        assert_eq!(finding.fault, None, "{finding}");
    }
}
