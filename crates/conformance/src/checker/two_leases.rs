//! Two receivers that held one message at once.

use super::finding::{FindingKind, Findings};
use super::index::{Delivered, Index, MessageLog, Stay};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    for message in &index.messages {
        for stay in message.stays.iter().filter(|stay| stay.deliveries.len() > 1) {
            if message.copies == 1 {
                check_single(index, findings, message, stay);
            } else {
                check_copies(index, findings, message, stay);
            }
        }
    }
}

/// One sweep: of the leases so far, the one that lasts longest is the one that a new delivery runs into.
fn check_single(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    let mut holder: Option<&Delivered<'_>> = None;
    for delivered in &stay.deliveries {
        if let Some(holder) = holder.filter(|holder| overlap(holder, delivered)) {
            let queue = &index.queue(stay.queue).name;
            findings.add((FindingKind::TwoLeases, 2), queue, message.id, || {
                let until = index.time(holder.lease.held_until);
                let (first, second) = (index.cite(holder.event), index.cite(delivered.event));
                format!("delivered by {second}, while the lease of {first} was held until {until} at least")
            });
        }
        if holder.is_none_or(|holder| holder.lease.held_until < delivered.lease.held_until) {
            holder = Some(delivered);
        }
    }
}

/// Whether both were leased at once, whichever of them was first.
fn overlap(first: &Delivered<'_>, second: &Delivered<'_>) -> bool {
    let second_ran_into_first = second.span.end < first.lease.held_until;
    let first_ran_into_second = first.span.end < second.lease.held_until;
    first.event == second.event
        || (second_ran_into_first && (first.span.is_before(second.span) || first_ran_into_second))
}

