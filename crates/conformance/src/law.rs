//! The sixteen rules and their outcomes.

use std::fmt;
use std::str::FromStr;

use postrider_core::{Capabilities, Feature, MessagingError, Support};
use serde::{Deserialize, Serialize};

macro_rules! rules {
    ($($rule:ident = $number:literal, $title:literal, $feature:ident;)*) => {
        /// A rule of the law.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub enum Rule { $($rule,)* }

        impl Rule {
            /// Every rule, in order.
            pub const ALL: [Self; 16] = [$(Self::$rule,)*];

            /// Its number.
            pub const fn number(self) -> u8 {
                match self { $(Self::$rule => $number,)* }
            }

            /// Its name in two or three words.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$rule => $title,)* }
            }

            /// The capability that declares how a provider keeps the rule; `None` for honest capabilities, which cannot be
            /// emulated.
            pub const fn feature(self) -> Option<Feature> {
                match self { $(Self::$rule => rules!(@feature $feature),)* }
            }
        }
    };
    (@feature None) => { None };
    (@feature $feature:ident) => { Some(Feature::$feature) };
}

rules! {
    L1 = 1, "durable send", DurableSend;
    L2 = 2, "one lease", SingleLease;
    L3 = 3, "fencing", Fencing;
    L4 = 4, "expiry", LeaseExpiry;
    L5 = 5, "heartbeat", ExtendLease;
    L6 = 6, "retry", Retry;
    L7 = 7, "release", FreeRelease;
    L8 = 8, "poison", DeliveryLimit;
    L9 = 9, "bad bytes", BadBytes;
    L10 = 10, "dead letters", DeadLetters;
    L11 = 11, "order", OrderByKey;
    L12 = 12, "delay", Delay;
    L13 = 13, "honest capabilities", None;
    L14 = 14, "recovery", Recovery;
    L15 = 15, "clean stop", CleanStop;
    L16 = 16, "the store's clock", StoreClock;
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.number())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let number = text.strip_prefix(['L', 'l']).unwrap_or(text).parse::<u8>().ok();
        Self::ALL
            .into_iter()
            .find(|rule| Some(rule.number()) == number)
            .ok_or_else(|| format!("unknown rule '{text}'; the rules are L1 to L16"))
    }
}

/// The outcome of a test or a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It holds.
    Holds,
    /// The provider declares the feature refused and rejects its use.
    Refused(String),
    /// It could not be tested.
    NotExercised(String),
    /// It does not hold.
    Broken(String),
}

impl Outcome {
    /// The outcome's name.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Refused(_) => "refused",
            Self::NotExercised(_) => "not_exercised",
            Self::Broken(_) => "broken",
        }
    }

    /// The reason, unless it holds.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Holds => None,
            Self::Refused(why) | Self::NotExercised(why) | Self::Broken(why) => Some(why),
        }
    }
}

/// The result of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestReport {
    /// The rule that it tests.
    pub rule: Rule,
    /// Its name.
    pub name: &'static str,
    /// The outcome.
    pub outcome: Outcome,
}

/// The result of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleReport {
    /// The rule.
    pub rule: Rule,
    /// The outcome.
    pub outcome: Outcome,
    /// How the provider declares that it keeps the rule.
    pub support: Support,
    /// Its tests.
    pub tests: Vec<TestReport>,
}

impl RuleReport {
    fn new(rule: Rule, capabilities: &Capabilities, tests: Vec<TestReport>) -> Self {
        let support = rule.feature().map_or(Support::Native, |feature| capabilities.support(feature).clone());
        Self { rule, outcome: summary(&tests), support, tests }
    }

