//! A simulated queue that tests the checker: a correct queue is never accused, a broken one is.

mod choice;
mod queue;
mod random;
mod run;

use super::{FindingKind, check};
use crate::history::Operation;
use queue::Fault;
use run::history;

#[test]
fn a_correct_queue_is_never_accused() {
    let mut deliveries = 0;
    let mut after_unknown = 0;
    for seed in 0..2_000 {
        let (events, options) = history(seed, None);
        let verdict = check(&events, &options);
        if !verdict.is_clean() {
            for (number, event) in events.iter().enumerate() {
                println!("{} {}", number + 1, serde_json::to_string(event).unwrap());
            }
            panic!("seed {seed}: {verdict}");
        }
        deliveries += verdict.counts.deliveries;
        after_unknown += verdict.counts.duplicates_after_unknown;
    }
    assert!(deliveries > 100_000, "too little was done to mean anything: {deliveries} deliveries");
    assert!(after_unknown > 1_000, "{after_unknown} deliveries after an unknown ack");
}

#[test]
fn a_correct_queue_performs_every_operation() {
    let (mut ops, mut expired, mut redriven, mut dead) = ([0; 9], 0, 0, 0);
    for seed in 0..200 {
        let (events, options) = history(seed, None);
        let counts = check(&events, &options).counts;
        for event in &events {
            ops[match event.operation {
                Operation::Send(_) => 0,
                Operation::Receive(_) => 1,
                Operation::Settle(_) => 2,
                Operation::Extend(_) => 3,
                Operation::Dropped(_) => 4,
                Operation::Redrive(_) => 5,
                Operation::Purge(_) => 6,
                Operation::Final(_) => 7,
                _ => 8,
            }] += 1;
        }
        expired += counts.expired;
        redriven += counts.redriven;
        dead += counts.dead;
    }
    assert!(ops[..8].iter().all(|count| *count > 50) && ops[8] == 0, "{ops:?}");
    assert!(expired > 500 && redriven > 100 && dead > 500, "{expired} {redriven} {dead}");
}

#[test]
fn each_fault_is_found_by_its_own_kind() {
    let faults = [
        (Fault::IgnoresToken, FindingKind::StaleSettle),
        (Fault::IgnoresLeaseEnd, FindingKind::StaleSettle),
        (Fault::ForgetsLease, FindingKind::TwoLeases),
        (Fault::DeliversEarly, FindingKind::Early),
        (Fault::DeliversExpired, FindingKind::Early),
        (Fault::LosesOrder, FindingKind::Reordered),
        (Fault::PassesRetrying, FindingKind::Reordered),
        (Fault::DropsMessage, FindingKind::Lost),
        (Fault::DropsDeadLetter, FindingKind::WrongDeadLetter),
        (Fault::KillsWithoutCause, FindingKind::WrongDeadLetter),
        (Fault::KillsTooSoon, FindingKind::WrongDeadLetter),
        (Fault::ForgetsDelivery, FindingKind::ForgottenCount),
        (Fault::ForgetsAttempt, FindingKind::ForgottenCount),
        (Fault::IgnoresLimit, FindingKind::ForgottenCount),
        (Fault::KeepsAcked, FindingKind::Duplicated),
        (Fault::KeepsDead, FindingKind::Duplicated),
        (Fault::IgnoresDedup, FindingKind::Duplicated),
        (Fault::AltersBody, FindingKind::Altered),
        (Fault::InventsMessage, FindingKind::Phantom),
    ];
    let seeds = 40;
    for (fault, kind) in faults {
        let found = (0..seeds).filter(|seed| {
            let (events, options) = history(*seed, Some(fault));
            check(&events, &options).has(kind)
        });
        let found = found.count();
        assert!(found * 2 > seeds as usize, "{fault:?} was found in {found} of {seeds} histories");
    }
}