/// With several copies, more leases at one moment than copies.
fn check_copies(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    let mut ends: Vec<_> = stay.deliveries.iter().map(|delivered| delivered.lease.held_until).collect();
    ends.sort_unstable();
    let mut over = 0;
    for (begun, delivered) in stay.deliveries.iter().enumerate() {
        while ends.get(over).is_some_and(|end| *end <= delivered.span.end) {
            over += 1;
        }
        // A lease that was over before its receive was answered is counted as over though it never began.
        if begun + 1 > over + message.copies {
            let queue = &index.queue(stay.queue).name;
            findings.add((FindingKind::TwoLeases, 2), queue, message.id, || {
                let (copies, delivered) = (message.copies, index.cite(delivered.event));
                format!("{delivered} made {} leases at once, and there were {copies} copies at most", begun + 1 - over)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::LeasesOf;
    use crate::checker::story::{LEASE, Story, id, ms};
    use crate::history::{LeaseOutcome, Outcome};

    const KIND: FindingKind = FindingKind::TwoLeases;

    fn sent() -> Story {
        let mut story = Story::default();
        story.send(0..1, 1);
        story
    }

    #[test]
    fn a_delivery_within_a_lease_is_accused() {
        let mut story = sent();
        story.receive(10..12, 1);
        story.receive(900..950, 1);
        let text = story.assert_accused(KIND, 2);
        assert!(text.contains("worker 2 at 0.900000 s to 0.950000 s (event 3)"), "{text}");
        assert!(text.contains("held until 1.005000 s"), "{text}");
    }

    #[test]
    fn a_delivery_that_may_have_come_after_the_lease_is_not() {
        let mut story = sent();
        story.receive(10..12, 1);
        story.receive(900..1_006, 1);
        story.assert_clean();
    }

    #[test]
    fn a_lease_of_a_connection_was_held_as_long_as_it_was_used() {
        for is_used in [false, true] {
            let mut story = sent();
            story.options.leases = LeasesOf::Connections;
            let token = story.receive(10..12, 1);
            story.receive(400..450, 1);
            if is_used {
                // Whoever can still settle had not lost it.
                story.ack(500..510, token);
                assert!(story.verdict().found.contains_key(&KIND));
            } else {
                story.assert_clean();
            }
        }
    }

    #[test]
    fn a_receive_that_waited_leased_no_earlier_than_the_send() {
        let mut story = Story::default();
        story.receive(0..2_010, 1);
        story.send(2_000..2_005, 1);
        story.receive(2_500..2_600, 1);
        story.assert_accused(KIND, 2);
    }

    #[test]
    fn overlapping_receives_are_judged_in_both_orders() {
        let mut story = sent();
        // Either order is two leases: each was leased for a second, within a few milliseconds of the other.
        story.receive(10..20, 1);
        story.receive(12..22, 1);
        story.assert_accused(KIND, 2);

        let mut story = sent();
        // The second may have been first, with a lease too short to reach the other.
        story.receive(10..20, 1);
        story.receive_with(12..22, &[1], |call| call.visibility = ms(1));
        story.assert_clean();
    }

    #[test]
    fn one_receive_may_not_hand_out_a_message_twice() {
        let mut story = sent();
        story.receive_with(10..20, &[1, 1], |_| {});
        story.assert_accused(KIND, 2);
    }

    #[test]
    fn whoever_may_have_given_a_lease_up_excuses_the_next() {
        let nacks = [Nack::Release, Nack::retry_after(ms(0))];
        for outcome in [LeaseOutcome::Done, LeaseOutcome::Unknown] {
            for nack in &nacks {
                let mut story = sent();
                let token = story.receive(10..12, 1);
                story.settle(50..60, token, Disposition::Nack(nack.clone()), outcome.clone());
                story.receive(40..55, 1);
                story.assert_clean();
            }
        }
        let mut story = sent();
        let token = story.receive(10..12, 1);
        story.drop_message(50..51, token);
        story.receive(40..55, 1);
        story.assert_clean();
    }

    #[test]
    fn a_settle_that_changed_nothing_excuses_nobody() {
        for outcome in [LeaseOutcome::Expired, LeaseOutcome::Failed("no".into())] {
            let mut story = sent();
            let token = story.receive(10..12, 1);
            story.settle(50..60, token, Disposition::Nack(Nack::Release), outcome);
            story.receive(100..110, 1);
            story.assert_accused(KIND, 2);
        }
    }

    #[test]
    fn a_settle_that_began_after_the_second_delivery_excuses_nobody() {
        let mut story = sent();
        let token = story.receive(10..12, 1);
        story.receive(20..30, 1);
        story.settle(31..40, token, Disposition::Ack, LeaseOutcome::Unknown);
        story.assert_accused(KIND, 2);
    }

    #[test]
    fn an_extended_lease_is_held_longer() {
        let mut story = sent();
        let token = story.receive(10..12, 1);
        story.extend(500..510, token, LEASE, LeaseOutcome::Done);
        story.receive(1_400..1_450, 1);
        story.assert_accused(KIND, 2);
    }

    #[test]
    fn an_extension_can_shorten_a_lease_also_when_its_answer_was_lost() {
        for outcome in [LeaseOutcome::Done, LeaseOutcome::Unknown] {
            let mut story = sent();
            let token = story.receive(10..12, 1);
            story.extend(20..30, token, 50, outcome);
            story.receive(80..90, 1);
            story.assert_clean();
        }
        let mut story = sent();
        let token = story.receive(10..12, 1);
        story.extend(20..30, token, 50, LeaseOutcome::Failed("no".into()));
        story.receive(80..90, 1);
        story.assert_accused(KIND, 2);
    }

    #[test]
    fn of_two_extensions_at_once_either_may_be_the_last() {
        let mut story = sent();
        let token = story.receive(10..12, 1);
        story.extend(20..40, token, 2_000, LeaseOutcome::Done);
        story.extend(30..50, token, 60, LeaseOutcome::Done);
        story.receive(90..100, 1);
        story.assert_clean();
        let mut story = sent();
        let token = story.receive(10..12, 1);
        story.extend(30..35, token, 60, LeaseOutcome::Done);
        story.extend(40..50, token, 2_000, LeaseOutcome::Done);
        story.receive(900..1_600, 1);
        story.assert_accused(KIND, 2);
    }

    #[test]
    fn two_copies_may_be_leased_at_once_but_not_three() {
        let mut story = Story::default();
        story.send_with(0..1, 1, |call| call.outcome = Outcome::Unknown);
        story.send(2..3, 1);
        story.receive(10..12, 1);
        story.receive(20..22, 1);
        story.assert_clean();
        story.receive(30..32, 1);
        let text = story.assert_accused(KIND, 2);
        assert!(text.contains("3 leases at once, and there were 2 copies at most"), "{text}");
    }

    #[test]
    fn a_resend_that_was_answered_with_another_id_is_no_copy() {
        let mut story = sent();
        story.send(0..1, 2);
        story.send_with(2..3, 1, |call| call.outcome = Outcome::Failed("no".into()));
        story.receive(10..12, 1);
        story.receive(20..22, 1);
        let verdict = story.verdict();
        assert_eq!(verdict.findings[0].id, id(1));
        assert!(verdict.has(KIND));
    }
}
