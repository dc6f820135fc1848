//! Every fault is caught by its test.

use postrider_conformance::broken::{Fault, SimulatedStore};
use postrider_conformance::{Outcome, Rule, Settings, StormSettings, exercise};

use crate::in_paused_time;

fn only(rule: Rule) -> Settings {
    let storm = StormSettings { messages: 0, ..StormSettings::default() };
    Settings { seed: 7, rules: vec![rule], storm, ..Settings::default() }
}

#[test]
fn each_broken_provider_is_caught_by_its_test() {
    for fault in Fault::ALL {
        in_paused_time(async {
            let report = exercise(SimulatedStore::with_fault(*fault), only(fault.rule())).await.unwrap();
            let test = report.test(fault.caught_by()).expect("the test that catches it exists");
            assert!(matches!(test.outcome, Outcome::Broken(_)), "{fault:?} was not caught by {}:\n{report}", test.name);
            assert!(!report.is_lawful());
        });
    }
}

#[test]
fn every_rule_has_a_broken_twin() {
    for rule in Rule::ALL {
        assert!(Fault::ALL.iter().any(|fault| fault.rule() == rule), "{rule} has none");
    }
}
