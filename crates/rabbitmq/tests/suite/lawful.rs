//! The whole law, on a broker.

use postrider_conformance::{Harness, Outcome, Settings, exercise};
use postrider_core::{Feature, MessagingError, QueueAdmin};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider, RabbitmqStore};

use crate::{connect_with, options, prefix, soon, url};

/// Every worker has a connection of its own, as other processes do.
struct Apart {
    options: RabbitmqOptions,
}

impl Harness for Apart {
    type Provider = RabbitmqProvider;

    async fn open(&self) -> Result<RabbitmqProvider, MessagingError> {
        RabbitmqStore::new(&url(), self.options.clone())?.connect().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_and_nothing_is_left_behind() {
    let prefix = prefix();
    let harness = Apart { options: options() };
    let mut settings = Settings { parallel: 4, prefix: prefix.clone(), ..Settings::default() };
    if let Ok(only) = std::env::var("ONLY") {
        settings.rules.retain(|rule| only.split(',').any(|o| format!("{rule:?}") == o));
    }
    let report = exercise(harness, settings).await.unwrap();
    println!("{report}");
    for rule in &report.rules {
        for test in &rule.tests {
            println!("{} {:?}", test.name, test.outcome);
        }
    }
    assert!(report.is_lawful(), "{report}");
    let _ = (Feature::Priority, Outcome::Holds);
    let mut left = connect_with(options()).await.list_queues(soon()).await.unwrap();
    left.retain(|queue| queue.as_str().starts_with(&prefix));
    assert_eq!(left, [], "the suite left queues behind");
}
