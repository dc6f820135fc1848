//! Storms: lawful stores pass them, faults show in their histories, and a seed repeats them.

use postrider_conformance::broken::{Fault, SimulatedStore};
use postrider_conformance::checker::FindingKind;
use postrider_conformance::link::Link;
use postrider_conformance::{Settings, StormReport, StormSettings, storm};

use crate::{in_paused_time, short_or_long};

fn settings(seed: u64, messages: usize) -> Settings {
    Settings { seed, storm: StormSettings { messages, ..StormSettings::default() }, ..Settings::default() }
}

fn run_storm(store: SimulatedStore, seed: u64, messages: usize) -> StormReport {
    let mut report = None;
    in_paused_time(async {
        report = Some(storm(&store, &settings(seed, messages)).await.expect("the storm ends"));
    });
    report.expect("a report")
}

#[test]
fn a_lawful_store_passes_storms() {
    for seed in 0..u64::from(short_or_long(10, 500)) {
        let report = run_storm(SimulatedStore::lawful(), seed, 1000);
        assert!(report.verdict.is_clean(), "seed {seed}: {}", report.verdict);
        let counts = &report.verdict.counts;
        assert!(counts.acks > 500 && counts.dead > 0 && counts.expired > 0 && counts.retries > 0, "{counts:?}");
    }
}

#[test]
fn lost_answers_are_counted_and_excused() {
    let mut duplicates = 0;
    for seed in 0..u64::from(short_or_long(10, 500)) {
        let store = SimulatedStore::lawful().link(Link::losing(0.05, seed));
        let report = run_storm(store, seed, 1000);
        assert!(report.verdict.is_clean(), "seed {seed}: {}", report.verdict);
        assert!(report.verdict.counts.unknown_sends > 0 && report.verdict.counts.unknown_acks > 0);
        duplicates += report.verdict.counts.duplicates_after_unknown;
    }
    // Some unanswered acks came too late: their messages come again, which is no breach.
    assert!(duplicates > 0);
}

#[test]
fn faults_show_in_the_history() {
    let faults = [
        (Fault::LosesSends, FindingKind::Lost),
        (Fault::IgnoresDedupKey, FindingKind::Duplicated),
        (Fault::LeasesTwice, FindingKind::TwoLeases),
        (Fault::IgnoresToken, FindingKind::StaleSettle),
        (Fault::AcksTwice, FindingKind::StaleSettle),
        (Fault::RetriesAtOnce, FindingKind::Early),
        (Fault::DeliversEarly, FindingKind::Early),
        (Fault::DeliversExpired, FindingKind::Early),
        (Fault::ForgetsCount, FindingKind::ForgottenCount),
        (Fault::DropsDeadLetters, FindingKind::WrongDeadLetter),
        (Fault::LosesOrder, FindingKind::Reordered),
        (Fault::RetriesLosePlace, FindingKind::Reordered),
    ];
    for (fault, kind) in faults {
        let report = run_storm(SimulatedStore::with_fault(fault), 7, 1000);
        assert!(report.verdict.has(kind), "{fault:?} does not show as {kind}: {}", report.verdict);
    }
}

#[test]
fn a_seed_repeats_a_storm() {
    let counts = |seed| run_storm(SimulatedStore::lawful(), seed, 500).verdict.counts;
    assert_eq!(counts(3), counts(3));
    assert_ne!(counts(3), counts(4));
}
