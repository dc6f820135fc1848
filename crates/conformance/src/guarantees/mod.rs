//! The page `docs/guarantees.md`: the law, and the results of each provider.
//!
//! Generated from [`Report`]s and the capabilities of providers, so that it states only what was measured. A claim that
//! is no longer true changes the page, and a test compares it with the file. The suite of each store records its
//! [`Section`], so that the page shows the same run that tests the store.

mod holes;
mod promises;
mod queue_names;
mod record;

use std::fmt::{self, Write};
use std::time::Duration;

use postrider_core::{Feature, Limits, Message, MessagingError, MessagingService, Priority, Support, duration_text};

use crate::exercise::{Settings, exercise};
use crate::harness::Harness;
use crate::law::{Outcome, Report, Rule, RuleReport, TestReport};
use crate::probe::soon;
use crate::{rules, storm};

pub use holes::{Untried, holes};
pub use queue_names::QueueNames;

/// One provider on the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The report of the suite.
    pub report: Report,
    /// The names that its queues may have.
    pub queue_names: QueueNames,
    /// How the suite reached it, in a sentence or two: what was opened, and what was restarted or cut for L14.
    pub tried: String,
}

impl Section {
    /// Runs the suite on a store.
    pub async fn of<H: Harness>(harness: H, settings: Settings, tried: &str) -> Result<Self, MessagingError> {
        let provider = harness.open().await?;
        let queue_names = QueueNames::try_on(&provider, &format!("{}n", settings.prefix)).await?;
        provider.close(soon()).await?;
        Ok(Self { report: exercise(harness, settings).await?, queue_names, tried: tried.to_owned() })
    }

    fn name(&self) -> &'static str {
        self.report.provider
    }
}

/// The page, as Markdown.
pub fn page(sections: &[Section]) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, sections);
    page
}

fn write_page(page: &mut String, sections: &[Section]) -> fmt::Result {
    writeln!(page, "{}\n## The law\n", promises::INTRODUCTION)?;
    for rule in Rule::ALL {
        writeln!(page, "- **{rule}, {}.** {}", rule.title(), rule.promise())?;
    }
    writeln!(page, "\n## What is not promised\n\n{}", promises::NOT_PROMISED)?;
    writeln!(page, "## The rules on each provider\n")?;
    let rows = Rule::ALL.map(|rule| (format!("{rule} | {}", rule.title()), rule));
    write_table(page, "| rule", sections, &rows, |section, rule| rule_word(section.report.rule(*rule)))?;
    writeln!(page, "\n{}\n## The features of each provider\n", promises::WORDS)?;
    let rows: Vec<_> = Feature::ALL.iter().map(|feature| (feature.to_string(), *feature)).collect();
    write_table(page, "feature", sections, &rows, |section, feature| feature_word(&section.report, *feature))?;
    writeln!(page, "\n## Where providers differ")?;
    sections.iter().try_for_each(|section| write_differences(page, section))?;
    write_limits(page, sections)?;
    write_tests(page)
}

fn write_tests(page: &mut String) -> fmt::Result {
    writeln!(page, "\n## The tests\n\n{}\n", promises::TESTS)?;
    for rule in Rule::ALL {
        writeln!(page, "- {rule}, {}:", rule.title())?;
        write_names(page, all_tests().into_iter().filter(|test| test.rule == rule).map(|test| test.name))?;
    }
    writeln!(page, "\nFeatures that are not a rule of their own are shown by\n")?;
    for feature in Feature::ALL.iter().filter(|feature| rule_of(**feature).is_none()) {
        writeln!(page, "- {feature}:")?;
        write_names(page, tests_of(*feature))?;
    }
    Ok(())
}

/// A test of the suite.
struct Known {
    rule: Rule,
    name: &'static str,
    needs: &'static [Feature],
}

fn all_tests() -> Vec<Known> {
    let storms = storm::tests(&Rule::ALL).into_iter().map(|(rule, name)| Known { rule, name, needs: &[] });
    rules::registry().into_iter().map(|(rule, name, needs)| Known { rule, name, needs }).chain(storms).collect()
}

