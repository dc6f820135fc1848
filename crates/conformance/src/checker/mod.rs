//! Judges a provider by what its callers saw.
//!
//! **The idea.** A call took effect at some moment between its start and its end; a call without an answer at any
//! moment after its start, or never. From these intervals each rule of the law gives bounds: when a lease can have
//! ended at the earliest and at the latest, by when a message was certainly there. What breaks a rule for *every*
//! choice of moments is a finding.
//!
//! **The invariant.** A correct provider is never accused. Where the order of events is not certain, the order that
//! excuses the provider is assumed; a call is before another only when it ended before the other began.
//!
//! **What was rejected.** A search for an order of all events that the law allows (as linearizability checkers do):
//! its time is exponential in the overlap. Checked one by one, each rule needs one sweep, so a million events take
//! seconds; a breach that shows only when several overlapping calls are considered together is missed.

mod build;
mod contents;
mod dedup;
mod duplicated;
mod early;
mod finding;
mod forgotten_count;
mod index;
mod lease;
mod lifetime;
mod lost;
mod reordered;
mod span;
mod stale_settle;
mod two_leases;
mod verdict;
mod wrong_dead_letter;

#[cfg(test)]
mod scale;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod test_history;

use std::time::Duration;

use postrider_core::{Capabilities, Feature, Limits};

use crate::history::Event;
use finding::Findings;
pub use finding::{Finding, FindingKind};
pub use verdict::{Counts, Verdict};

/// The properties of the provider that the checker depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOptions {
    /// The store's smallest unit of time, to which it may round durations up.
    pub time_resolution: Duration,
    /// How far the clocks of store and callers may drift apart over one lease or delay.
    pub tolerance: Duration,
    /// How far the clocks of processes whose histories were merged may differ. Each call is widened by it on both
    /// sides.
    pub clock_skew: Duration,
    /// How long a dedup key is taken.
    pub dedup: DedupScope,
    /// What a lease is bound to.
    pub leases: LeaseScope,
    /// Whether a retry is a copy and then a delete, as on brokers that cannot change a message: a retry whose answer was
    /// lost may leave both.
    pub retries_are_copies: bool,
    /// Whether the store also counts deliveries that no caller saw, as brokers do with messages that were handed over and
    /// returned.
    pub counts_returns: bool,
    /// Whether the store counts deliveries. Where it does not, a count may be too low but never above a limit.
    pub counts_deliveries: bool,
    /// How many findings of each kind are listed; all are counted.
    pub findings_per_kind: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            time_resolution: Duration::from_micros(1),
            tolerance: Duration::from_millis(5),
            clock_skew: Duration::ZERO,
            dedup: DedupScope::WhileAlive,
            leases: LeaseScope::Store,
            retries_are_copies: false,
            counts_returns: false,
            counts_deliveries: true,
            findings_per_kind: 20,
        }
    }
}

/// The state of the connections to a store while a history is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// No faults.
    Intact,
    /// Connections are cut, answers lost, servers killed.
    Faulty,
}

impl CheckOptions {
    /// For a provider with these limits.
    pub fn for_limits(limits: &Limits) -> Self {
        Self { time_resolution: limits.time_resolution, ..Self::default() }
    }

    /// For a provider with these capabilities.
    pub fn for_provider(capabilities: &Capabilities, network: Network) -> Self {
        let mut options = Self::for_limits(&capabilities.limits);
        if let Some(window) = capabilities.limits.dedup_window {
            options.dedup = DedupScope::Window(window);
        }
        // A store that cannot uncount a delivery cannot change a message at all: it copies.
        options.retries_are_copies = !capabilities.offers(Feature::FreeRelease);
        options.counts_returns = options.retries_are_copies;
        options.counts_deliveries = capabilities.offers(Feature::DeliveryLimit);
        if network == Network::Faulty && !capabilities.offers(Feature::PortableReceipts) {
            options.leases = LeaseScope::Connections;
        }
        options
    }
}

/// What a lease is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseScope {
    /// The store keeps it beyond the connection.
    Store,
    /// It ends with its holder's connection, without notice to the holder. Then a lease is certain only as long as its
    /// holder used it with success; a message that was handed over and lost on the way counts as delivered; a message
    /// that is copied before it is removed may exist twice; and a message with a key, which waits for its retry with its
    /// holder, returns when the connection ends.
    Connections,
}

/// How long a message holds its dedup key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupScope {
    /// As long as the message lives, as the law requires.
    WhileAlive,
    /// For this time from the send, as some brokers do.
    Window(Duration),
}

/// Checks a history. Its events may come in any order; findings number them from 1.
pub fn check(events: &[Event], options: &CheckOptions) -> Verdict {
    let (index, mut counts) = build::build(events, options);
    let mut findings = Findings::new(options.findings_per_kind);
    contents::check(&index, &mut findings);
    lost::check(&index, &mut findings);
    counts.duplicates_after_unknown = duplicated::check(&index, &mut findings);
    dedup::check(&index, &mut findings);
    two_leases::check(&index, &mut findings);
    stale_settle::check(&index, &mut findings);
    early::check(&index, &mut findings);
    reordered::check(&index, &mut findings);
    forgotten_count::check(&index, &mut findings);
    wrong_dead_letter::check(&index, &mut findings);
    let (findings, found) = findings.into_parts();
    Verdict { findings, found, counts }
}

#[cfg(test)]
mod tests {
    use super::test_history::TestHistory;
    use super::*;

    #[test]
    fn an_empty_history_shows_nothing() {
        let verdict = check(&[], &CheckOptions::default());
        assert!(verdict.is_clean());
        let text = verdict.to_string();
        assert!(text.contains("no final state was recorded") && text.contains("no breach of the law"), "{text}");
    }

    #[test]
    fn findings_of_one_kind_are_listed_up_to_a_limit() {
        let mut history = TestHistory::default();
        for message in 0..50 {
            history.send(message..message + 1, message);
        }
        history.finish(&[], &[]);
        let verdict = history.verdict();
        assert_eq!((verdict.findings.len(), verdict.found[&FindingKind::Lost]), (20, 50));
        let text = verdict.to_string();
        assert!(text.contains("L1 lost: message 00000000-"), "{text}");
        assert!(text.contains("30 more: lost"), "{text}");
        assert!(!text.contains("no breach"), "{text}");
    }

    #[test]
    fn clocks_that_differ_leave_room() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        history.ack(20..30, token);
        history.receive(35..40, 1);
        assert!(history.verdict().has(FindingKind::Duplicated));
        history.options.clock_skew = Duration::from_millis(2);
        assert!(history.verdict().has(FindingKind::Duplicated));
        history.options.clock_skew = Duration::from_millis(3);
        history.assert_clean();
    }

    #[test]
    fn a_verdict_survives_as_json() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history.finish(&[], &[]);
        let verdict = history.verdict();
        let json = serde_json::to_string(&verdict).unwrap();
        assert!(json.contains(r#""found":{"lost":1}"#), "{json}");
        assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict);
    }
}
