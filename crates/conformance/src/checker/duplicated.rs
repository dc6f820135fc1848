//! Messages that existed more often than they were sent.

use postrider_core::Timestamp;

use super::LeaseScope;
use super::finding::{FindingKind, Findings};
use super::index::{Index, MessageLog, Settled, Stay};

/// Returns how many deliveries are excused only by an unknown outcome.
pub(super) fn check(index: &Index<'_>, findings: &mut Findings) -> u64 {
    let mut excused = 0;
    for message in &index.messages {
        if !message.settles.is_empty() {
            excused += check_message(index, findings, message);
        }
    }
    excused
}

fn check_message(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>) -> u64 {
    let mut acks: Vec<_> = message.settles.iter().filter(|settled| settled.is_ack() && settled.is_done()).collect();
    acks.sort_by_key(|ack| ack.span.end);
    if let Some(one_too_many) = acks.get(message.copies) {
        let queue = &index.queue(one_too_many.queue).name;
        findings.add((FindingKind::Duplicated, 2), queue, message.id, || {
            let (first, again) = (index.cite(acks[0].event), index.cite(one_too_many.event));
            format!("acknowledged {} times: {first}, then {again}", acks.len())
        });
    }
    let gone = acks.get(message.copies - 1).copied();
    // The index keeps only acks that may have happened.
    let maybe_gone = message.settles.iter().filter(|settled| settled.is_ack());
    let maybe_gone = maybe_gone.map(|ack| ack.span.end).min().unwrap_or(Timestamp::MAX);
    // Copies that were made before an original whose removal is unknown.
    let spare = match index.options.leases {
        LeaseScope::Store => 0,
        LeaseScope::Connections => message.copies - message.possible_sends().count().max(1),
    };
    let mut excused = 0;
    for stay in &message.stays {
        let queue = index.queue(stay.queue);
        let departures = if queue.holds_dead_letters { Vec::new() } else { departures(message, stay) };
        for delivered in &stay.deliveries {
            if let Some(ack) = gone.filter(|ack| ack.span.is_before(delivered.span)) {
                findings.add((FindingKind::Duplicated, 2), &queue.name, message.id, || {
                    let (delivered, ack) = (index.cite(delivered.event), index.cite(ack.event));
                    format!("delivered by {delivered}, after {ack}")
                });
                continue;
            }
            let left = departures.partition_point(|left| left.span.is_before(delivered.span));
            let born = stay.arrivals.partition_point(|arrival| arrival.span.start <= delivered.span.end);
            let uncertain = queue.unknown_redrives_into.possible_by(delivered.span.end) || born == 0;
            if left >= born + spare && !uncertain {
                findings.add((FindingKind::Duplicated, 10), &queue.name, message.id, || {
                    let (delivered, left) = (index.cite(delivered.event), index.cite(departures[left - 1].event));
                    format!("delivered by {delivered}, after {left} had removed it from the queue")
                });
            } else if maybe_gone < delivered.span.start {
                excused += 1;
            }
        }
    }
    excused
}