fn rule_of(feature: Feature) -> Option<Rule> {
    Rule::ALL.into_iter().find(|rule| rule.feature() == Some(feature))
}

/// The tests that fail, or cannot be run, without a feature.
fn tests_of(feature: Feature) -> impl Iterator<Item = &'static str> {
    let rule = rule_of(feature);
    let shows = move |test: &Known| Some(test.rule) == rule || test.needs.contains(&feature);
    all_tests().into_iter().filter(shows).map(|test| test.name)
}

fn write_names(page: &mut String, names: impl Iterator<Item = &'static str>) -> fmt::Result {
    let names: Vec<_> = names.map(|name| format!("  `{name}`")).collect();
    writeln!(page, "{}.", names.join(",\n"))
}

fn write_table<R>(
    page: &mut String,
    head: &str,
    sections: &[Section],
    rows: &[(String, R)],
    cell: impl Fn(&Section, &R) -> String,
) -> fmt::Result {
    let names: Vec<_> = sections.iter().map(Section::name).collect();
    let columns = head.matches('|').count() + 1 + names.len();
    writeln!(page, "| {head} | {} |\n|{}", names.join(" | "), "---|".repeat(columns))?;
    for (title, row) in rows {
        let cells: Vec<_> = sections.iter().map(|section| cell(section, row)).collect();
        writeln!(page, "| {title} | {} |", cells.join(" | "))?;
    }
    Ok(())
}

fn rule_word(rule: &RuleReport) -> String {
    let kept = if rule.rule.feature().is_some() { rule.how() } else { None };
    let mark = if rule.tests.iter().all(|test| test.outcome == Outcome::Holds) { "" } else { r"\*" };
    match rule.outcome {
        Outcome::Holds => format!("{}{mark}", kept.unwrap_or("holds")),
        Outcome::Refused(_) => "refused".into(),
        Outcome::NotExercised(_) => "not exercised".into(),
        Outcome::Broken(_) => "**broken**".into(),
    }
}

/// A declared feature is on the page only when a test has shown it.
fn feature_word(report: &Report, feature: Feature) -> String {
    let kept = match report.capabilities.support(feature) {
        Support::Native => "native",
        Support::Emulated { .. } => "emulated",
        Support::Refused { .. } => return "refused".into(),
    };
    let outcomes: Vec<_> = tests_of(feature).filter_map(|name| report.test(name)).map(|test| &test.outcome).collect();
    if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Broken(_))) {
        return "**broken**".into();
    }
    if outcomes.contains(&&Outcome::Holds) { kept.into() } else { "not exercised".into() }
}

