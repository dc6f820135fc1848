//! Messages that were there more often than they were sent.

use postrider_core::Timestamp;

use super::LeasesOf;
use super::finding::{FindingKind, Findings};
use super::index::{Index, MessageLog, Settled, Stay};

/// Answers how many deliveries would be duplicates if an unknown outcome were known.
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
    // Every ack that is kept in the index may have happened.
    let maybe_gone = message.settles.iter().filter(|settled| settled.is_ack());
    let maybe_gone = maybe_gone.map(|ack| ack.span.end).min().unwrap_or(Timestamp::MAX);
    // Copies that were made before the original was removed, and nobody knows whether it was.
    let spare = match index.options.leases {
        LeasesOf::Store => 0,
        LeasesOf::Connections => message.copies - message.possible_sends().count().max(1),
    };
    let mut excused = 0;
    for stay in &message.stays {
        let queue = index.queue(stay.queue);
        let leavings = if queue.holds_dead_letters { Vec::new() } else { leavings(message, stay) };
        for delivered in &stay.deliveries {
            if let Some(ack) = gone.filter(|ack| ack.span.is_before(delivered.span)) {
                findings.add((FindingKind::Duplicated, 2), &queue.name, message.id, || {
                    let (delivered, ack) = (index.cite(delivered.event), index.cite(ack.event));
                    format!("delivered by {delivered}, after {ack}")
                });
                continue;
            }
            let left = leavings.partition_point(|left| left.span.is_before(delivered.span));
            let born = stay.births.partition_point(|birth| birth.span.start <= delivered.span.end);
            let uncertain = queue.loose_redrives_into.possible_by(delivered.span.end) || born == 0;
            if left >= born + spare && !uncertain {
                findings.add((FindingKind::Duplicated, 10), &queue.name, message.id, || {
                    let (delivered, left) = (index.cite(delivered.event), index.cite(leavings[left - 1].event));
                    format!("delivered by {delivered}, after {left} had taken it out of the queue")
                });
            } else if maybe_gone < delivered.span.start {
                excused += 1;
            }
        }
    }
    excused
}