/// The settles that certainly took the message out of this queue, by their end.
fn departures<'i, 'a>(message: &'i MessageLog<'a>, stay: &Stay<'_>) -> Vec<&'i Settled<'a>> {
    let mut departures: Vec<_> = message
        .settles
        .iter()
        .filter(|settled| settled.queue == stay.queue && settled.is_done() && settled.ends_stay())
        .collect();
    departures.sort_by_key(|settled| settled.span.end);
    departures
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::test_history::{TestHistory, queue};
    use crate::history::{LeaseOutcome, Outcome};

    const KIND: FindingKind = FindingKind::Duplicated;

    fn acked(outcome: LeaseOutcome) -> TestHistory {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        history.settle(20..30, token, Disposition::Ack, outcome);
        history
    }

    #[test]
    fn a_redelivery_is_counted_and_not_accused_where_leases_end_with_connections() {
        for leases in [LeaseScope::Store, LeaseScope::Connections] {
            let mut history = acked(LeaseOutcome::Done);
            history.options.leases = leases;
            let again = history.receive(2_000..2_010, 1);
            history.ack(2_020..2_030, again);
            match leases {
                LeaseScope::Store => drop(history.assert_accused(KIND, 2)),
                LeaseScope::Connections => assert_eq!(history.assert_clean().counts.duplicates_after_unknown, 1),
            }
        }
    }

    #[test]
    fn an_acknowledged_message_does_not_come_back() {
        let mut history = acked(LeaseOutcome::Done);
        history.receive(31..40, 1);
        history.assert_accused(KIND, 2);
        let mut history = acked(LeaseOutcome::Done);
        history.receive_with(31..40, &[1], |call| call.queue = queue().dead_letters());
        history.assert_accused(KIND, 2);
    }

    #[test]
    fn a_receive_that_overlaps_the_ack_is_no_duplicate() {
        let mut history = acked(LeaseOutcome::Done);
        history.receive(30..40, 1);
        assert_eq!(history.assert_clean().counts.duplicates_after_unknown, 0);
    }

    #[test]
    fn a_delivery_after_an_unknown_ack_is_counted_separately() {
        let mut history = acked(LeaseOutcome::Unknown);
        let token = history.receive(1_100..1_110, 1);
        history.ack(1_120..1_130, token);
        assert_eq!(history.assert_clean().counts.duplicates_after_unknown, 1);
    }

    #[test]
    fn an_unknown_retry_may_have_made_two_where_retries_are_copies() {
        for retries_are_copies in [true, false] {
            let mut history = TestHistory::default();
            history.options.retries_are_copies = retries_are_copies;
            history.send(0..1, 1);
            let token = history.receive(10..12, 1);
            let retry = Disposition::Nack(Nack::retry_after(std::time::Duration::ZERO));
            history.settle(20..30, token, retry, LeaseOutcome::Unknown);
            for round in 1..=2 {
                let token = history.receive(round * 1_000..round * 1_000 + 10, 1);
                history.ack(round * 1_000 + 20..round * 1_000 + 30, token);
            }
            match retries_are_copies {
                true => drop(history.assert_clean()),
                false => drop(history.assert_accused(KIND, 2)),
            }
        }
    }

    #[test]
    fn a_resend_after_an_unknown_outcome_may_have_made_two() {
        let mut history = TestHistory::default();
        history.send_with(0..1, 1, |call| call.outcome = Outcome::Unknown);
        history.send(2..3, 1);
        for round in 1..=2 {
            let token = history.receive(round * 10..round * 10 + 1, 1);
            history.ack(round * 10 + 2..round * 10 + 3, token);
        }
        assert_eq!(history.assert_clean().counts.duplicates_after_unknown, 1);
        history.receive(30..31, 1);
        history.assert_accused(KIND, 2);
    }

    #[test]
    fn one_copy_is_acknowledged_once() {
        let mut history = acked(LeaseOutcome::Done);
        let token = history.receive(25..28, 1);
        history.ack(29..35, token);
        let text = history.assert_accused(KIND, 2);
        assert!(text.contains("acknowledged 2 times"), "{text}");
    }

    fn dead() -> TestHistory {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        history.nack(20..30, token, Nack::dead_letter("rejected"));
        history
    }

    #[test]
    fn a_dead_message_is_not_delivered_from_its_queue() {
        let mut history = dead();
        history.receive(31..40, 1);
        history.assert_accused(KIND, 10);
    }

    #[test]
    fn a_dead_message_is_delivered_from_its_dead_letters_and_after_a_redrive() {
        let mut history = dead();
        history.receive_with(31..40, &[1], |call| call.queue = queue().dead_letters());
        history.assert_clean();
        for (ids, known) in [(&[1][..], true), (&[1][..], false), (&[][..], false)] {
            let mut history = dead();
            history.redrive(31..40, ids, known);
            history.receive(35..50, 1);
            history.assert_clean();
        }
    }

    #[test]
    fn every_bulk_redrive_without_an_answer_may_have_brought_it_back() {
        let mut history = dead();
        history.redrive(31..40, &[], false);
        let token = history.receive(41..50, 1);
        history.nack(51..52, token, Nack::dead_letter("rejected"));
        history.redrive(53..60, &[], false);
        history.receive(61..70, 1);
        history.assert_clean();
    }

    #[test]
    fn an_interrupted_redrive_may_leave_a_copy() {
        for ids in [&[1][..], &[][..]] {
            let mut history = dead();
            history.redrive(31..40, ids, false);
            let token = history.receive(41..50, 1);
            history.ack(51..52, token);
            history.finish(&[(1, "rejected", 1)], &[]);
            history.assert_clean();
        }
    }

    #[test]
    fn an_interrupted_move_to_the_dead_letters_may_leave_a_copy() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        let reject = Disposition::Nack(Nack::dead_letter("rejected"));
        history.settle(20..30, token, reject, LeaseOutcome::Unknown);
        let token = history.receive(1_100..1_110, 1);
        history.ack(1_120..1_130, token);
        history.finish(&[(1, "rejected", 2)], &[]);
        history.assert_clean();
    }
}
