//! Generated programs: the model agrees with itself and differs from stores that break a rule.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_conformance::Harness;
use postrider_conformance::broken::{Fault, SimulatedStore};
use postrider_conformance::model::{TimedHarness, compare_with_model};
use postrider_core::{ManualClock, MemoryStore, MessagingError, QueueName};

use crate::short_or_long;

/// A simulated store with a manual clock.
struct ManualStore {
    store: SimulatedStore,
    clock: ManualClock,
}

impl ManualStore {
    fn new(fault: Option<Fault>) -> Self {
        let clock = ManualClock::default();
        let memory = MemoryStore::builder().clock(clock.clone()).build();
        let store = match fault {
            None => SimulatedStore::lawful(),
            Some(fault) => SimulatedStore::with_fault(fault),
        };
        Self { store: store.on(memory), clock }
    }
}

impl Harness for ManualStore {
    type Provider = <SimulatedStore as Harness>::Provider;

    async fn open(&self) -> Result<Self::Provider, MessagingError> {
        self.store.open().await
    }
}

impl TimedHarness for ManualStore {
    fn elapse<'a>(&'a self, time: Duration, _: &'a QueueName) -> BoxFuture<'a, Result<(), MessagingError>> {
        self.clock.advance(time);
        Box::pin(std::future::ready(Ok(())))
    }
}

#[test]
fn a_lawful_store_does_what_the_model_does() {
    for seed in 0..u64::from(short_or_long(1, 50)) {
        compare_with_model(&ManualStore::new(None), 2000, seed).unwrap();
    }
}

#[test]
fn faults_show_as_differences_with_a_short_program_and_a_seed() {
    let faults = [
        Fault::IgnoresToken,
        Fault::AcceptsExpiredLeases,
        Fault::NeverExpires,
        Fault::RetriesAtOnce,
        Fault::ChargesReleases,
        Fault::ForgetsCount,
        Fault::DropsDeadLetters,
        Fault::LosesOrder,
        Fault::RetriesLosePlace,
        Fault::DeliversEarly,
        Fault::DeliversExpired,
        Fault::IgnoresDedupKey,
        Fault::PausesNothing,
        Fault::IgnoresDryRun,
        Fault::RenamesOnRedrive,
    ];
    for fault in faults {
        let difference = compare_with_model(&ManualStore::new(Some(fault)), 2000, 7).expect_err("a difference");
        assert!(difference.contains("seed 7"), "{difference}");
    }
}
