//! Judges a provider by what its callers saw.
//!
//! **The idea.** A call took effect at some moment between its start and its end; a call without an answer at any
//! moment after its start, or never. From these intervals each rule of the law gives bounds: when a lease can have
//! ended at the earliest and at the latest, by when a message was certainly there. What breaks a rule for *every*
//! choice of moments is a finding.
//!
//! **The invariant.** A correct provider is never accused. Where an order of events cannot be told, the order that
//! excuses the provider is taken; a call is before another only when it ended before the other began.
//!
//! **What was rejected.** A search for an order of all events that the law allows (as linearizability checkers do):
//! its time is exponential in the overlap. Rules by themselves need one sweep each, so a million events take seconds;
//! what they miss is a breach that shows only when several overlapping calls are weighed together.

mod build;
mod contents;
mod dedup;
mod duplicated;
mod early;
mod fate;
mod finding;
mod forgotten_count;
mod index;
mod lease;
mod lost;
mod reordered;
mod spans;
mod stale_settle;
mod two_leases;
mod verdict;
mod wrong_dead_letter;

#[cfg(test)]
mod scale;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod story;

use std::time::Duration;

use postrider_core::{Capabilities, Feature, Limits};

use crate::history::Event;
use finding::Findings;
pub use finding::{Finding, FindingKind};
pub use verdict::{Counts, Verdict};

/// What the checker must know of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOptions {
    /// The store's smallest unit of time. It may round a duration up to it.
    pub time_resolution: Duration,
    /// How far the clocks of store and callers may drift apart over one lease or delay.
    pub tolerance: Duration,
    /// How far the clocks of several processes may differ whose histories were put together. Each call is taken to
    /// have begun that much earlier and ended that much later than it says.
    pub clock_skew: Duration,
    /// How long a dedup key is taken.
    pub dedup: DedupScope,
    /// What a lease is bound to.
    pub leases: LeasesOf,
    /// Whether a retry is a copy and then a delete, as on brokers that cannot change a message: one whose answer was lost
    /// may leave both.
    pub retries_are_copies: bool,
    /// Whether the store counts more than the deliveries that were answered, as brokers do: whatever they handed over and
    /// got back.
    pub counts_returns: bool,
    /// Whether the store counts deliveries at all. On one that does not, a count may be too low; it is never above a limit.
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
            leases: LeasesOf::Store,
            retries_are_copies: false,
            counts_returns: false,
            counts_deliveries: true,
            findings_per_kind: 20,
        }
    }
}

/// What befalls the way to a store while a history is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Nothing.
    Clear,
    /// Connections are cut, answers lost, servers killed.
    Faulty,
}

impl CheckOptions {
    /// For a provider with these limits.
    pub fn for_limits(limits: &Limits) -> Self {
        Self { time_resolution: limits.time_resolution, ..Self::default() }
    }

    /// For a provider with these capabilities.
    pub fn for_provider(capabilities: &Capabilities, way: Way) -> Self {
        let mut options = Self::for_limits(&capabilities.limits);
        if let Some(window) = capabilities.limits.dedup_window {
            options.dedup = DedupScope::Window(window);
        }
        // A store that cannot take a delivery back cannot change a message at all: it copies.
        options.retries_are_copies = !capabilities.offers(Feature::FreeRelease);
        options.counts_returns = options.retries_are_copies;
        options.counts_deliveries = capabilities.offers(Feature::DeliveryLimit);
        if way == Way::Faulty && !capabilities.offers(Feature::PortableReceipts) {
            options.leases = LeasesOf::Connections;
        }
        options
    }
}

/// What a lease is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeasesOf {
    /// The store keeps it, whatever becomes of the connection.
    Store,
    /// It ends with its holder's connection, and nobody tells the holder: on a store like that, when connections are cut.
    /// Then a lease was held for certain only as long as its holder used it with success; a message that was handed over
    /// and lost on the way counts as delivered; a message that is copied before it is removed may be there twice; and one
    /// with a key, which waits for its retry in the holder's hand, comes back when that connection ends.
    Connections,
}

/// How long a dedup key is taken by its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupScope {
    /// As long as the message lives: what the law asks for.
    WhileAlive,
    /// That long from the send, whatever becomes of the message: what some brokers do instead.
    Window(Duration),
}

/// Judges a history. Its events may come in any order; findings name them by their place in it, beginning with 1.
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
    use super::story::Story;
    use super::*;

    #[test]
    fn an_empty_history_shows_nothing() {
        let verdict = check(&[], &CheckOptions::default());
        assert!(verdict.is_clean());
        let text = verdict.to_string();
        assert!(text.contains("no final state was recorded") && text.contains("no breach of the law"), "{text}");
    }

    #[test]
    fn a_provider_that_breaks_a_rule_always_is_told_so_a_few_times() {
        let mut story = Story::default();
        for message in 0..50 {
            story.send(message..message + 1, message);
        }
        story.finish(&[], &[]);
        let verdict = story.verdict();
        assert_eq!((verdict.findings.len(), verdict.found[&FindingKind::Lost]), (20, 50));
        let text = verdict.to_string();
        assert!(text.contains("L1 lost: message 00000000-"), "{text}");
        assert!(text.contains("30 more: lost"), "{text}");
        assert!(!text.contains("no breach"), "{text}");
    }

    #[test]
    fn clocks_that_differ_leave_room() {
        let mut story = Story::default();
        story.send(0..1, 1);
        let token = story.receive(10..12, 1);
        story.ack(20..30, token);
        story.receive(35..40, 1);
        assert!(story.verdict().has(FindingKind::Duplicated));
        story.options.clock_skew = Duration::from_millis(2);
        assert!(story.verdict().has(FindingKind::Duplicated));
        story.options.clock_skew = Duration::from_millis(3);
        story.assert_clean();
    }

    #[test]
    fn a_verdict_survives_as_json() {
        let mut story = Story::default();
        story.send(0..1, 1);
        story.finish(&[], &[]);
        let verdict = story.verdict();
        let json = serde_json::to_string(&verdict).unwrap();
        assert!(json.contains(r#""found":{"lost":1}"#), "{json}");
        assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), verdict);
    }
}