/// The settles that took the message out of this queue for certain, by their end.
fn leavings<'i, 'a>(message: &'i MessageLog<'a>, stay: &Stay<'_>) -> Vec<&'i Settled<'a>> {
    let mut leavings: Vec<_> = message
        .settles
        .iter()
        .filter(|settled| settled.queue == stay.queue && settled.is_done() && settled.ends_stay())
        .collect();
    leavings.sort_by_key(|settled| settled.span.end);
    leavings
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::story::{Story, queue};
    use crate::history::{LeaseOutcome, Outcome};

    const KIND: FindingKind = FindingKind::Duplicated;

    fn acked(outcome: LeaseOutcome) -> Story {
        let mut story = Story::default();
        story.send(0..1, 1);
        let token = story.receive(10..12, 1);
        story.settle(20..30, token, Disposition::Ack, outcome);
        story
    }

    #[test]
    fn on_a_store_that_copies_first_what_came_back_is_counted() {
        for leases in [LeasesOf::Store, LeasesOf::Connections] {
            let mut story = acked(LeaseOutcome::Done);
            story.options.leases = leases;
            let again = story.receive(2_000..2_010, 1);
            story.ack(2_020..2_030, again);
            match leases {
                LeasesOf::Store => drop(story.assert_accused(KIND, 2)),
                LeasesOf::Connections => assert_eq!(story.assert_clean().counts.duplicates_after_unknown, 1),
            }
        }
    }

    #[test]
    fn an_acknowledged_message_does_not_come_back() {
        let mut story = acked(LeaseOutcome::Done);
        story.receive(31..40, 1);
        story.assert_accused(KIND, 2);
        let mut story = acked(LeaseOutcome::Done);
        story.receive_with(31..40, &[1], |call| call.queue = queue().dead_letters());
        story.assert_accused(KIND, 2);
    }

    #[test]
    fn a_receive_beside_the_ack_is_another_matter() {
        let mut story = acked(LeaseOutcome::Done);
        story.receive(30..40, 1);
        assert_eq!(story.assert_clean().counts.duplicates_after_unknown, 0);
    }

    #[test]
    fn a_delivery_after_an_unknown_ack_is_counted_apart() {
        let mut story = acked(LeaseOutcome::Unknown);
        let token = story.receive(1_100..1_110, 1);
        story.ack(1_120..1_130, token);
        assert_eq!(story.assert_clean().counts.duplicates_after_unknown, 1);
    }

    #[test]
    fn an_unknown_retry_may_have_made_two_where_retries_are_copies() {
        for retries_are_copies in [true, false] {
            let mut story = Story::default();
            story.options.retries_are_copies = retries_are_copies;
            story.send(0..1, 1);
            let token = story.receive(10..12, 1);
            let retry = Disposition::Nack(Nack::retry_after(std::time::Duration::ZERO));
            story.settle(20..30, token, retry, LeaseOutcome::Unknown);
            for turn in 1..=2 {
                let token = story.receive(turn * 1_000..turn * 1_000 + 10, 1);
                story.ack(turn * 1_000 + 20..turn * 1_000 + 30, token);
            }
            match retries_are_copies {
                true => drop(story.assert_clean()),
                false => drop(story.assert_accused(KIND, 2)),
            }
        }
    }

    #[test]
    fn a_resend_after_an_unknown_outcome_may_have_made_two() {
        let mut story = Story::default();
        story.send_with(0..1, 1, |call| call.outcome = Outcome::Unknown);
        story.send(2..3, 1);
        for turn in 1..=2 {
            let token = story.receive(turn * 10..turn * 10 + 1, 1);
            story.ack(turn * 10 + 2..turn * 10 + 3, token);
        }
        assert_eq!(story.assert_clean().counts.duplicates_after_unknown, 1);
        story.receive(30..31, 1);
        story.assert_accused(KIND, 2);
    }

    #[test]
    fn one_copy_is_acknowledged_once() {
        let mut story = acked(LeaseOutcome::Done);
        let token = story.receive(25..28, 1);
        story.ack(29..35, token);
        let text = story.assert_accused(KIND, 2);
        assert!(text.contains("acknowledged 2 times"), "{text}");
    }

    fn dead() -> Story {
        let mut story = Story::default();
        story.send(0..1, 1);
        let token = story.receive(10..12, 1);
        story.nack(20..30, token, Nack::dead_letter("rejected"));
        story
    }

    #[test]
    fn a_dead_message_is_not_delivered_from_its_queue() {
        let mut story = dead();
        story.receive(31..40, 1);
        story.assert_accused(KIND, 10);
    }

    #[test]
    fn a_dead_message_is_delivered_from_its_dead_letters_and_after_a_redrive() {
        let mut story = dead();
        story.receive_with(31..40, &[1], |call| call.queue = queue().dead_letters());
        story.assert_clean();
        for (ids, known) in [(&[1][..], true), (&[1][..], false), (&[][..], false)] {
            let mut story = dead();
            story.redrive(31..40, ids, known);
            story.receive(35..50, 1);
            story.assert_clean();
        }
    }

    #[test]
    fn every_bulk_redrive_without_an_answer_may_have_brought_it_back() {
        let mut story = dead();
        story.redrive(31..40, &[], false);
        let token = story.receive(41..50, 1);
        story.nack(51..52, token, Nack::dead_letter("rejected"));
        story.redrive(53..60, &[], false);
        story.receive(61..70, 1);
        story.assert_clean();
    }

    #[test]
    fn an_interrupted_redrive_may_leave_a_copy() {
        for ids in [&[1][..], &[][..]] {
            let mut story = dead();
            story.redrive(31..40, ids, false);
            let token = story.receive(41..50, 1);
            story.ack(51..52, token);
            story.finish(&[(1, "rejected", 1)], &[]);
            story.assert_clean();
        }
    }

    #[test]
    fn an_interrupted_move_to_the_dead_letters_may_leave_a_copy() {
        let mut story = Story::default();
        story.send(0..1, 1);
        let token = story.receive(10..12, 1);
        let reject = Disposition::Nack(Nack::dead_letter("rejected"));
        story.settle(20..30, token, reject, LeaseOutcome::Unknown);
        let token = story.receive(1_100..1_110, 1);
        story.ack(1_120..1_130, token);
        story.finish(&[(1, "rejected", 2)], &[]);
        story.assert_clean();
    }
}
