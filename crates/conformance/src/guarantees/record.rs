//! A file for each store that brings the results of its suite, a separate process, to the page.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use postrider_core::{Capabilities, Feature, Limits, Support};
use serde::{Deserialize, Serialize};

use super::{QueueNames, Section, all_tests};
use crate::law::{Outcome, Report, TestReport};

/// A [`Section`] without the rules of the tests and their order, which the suite provides.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) outcomes: BTreeMap<String, Outcome>,
    support: BTreeMap<Feature, Support>,
    limits: Limits,
    seed: u64,
    left_behind: Option<String>,
    queue_names: QueueNames,
    tried: String,
}

impl Record {
    pub(super) fn of(section: &Section) -> Self {
        let Report { rules, capabilities, seed, left_behind, .. } = &section.report;
        let tests = rules.iter().flat_map(|rule| &rule.tests);
        Self {
            outcomes: tests.map(|test| (test.name.to_owned(), test.outcome.clone())).collect(),
            support: capabilities.iter().map(|(feature, support)| (feature, support.clone())).collect(),
            limits: capabilities.limits.clone(),
            seed: *seed,
            left_behind: left_behind.clone(),
            queue_names: section.queue_names,
            tried: section.tried.clone(),
        }
    }

    /// The section of the store; fails on a test that the suite does not have.
    pub(super) fn into_section(mut self, store: &'static str) -> Result<Section, String> {
        let known = all_tests().into_iter().filter_map(|test| {
            let outcome = self.outcomes.remove(test.name)?;
            Some(TestReport { rule: test.rule, name: test.name, outcome })
        });
        let tests = known.collect();
        if let Some(name) = self.outcomes.keys().next() {
            return Err(format!("the suite has no test {name}"));
        }
        let capabilities = Capabilities::native(store).with_limits(self.limits);
        let capabilities =
            self.support.into_iter().fold(capabilities, |all, (feature, support)| all.with(feature, support));
        let mut report = Report::new(capabilities, self.seed, tests, None);
        report.left_behind = self.left_behind;
        Ok(Section { report, queue_names: self.queue_names, tried: self.tried })
    }
}

impl Section {
    /// Writes the section for the page: to `POSTRIDER_LAW_FOLDER`, or to `law` in the target folder.
    pub fn record(&self) -> io::Result<()> {
        let path = path(self.name());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, serde_json::to_vec_pretty(&Record::of(self))?)
    }

    /// Reads the section that the suite of a store has written. The error says how to write it.
    pub fn recorded(store: &'static str) -> Result<Self, String> {
        let path = path(store);
        let read = || {
            let text = std::fs::read(&path).map_err(|error| error.to_string())?;
            let record: Record = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
            record.into_section(store)
        };
        read().map_err(|why| {
            let package = if store == "memory" { "conformance" } else { store };
            format!(
                "there is no usable record of the law on {store} at {}: {why}; run \
                 `cargo test -p postrider-{package} --test suite lawful`, then this again",
                path.display()
            )
        })
    }
}

/// Relative paths start at the workspace, as for cargo, not at the package whose tests run.
fn path(store: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::var_os("POSTRIDER_LAW_FOLDER").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("law")
    });
    workspace.join(folder).join(format!("{store}.json"))
}
