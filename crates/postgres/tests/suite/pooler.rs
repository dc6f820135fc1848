//! Behind a pooler that lends a connection for one transaction at a time.

use std::time::Duration;

use postrider_conformance::{Harness, Outcome, Settings, TaskHarness, exercise, exercise_task_test};
use postrider_core::MessagingError;
use postrider_core::task::TaskRoutes;
use postrider_postgres::{PostgresOptions, PostgresProvider, PostgresStore, PostgresTasks, WakeUpMode};

use crate::lawful::ManualClock;
use crate::{Fixture, options, variable};

pub(crate) fn pooler() -> String {
    variable("POSTRIDER_PGBOUNCER_URL", "postgres pgbouncer")
}

pub(crate) fn poll_only(schema: &str) -> PostgresOptions {
    let poll_interval = Duration::from_millis(100);
    PostgresOptions { wake_up: WakeUpMode::PollOnly, poll_interval, ..options(schema) }
}

/// Every worker is a client of the pooler; together they have more connections than it has.
struct Pooled {
    schema: String,
}

impl Harness for Pooled {
    type Provider = PostgresProvider;

    async fn open(&self) -> Result<PostgresProvider, MessagingError> {
        PostgresStore::open(&pooler(), poll_only(&self.schema)).await?.connect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law again, through a pooler: scripts/test --full"]
async fn every_rule_holds_behind_a_pooler() {
    let fixture = Fixture::new();
    let harness = Pooled { schema: fixture.schema.clone() };
    let report = exercise(harness, Settings { parallel: 8, ..Settings::default() }).await.unwrap();
    let broken: Vec<_> = report.rules.iter().filter(|rule| matches!(rule.outcome, Outcome::Broken(_))).collect();
    assert!(broken.is_empty(), "{report}");
    let held = report.rules.iter().filter(|rule| rule.outcome == Outcome::Holds).count();
    assert_eq!(held, 15, "all but the clock of another machine, which nothing here can set: {report}");
}

impl TaskHarness for Pooled {
    type Store = PostgresTasks;
    type Queue = PostgresProvider;

    async fn open(&self, routes: TaskRoutes) -> Result<PostgresTasks, MessagingError> {
        PostgresTasks::new(self.queue().await?, routes)
    }

    async fn queue(&self) -> Result<PostgresProvider, MessagingError> {
        let options = PostgresOptions { poll_interval: Duration::from_secs(1), ..poll_only(&self.schema) };
        PostgresStore::open(&pooler(), options).await?.connect()
    }

    async fn elapse(&self, time: Duration) {
        ManualClock { schema: self.schema.clone() }.elapse(time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_kept_behind_a_pooler() {
    let fixture = Fixture::new();
    let harness = Pooled { schema: fixture.schema.clone() };
    // One for each way of sending statements.
    for test in [
        "five_hundred_tasks_are_made_in_one_call",
        "an_idempotency_key_is_taken_within_a_batch",
        "attempts_are_ended_and_claimed_in_one_call",
        "many_attempts_end_in_one_call_with_their_own_outcomes",
        "concurrent_workers_never_share_a_key",
        "many_tasks_dying_in_one_call_send_an_event_each",
        "a_schedule_fires_once_for_a_version",
        "every_claimable_task_wakes_its_workers",
    ] {
        let finding = exercise_task_test(&harness, test).await;
        assert_eq!(finding.fault, None, "{finding}");
    }
}

#[tokio::test]
async fn a_pooler_is_recognised_where_it_is_not_expected() {
    let fixture = Fixture::new();
    let refused = PostgresStore::open(&pooler(), fixture.options()).await.unwrap_err().to_string();
    assert!(refused.contains("poll_only = true"), "{refused}");
}
