//! Tests that were not run on a store.

use postrider_core::Support;

use super::{Known, Section, all_tests};
use crate::law::{Outcome, Rule};

/// A test that cannot run on some stores.
#[derive(Debug, Clone, Copy)]
pub struct Untried {
    /// The test's name.
    pub test: &'static str,
    /// The stores.
    pub stores: &'static [&'static str],
    /// The reason, as the suite gives it.
    pub why: &'static str,
}

/// Lists every rule that no test has shown on a store, and every test that was neither run there nor refused by the
/// store's capabilities, except the `accepted` ones; also lists accepted tests that were run.
pub fn holes(sections: &[Section], accepted: &[Untried]) -> Vec<String> {
    let mut holes = Vec::new();
    for section in sections {
        let (unshown, shown): (Vec<_>, Vec<_>) = Rule::ALL.into_iter().partition(|rule| is_unshown(section, *rule));
        let name = section.name();
        holes.extend(unshown.iter().map(|rule| format!("{rule} on {name}: none of its tests was exercised")));
        let tests = all_tests().into_iter().filter(|test| shown.contains(&test.rule));
        holes.extend(tests.filter_map(|test| hole(section, &test, accepted)));
    }
    let unknown = accepted.iter().filter(|untried| all_tests().iter().all(|test| test.name != untried.test));
    holes.extend(unknown.map(|untried| format!("{} is listed as untried, but is not a test", untried.test)));
    holes
}

fn is_unshown(section: &Section, rule: Rule) -> bool {
    section.report.rule(rule).tests.iter().all(|test| matches!(test.outcome, Outcome::NotExercised(_)))
}

fn hole(section: &Section, test: &Known, accepted: &[Untried]) -> Option<String> {
    let store = section.name();
    let listed = accepted.iter().find(|untried| untried.test == test.name && untried.stores.contains(&store));
    let why = match (section.report.test(test.name).map(|report| &report.outcome), listed) {
        (None, _) => "was not run".to_owned(),
        (Some(Outcome::NotExercised(why)), Some(listed)) if listed.why == why => return None,
        (Some(Outcome::NotExercised(why)), _) => format!("was not exercised: {why}"),
        (Some(Outcome::Refused(why)), _) if !is_declared(section, test, why) => {
            format!("was refused for a reason that the capabilities do not declare: {why}")
        }
        (Some(_), Some(_)) => "is listed as untried, but was tried".to_owned(),
        // A broken rule is reported elsewhere.
        (Some(_), None) => return None,
    };
    Some(format!("{} on {store}: {} {why}", test.rule, test.name))
}

fn is_declared(section: &Section, test: &Known, why: &str) -> bool {
    let features = test.rule.feature().into_iter().chain(test.needs.iter().copied());
    let mut declared = features.map(|feature| section.report.capabilities.support(feature));
    declared.any(|support| matches!(support, Support::Refused { why: reason } if reason == why))
}
