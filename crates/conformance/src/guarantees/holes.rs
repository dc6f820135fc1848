//! Where the law was not tried.

use postrider_core::Support;

use super::{Known, Section, all_tests};
use crate::law::{Outcome, Rule};

/// A test that cannot be run on some stores, for the reason that the suite gives.
#[derive(Debug, Clone, Copy)]
pub struct Untried {
    /// The test's name.
    pub test: &'static str,
    /// The stores.
    pub stores: &'static [&'static str],
    /// The reason, as the suite gives it.
    pub why: &'static str,
}

/// Every rule that no test has shown on a store, and every test that was neither run there nor refused by the store's
/// capabilities; all but the `accepted`. One that is accepted and was run is told as well.
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
    holes.extend(unknown.map(|untried| format!("{} is listed as untried, and is no test", untried.test)));
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
        // A broken rule is not a hole; its report says so.
        (Some(_), None) => return None,
    };
    Some(format!("{} on {store}: {} {why}", test.rule, test.name))
}

fn is_declared(section: &Section, test: &Known, why: &str) -> bool {
    let features = test.rule.feature().into_iter().chain(test.needs.iter().copied());
    let mut declared = features.map(|feature| section.report.capabilities.support(feature));
    declared.any(|support| matches!(support, Support::Refused { why: reason } if reason == why))
}