    /// `native` or `emulated`; nothing for a rule that is refused.
    pub fn how(&self) -> Option<&'static str> {
        match (&self.outcome, &self.support) {
            (Outcome::Refused(_), _) | (_, Support::Refused { .. }) => None,
            (_, Support::Native) => Some("native"),
            (_, Support::Emulated { .. }) => Some("emulated"),
        }
    }

    /// What is broken, what was left out, or the cost of the emulation.
    pub fn reason(&self) -> Option<String> {
        if let Some(reason) = self.outcome.reason() {
            return Some(reason.to_owned());
        }
        let mut notes = Vec::new();
        if let Support::Emulated { cost } = &self.support {
            notes.push(cost.to_string());
        }
        for test in &self.tests {
            if let Outcome::Refused(why) | Outcome::NotExercised(why) = &test.outcome {
                notes.push(format!("{}: {}: {why}", test.name, test.outcome.as_str().replace('_', " ")));
            }
        }
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// One broken test breaks its rule; a rule is refused or not exercised only when none of its tests holds.
fn summary(tests: &[TestReport]) -> Outcome {
    let broken: Vec<_> = tests
        .iter()
        .filter_map(|test| match &test.outcome {
            Outcome::Broken(why) => Some(format!("{}: {why}", test.name)),
            _ => None,
        })
        .collect();
    if !broken.is_empty() {
        return Outcome::Broken(broken.join("; "));
    }
    if tests.iter().any(|test| test.outcome == Outcome::Holds) {
        return Outcome::Holds;
    }
    match tests.first() {
        Some(test) => test.outcome.clone(),
        None => Outcome::NotExercised("it was left out".into()),
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The provider's name.
    pub provider: &'static str,
    /// The seed that repeats the run.
    pub seed: u64,
    /// Every rule, in order.
    pub rules: Vec<RuleReport>,
    /// The capabilities that the provider declares.
    pub capabilities: Capabilities,
    /// Why queues of the run could not be removed.
    pub left_behind: Option<String>,
}

impl Report {
    pub(crate) fn new(
        capabilities: Capabilities,
        seed: u64,
        tests: Vec<TestReport>,
        left_behind: Option<MessagingError>,
    ) -> Self {
        let left_behind = left_behind.map(|error| error.to_string());
        let of = |rule| tests.iter().filter(|test| test.rule == rule).cloned().collect();
        let rules = Rule::ALL.into_iter().map(|rule| RuleReport::new(rule, &capabilities, of(rule))).collect();
        Self { provider: capabilities.provider(), seed, rules, capabilities, left_behind }
    }

    /// Whether no rule is broken.
    pub fn is_lawful(&self) -> bool {
        !self.rules.iter().any(|rule| matches!(rule.outcome, Outcome::Broken(_)))
    }

    /// One rule.
    pub fn rule(&self, rule: Rule) -> &RuleReport {
        &self.rules[usize::from(rule.number()) - 1]
    }

    /// One test by its name.
    pub fn test(&self, name: &str) -> Option<&TestReport> {
        self.rules.iter().flat_map(|rule| &rule.tests).find(|test| test.name == name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (seed {})", self.provider, self.seed)?;
        for rule in &self.rules {
            write!(f, "{:<4}{:<20} {:<14}", rule.rule.to_string(), rule.rule.title(), rule.outcome.as_str())?;
            write!(f, "{:<9}", rule.how().unwrap_or(""))?;
            writeln!(f, "{}", rule.reason().unwrap_or_default())?;
        }
        if let Some(why) = &self.left_behind {
            writeln!(f, "queues may have been left behind: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &'static str, outcome: Outcome) -> TestReport {
        TestReport { rule: Rule::L1, name, outcome }
    }

    #[test]
    fn one_broken_test_breaks_its_rule_and_is_named() {
        let tests = vec![test("a", Outcome::Holds), test("b", Outcome::Broken("lost one".into()))];
        let report = Report::new(Capabilities::native("paper"), 7, tests, None);
        assert!(!report.is_lawful());
        assert_eq!(report.rule(Rule::L1).reason().unwrap(), "b: lost one");
        assert_eq!(report.rule(Rule::L2).outcome.as_str(), "not_exercised");
    }

    #[test]
    fn a_rule_that_holds_names_the_tests_left_out() {
        let tests = vec![test("a", Outcome::Holds), test("b", Outcome::Refused("no keys".into()))];
        let report = Report::new(Capabilities::native("paper"), 7, tests, None);
        assert_eq!(report.rule(Rule::L1).outcome, Outcome::Holds);
        assert_eq!(report.rule(Rule::L1).reason().unwrap(), "b: refused: no keys");
        assert_eq!(report.rule(Rule::L1).how(), Some("native"));
    }

    #[test]
    fn rules_are_parsed_by_number() {
        assert_eq!("l16".parse::<Rule>().unwrap(), Rule::L16);
        assert!("L17".parse::<Rule>().is_err() && "x".parse::<Rule>().is_err());
    }
}
