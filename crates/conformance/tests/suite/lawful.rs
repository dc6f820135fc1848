//! The suite on stores that keep the law.

use std::time::Duration;

use postrider_conformance::broken::SimulatedStore;
use postrider_conformance::guarantees::Section;
use postrider_conformance::link::Link;
use postrider_conformance::{Outcome, Rule, Settings, exercise};
use postrider_core::{Feature, MemoryStore, QueueAdmin, SharedProvider};

use crate::in_paused_time;

fn settings() -> Settings {
    Settings { seed: 7, ..Settings::default() }
}

#[test]
fn memory_keeps_every_rule_and_is_left_clean() {
    in_paused_time(async {
        let store = MemoryStore::new();
        let opened = store.clone();
        let open = move || {
            let store = opened.clone();
            async move { Ok(store.open()) }
        };
        let tried = "All workers share one store in the suite's process.";
        let section = Section::of(open, settings(), tried).await.unwrap();
        let report = &section.report;
        assert!(report.is_lawful(), "{report}");
        for rule in &report.rules {
            assert!(!rule.tests.is_empty(), "{} has no test", rule.rule);
            match rule.rule {
                Rule::L14 => assert!(matches!(rule.outcome, Outcome::Refused(_)), "{report}"),
                _ => assert_eq!(rule.outcome, Outcome::Holds, "{report}"),
            }
        }
        let left = store.open().list_queues(postrider_core::Deadline::default()).await.unwrap();
        assert_eq!(left, [], "the suite left queues behind");
        section.record().unwrap();
    });
}

#[test]
fn every_hook_is_used_when_the_harness_has_it() {
    in_paused_time(async {
        let report = exercise(SimulatedStore::lawful(), settings()).await.unwrap();
        for rule in &report.rules {
            assert_eq!(rule.outcome, Outcome::Holds, "{report}");
            for test in &rule.tests {
                assert_eq!(test.outcome, Outcome::Holds, "{}", test.name);
            }
        }
    });
}

#[test]
fn a_store_whose_calls_fail_during_an_outage_keeps_the_law() {
    in_paused_time(async {
        let store = SimulatedStore::lawful().link(Link::failing_while_cut());
        let report = exercise(store, settings()).await.unwrap();
        assert!(report.is_lawful(), "{report}");
        assert_eq!(report.rule(Rule::L14).outcome, Outcome::Holds, "{report}");
    });
}

#[test]
fn a_slow_store_keeps_the_law() {
    for latency in [50, 300, 1000].map(Duration::from_millis) {
        in_paused_time(async {
            let store = SimulatedStore::lawful().link(Link::slow(latency));
            let report = exercise(store, settings()).await.unwrap();
            assert!(report.is_lawful(), "{latency:?}: {report}");
        });
    }
}

#[test]
fn a_refused_feature_breaks_no_rule() {
    let features = [
        Feature::Dedup,
        Feature::OrderByKey,
        Feature::Delay,
        Feature::Expiry,
        Feature::Priority,
        Feature::Pause,
        Feature::AttemptHistory,
        Feature::Archive,
        Feature::WaitingMessages,
        Feature::ReceiveById,
        Feature::WakeUp,
        Feature::PortableReceipts,
    ];
    for feature in features {
        in_paused_time(async {
            let report = exercise(SimulatedStore::lawful().refusing(feature), settings()).await.unwrap();
            assert!(report.is_lawful(), "{feature} refused: {report}");
        });
    }
}

#[test]
fn without_its_hook_a_test_is_not_exercised() {
    in_paused_time(async {
        let store = MemoryStore::new();
        let open = move || {
            let store = store.clone();
            async move { Ok(store.open()) }
        };
        let report = exercise(open, Settings { rules: vec![Rule::L16], ..settings() }).await.unwrap();
        let test = report.test("l16_a_workers_clock_moves_no_lease_and_no_due_time").unwrap();
        assert!(matches!(test.outcome, Outcome::NotExercised(_)), "{test:?}");
        assert_eq!(report.rule(Rule::L1).outcome.as_str(), "not_exercised", "other rules were left out");
    });
}

#[test]
fn the_object_safe_twin_keeps_the_law_too() {
    in_paused_time(async {
        let store = MemoryStore::new();
        let open = move || {
            let store = store.clone();
            async move { Ok(SharedProvider::new(store.open())) }
        };
        let report = exercise(open, settings()).await.unwrap();
        assert!(report.is_lawful(), "{report}");
    });
}

/// On threads and in real time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_keeps_every_rule_on_threads() {
    let store = MemoryStore::new();
    let open = move || {
        let store = store.clone();
        async move { Ok(store.open()) }
    };
    let report = exercise(open, Settings::default()).await.unwrap();
    assert!(report.is_lawful(), "{report}");
}
