//! The result of a check.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::finding::{Finding, FindingKind};

/// The findings and counts of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The breaches of the law, at most [`findings_per_kind`](super::CheckOptions::findings_per_kind) of each kind.
    pub findings: Vec<Finding>,
    /// The number of breaches of each kind, including those not listed.
    pub found: BTreeMap<FindingKind, u64>,
    /// The operations in the history.
    pub counts: Counts,
}

impl Verdict {
    /// Whether the history shows no breach of the law.
    pub fn is_clean(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether a breach of this kind was found.
    pub fn has(&self, kind: FindingKind) -> bool {
        self.found.contains_key(&kind)
    }
}

/// The operations in a history, so that a clean verdict on an empty history is recognisable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Events in the history.
    pub events: u64,
    /// Messages that were, or may have been, accepted.
    pub messages: u64,
    /// Sends that were answered with an id.
    pub sends: u64,
    /// Sends that may or may not have been carried out.
    pub unknown_sends: u64,
    /// Deliveries.
    pub deliveries: u64,
    /// Receives without an answer, which may have leased messages.
    pub unknown_receives: u64,
    /// Acks that were carried out.
    pub acks: u64,
    /// Acks that may or may not have been carried out.
    pub unknown_acks: u64,
    /// Retries that were carried out.
    pub retries: u64,
    /// Releases that were carried out.
    pub releases: u64,
    /// Leases that were extended.
    pub extends: u64,
    /// Settles and extensions that were answered with an ended lease.
    pub expired: u64,
    /// Messages that were dropped unsettled.
    pub dropped: u64,
    /// Messages that were redriven.
    pub redriven: u64,
    /// Dead letters at the end.
    pub dead: u64,
    /// Messages still in their queue at the end.
    pub live: u64,
    /// Deliveries after an ack that an unknown outcome excuses: no breach.
    pub duplicates_after_unknown: u64,
    /// Queues whose final state was recorded. Without it no message counts as lost.
    pub final_queues: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { sends, unknown_sends, deliveries, acks, dead, duplicates_after_unknown, .. } = self.counts;
        writeln!(
            f,
            "{sends} sends ({unknown_sends} more unknown), {deliveries} deliveries, {acks} acks, {dead} dead letters, \
             {duplicates_after_unknown} duplicates after an unknown outcome"
        )?;
        if self.counts.final_queues == 0 {
            writeln!(f, "no final state was recorded: lost messages and dead letters were not checked")?;
        }
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        for (kind, count) in &self.found {
            let listed = self.findings.iter().filter(|finding| finding.kind == *kind).count();
            if let Some(more) = count.checked_sub(listed as u64).filter(|more| *more > 0) {
                writeln!(f, "{more} more: {kind}")?;
            }
        }
        if self.is_clean() {
            writeln!(f, "no breach of the law")?;
        }
        Ok(())
    }
}
