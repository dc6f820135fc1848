//! The whole law, on a broker.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::guarantees::Section;
use postrider_conformance::{Harness, Outcome, Settings};
use postrider_core::{Feature, MessagingError, QueueAdmin};
use postrider_rabbitmq::{QueueType, RabbitmqOptions, RabbitmqProvider, RabbitmqStore};

use tokio::time::Instant;

use crate::{connect_with, end_connections, options, prefix, soon, url};

/// A harness in which every worker has a connection of its own, as other processes do.
struct Apart {
    options: RabbitmqOptions,
}

impl Harness for Apart {
    type Provider = RabbitmqProvider;

    async fn open(&self) -> Result<RabbitmqProvider, MessagingError> {
        RabbitmqStore::new(&url(), self.options.clone())?.connect().await
    }

    /// Closes every connection of the test's workers in a loop for two seconds.
    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Some(Box::pin(async {
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                end_connections(&self.options.connection_name).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_and_nothing_is_left_behind() {
    exercise_on(QueueType::Quorum).await.record().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law again, on classic queues: scripts/test --full"]
async fn every_rule_that_needs_no_count_of_deliveries_holds_on_classic_queues() {
    exercise_on(QueueType::Classic).await;
}

async fn exercise_on(queue_type: QueueType) -> Section {
    let prefix = prefix();
    let harness = Apart { options: RabbitmqOptions { connection_name: prefix.clone(), queue_type, ..options() } };
    let settings = Settings { parallel: 4, prefix: prefix.clone(), ..Settings::default() };
    let tried = "Tried on RabbitMQ 3.10 with quorum queues, on one node. Every worker has a connection of its own, as other \
                 processes do. For L14 the broker ends all of them, again and again. [More about it](rabbitmq.md).";
    let section = Section::of(harness, settings, tried).await.unwrap();
    let report = &section.report;
    assert!(report.is_lawful(), "{report}");
    // Only features that RabbitMQ refuses may be left out, and the worker's clock, which cannot be changed here.
    for test in report.rules.iter().flat_map(|rule| &rule.tests) {
        let is_left_out = match &test.outcome {
            Outcome::NotExercised(_) => test.name == "l16_a_workers_clock_moves_no_lease_and_no_due_time",
            outcome => matches!(outcome, Outcome::Refused(_)),
        };
        assert!(test.outcome == Outcome::Holds || is_left_out, "{}: {report}", test.name);
    }
    let refused: Vec<_> = report.capabilities.iter().filter(|(_, support)| !support.is_offered()).collect();
    let refused: Vec<_> = refused.into_iter().map(|(feature, _)| feature).collect();
    let mut never = vec![Feature::Dedup, Feature::PortableReceipts, Feature::FreeRelease];
    if queue_type == QueueType::Classic {
        // A classic queue does not count returns.
        never.extend([Feature::DeliveryLimit, Feature::OrderByKey]);
    }
    never.extend([
        Feature::Priority,
        Feature::AttemptHistory,
        Feature::Archive,
        Feature::WaitingMessages,
        Feature::ReceiveById,
    ]);
    assert_eq!(refused, never);
    let mut left = connect_with(options()).await.list_queues(soon()).await.unwrap();
    left.retain(|queue| queue.as_str().starts_with(&prefix));
    assert_eq!(left, [], "the suite left queues behind");
    section
}