/// One row of the limits: its title, and its value on a provider.
type LimitRow = (&'static str, fn(&Limits, &QueueNames) -> String);

const LIMITS: &[LimitRow] = &[
    ("largest body", |limits, _| bytes(limits.max_body_bytes)),
    ("all names and values of headers together", |limits, _| bytes(limits.max_header_bytes)),
    ("longest delay of a send or a retry", |limits, _| duration(limits.max_delay)),
    ("longest lease", |limits, _| duration(limits.max_visibility)),
    ("unit of time, rounded up to", |limits, _| duration(limits.time_resolution)),
    ("a dedup key is taken", |limits, _| match limits.dedup_window {
        None => "as long as its message lives".into(),
        Some(window) => format!("for {} after its send", duration(window)),
    }),
    ("longest name of a queue", |_, names| format!("{} characters", names.longest)),
    ("capital letters in names", |_, names| allowed(names.capitals)),
    ("dots in names", |_, names| allowed(names.dots)),
    ("hyphens in names", |_, names| allowed(names.hyphens)),
    ("`Orders` and `orders`", |_, names| match (names.capitals, names.apart_by_case) {
        (false, _) => "refused".into(),
        (true, true) => "two queues".into(),
        (true, false) => "one queue".into(),
    }),
];

fn write_limits(page: &mut String, sections: &[Section]) -> fmt::Result {
    writeln!(page, "\n## Limits\n\n{}\n", promises::LIMITS)?;
    let rows: Vec<_> = LIMITS.iter().map(|(title, value)| ((*title).to_owned(), value)).collect();
    write_table(page, "limit", sections, &rows, |section, value| {
        value(&section.report.capabilities.limits, &section.queue_names)
    })?;
    let name = queue_names::longest_name();
    let key = longest(|length| Message::new("").dedup_key("x".repeat(length)).is_ok());
    let header = longest(|length| Message::new("").header("x".repeat(length), "").is_ok());
    let highest = Priority::HIGHEST.get();
    writeln!(
        page,
        "\nOn every provider:\n\n\
         - A queue's name has 1 to {name} characters of `[A-Za-z0-9_.-]` and does not end in `_dlq`, which is the \
         ending of its dead letters; `.` and `..` are refused. Names of `[a-z][a-z0-9_]{{0,39}}` can be moved to every provider.\n\
         - An ordering key or a dedup key has 1 to {key} bytes.\n\
         - The name of a header has 1 to {header} characters.\n\
         - Priorities are 0 to {highest}, higher is more urgent."
    )
}

/// The largest accepted length, counting up from 1.
fn longest(accepts: impl Fn(usize) -> bool) -> usize {
    (1..=64 * 1024).take_while(|length| accepts(*length)).last().unwrap_or(0)
}

fn bytes(count: usize) -> String {
    match count {
        whole if whole > 0 && whole % (1024 * 1024) == 0 => format!("{} MiB", whole / (1024 * 1024)),
        whole if whole > 0 && whole % 1024 == 0 => format!("{} KiB", whole / 1024),
        odd => format!("{odd} bytes"),
    }
}

fn duration(duration: Duration) -> String {
    duration_text::show(duration)
}

fn allowed(is_allowed: bool) -> String {
    if is_allowed { "allowed" } else { "refused" }.into()
}

fn write_differences(page: &mut String, section: &Section) -> fmt::Result {
    let report = &section.report;
    writeln!(page, "\n### {}\n\n{}\n", section.name(), section.tried)?;
    let mut notes = String::new();
    for rule in &report.rules {
        write_rule_notes(&mut notes, rule)?;
    }
    for feature in Feature::ALL.iter().filter(|feature| rule_of(**feature).is_none()) {
        match report.capabilities.support(*feature) {
            Support::Native => {}
            Support::Emulated { cost } => writeln!(notes, "- **{feature}**: emulated. {}", sentence(cost))?,
            Support::Refused { why } => writeln!(notes, "- **{feature}**: refused. {}", sentence(why))?,
        }
    }
    page.push_str(if notes.is_empty() { "Everything is native.\n" } else { &notes });
    Ok(())
}

fn write_rule_notes(notes: &mut String, rule: &RuleReport) -> fmt::Result {
    let title = format!("**{} {}**", rule.rule, rule.rule.title());
    if let Outcome::Broken(why) = &rule.outcome {
        return writeln!(notes, "- {title}: broken. {why}");
    }
    if let Some(why) = rule.outcome.reason() {
        return writeln!(notes, "- {title}: {}. {}", outcome_word(&rule.outcome), sentence(why));
    }
    let left_out: Vec<_> = rule.tests.iter().filter(|test| test.outcome != Outcome::Holds).collect();
    match &rule.support {
        Support::Emulated { cost } => writeln!(notes, "- {title}: emulated. {}", sentence(cost))?,
        Support::Native | Support::Refused { .. } if left_out.is_empty() => {}
        Support::Native | Support::Refused { .. } => writeln!(notes, "- {title}: holds, in part untried.")?,
    }
    left_out.into_iter().try_for_each(|test| write_left_out(notes, test))
}

fn write_left_out(notes: &mut String, test: &TestReport) -> fmt::Result {
    let why = test.outcome.reason().unwrap_or_default();
    writeln!(notes, "  - `{}`: {}. {}", test.name, outcome_word(&test.outcome), sentence(why))
}

fn outcome_word(outcome: &Outcome) -> String {
    outcome.as_str().replace('_', " ")
}

/// The text on one line, with a capital at its start and one full stop at its end.
fn sentence(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = text.trim_end_matches('.').chars();
    match rest.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), rest.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests;
