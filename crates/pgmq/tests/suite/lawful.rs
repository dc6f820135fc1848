//! The whole law, on a server.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::guarantees::Section;
use postrider_conformance::model::{TimedHarness, compare_with_model};
use postrider_conformance::{Harness, Outcome, Settings};
use postrider_core::{Feature, MessagingError, QueueAdmin, QueueName};
use postrider_pgmq::{PgmqProvider, PgmqStore};

use crate::{Fixture, client, is_long, options, soon, url};

/// Every worker opens the database itself, like another process.
struct SeparateProcesses {
    schema: String,
}

impl Harness for SeparateProcesses {
    type Provider = PgmqProvider;

    async fn open(&self) -> Result<PgmqProvider, MessagingError> {
        PgmqStore::open(&url(), options(&self.schema)).await?.connect()
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
async fn every_rule_holds_and_nothing_is_left_behind() {
    let fixture = Fixture::new();
    let harness = SeparateProcesses { schema: fixture.schema.clone() };
    let settings = Settings { parallel: 4, prefix: fixture.schema.clone(), ..Settings::default() };
    let tried = "Tried on PGMQ 1.11.1, loaded as plain SQL. Every worker opens the database for itself, as other \
                 processes do. For L14 the server ends all of their sessions, again and again. [More about it](pgmq.md).";
    let section = Section::of(harness, settings, tried).await.unwrap();
    let report = &section.report;
    for rule in &report.rules {
        assert_eq!(rule.outcome, Outcome::Holds, "{report}");
        for test in rule.tests.iter().filter(|test| test.name != UNTRIED) {
            // PGMQ refuses only priorities, attempt histories, and actions on waiting messages.
            let is_refused = matches!(test.outcome, Outcome::Refused(_))
                && [
                    "priority",
                    "failed_attempt",
                    "by_hand",
                    "from_its_worker",
                    "deleted",
                    "delivered_now",
                    "waiting_messages",
                ]
                .iter()
                .any(|part| test.name.contains(part));
            assert!(test.outcome == Outcome::Holds || is_refused, "{}: {report}", test.name);
        }
    }
    let refused: Vec<_> = report.capabilities.iter().filter(|(_, support)| !support.is_offered()).collect();
    assert_eq!(
        refused.iter().map(|(feature, _)| *feature).collect::<Vec<_>>(),
        [Feature::Priority, Feature::AttemptHistory, Feature::WaitingMessages]
    );
    let mut left = fixture.connect().await.list_queues(soon()).await.unwrap();
    left.retain(|queue| queue.as_str().starts_with(&fixture.schema));
    assert_eq!(left, [], "the suite left queues behind");
    section.record().unwrap();
}

/// A schema with a manual clock: its function adds the time that the test lets pass.
struct ManualClock {
    schema: String,
}

impl Harness for ManualClock {
    type Provider = PgmqProvider;

    async fn open(&self) -> Result<PgmqProvider, MessagingError> {
        PgmqStore::open(&url(), options(&self.schema)).await?.connect()
    }
}

impl TimedHarness for ManualClock {
    fn short(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn elapse<'a>(&'a self, time: Duration, _: &'a QueueName) -> BoxFuture<'a, Result<(), MessagingError>> {
        Box::pin(async move {
            let (schema, micros) = (&self.schema, time.as_micros());
            let moved = format!(
                "create table if not exists {schema}.passed (time interval);
                 insert into {schema}.passed values ({micros} * interval '1 microsecond');
                 create or replace function {schema}.clock() returns timestamptz language sql stable as
                 'select pg_catalog.statement_timestamp() + coalesce((select sum(time) from {schema}.passed), ''0'')'"
            );
            client().await.batch_execute(&moved).await.unwrap();
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
