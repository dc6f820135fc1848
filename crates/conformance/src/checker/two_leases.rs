//! Overlapping leases of one message.

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

/// One sweep: a delivery is compared with the earlier lease that lasts longest.
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

/// Whether the leases overlapped, whichever of them was first.
fn overlap(first: &Delivered<'_>, second: &Delivered<'_>) -> bool {
    let second_ran_into_first = second.span.end < first.lease.held_until;
    let first_ran_into_second = first.span.end < second.lease.held_until;
    first.event == second.event
        || (second_ran_into_first && (first.span.is_before(second.span) || first_ran_into_second))
}

/// With several copies: more leases at one moment than copies.
fn check_copies(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    let mut ends: Vec<_> = stay.deliveries.iter().map(|delivered| delivered.lease.held_until).collect();
    ends.sort_unstable();
    let mut over = 0;
    for (begun, delivered) in stay.deliveries.iter().enumerate() {
        while ends.get(over).is_some_and(|end| *end <= delivered.span.end) {
            over += 1;
        }
        // A lease that ended before its receive was answered counts as ended although it never began.
        if begun + 1 > over + message.copies {
            let queue = &index.queue(stay.queue).name;
            findings.add((FindingKind::TwoLeases, 2), queue, message.id, || {
                let (copies, delivered) = (message.copies, index.cite(delivered.event));
                format!("{delivered} made {} leases at once, and there were at most {copies} copies", begun + 1 - over)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::LeaseScope;
    use crate::checker::test_history::{LEASE, TestHistory, id, ms};
    use crate::history::{LeaseOutcome, Outcome};

    const KIND: FindingKind = FindingKind::TwoLeases;

    fn sent() -> TestHistory {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history
    }

    #[test]
    fn a_delivery_within_a_lease_is_accused() {
        let mut history = sent();
        history.receive(10..12, 1);
        history.receive(900..950, 1);
        let text = history.assert_accused(KIND, 2);
        assert!(text.contains("worker 2 at 0.900000 s to 0.950000 s (event 3)"), "{text}");
        assert!(text.contains("held until 1.005000 s"), "{text}");
    }

    #[test]
    fn a_delivery_that_may_have_come_after_the_lease_is_not() {
        let mut history = sent();
        history.receive(10..12, 1);
        history.receive(900..1_006, 1);
        history.assert_clean();
    }

    #[test]
    fn a_lease_of_a_connection_is_certain_until_its_last_use() {
        for is_used in [false, true] {
            let mut history = sent();
            history.options.leases = LeaseScope::Connections;
            let token = history.receive(10..12, 1);
            history.receive(400..450, 1);
            if is_used {
                // A receiver that can still settle had not lost its lease.
                history.ack(500..510, token);
                assert!(history.verdict().found.contains_key(&KIND));
            } else {
                history.assert_clean();
            }
        }
    }

    #[test]
    fn a_waiting_receive_leases_no_earlier_than_the_send() {
        let mut history = TestHistory::default();
        history.receive(0..2_010, 1);
        history.send(2_000..2_005, 1);
        history.receive(2_500..2_600, 1);
        history.assert_accused(KIND, 2);
    }

    #[test]
    fn overlapping_receives_are_checked_in_both_orders() {
        let mut history = sent();
        // Either order is two leases: each was leased for a second, within a few milliseconds of the other.
        history.receive(10..20, 1);
        history.receive(12..22, 1);
        history.assert_accused(KIND, 2);

        let mut history = sent();
        // The second may have been first, with a lease too short to reach the other.
        history.receive(10..20, 1);
        history.receive_with(12..22, &[1], |call| call.visibility = ms(1));
        history.assert_clean();
    }

    #[test]
    fn one_receive_may_not_return_a_message_twice() {
        let mut history = sent();
        history.receive_with(10..20, &[1, 1], |_| {});
        history.assert_accused(KIND, 2);
    }

    #[test]
    fn a_lease_that_may_have_been_given_up_excuses_the_next() {
        let nacks = [Nack::Release, Nack::retry_after(ms(0))];
        for outcome in [LeaseOutcome::Done, LeaseOutcome::Unknown] {
            for nack in &nacks {
                let mut history = sent();
                let token = history.receive(10..12, 1);
                history.settle(50..60, token, Disposition::Nack(nack.clone()), outcome.clone());
                history.receive(40..55, 1);
                history.assert_clean();
            }
        }
        let mut history = sent();
        let token = history.receive(10..12, 1);
        history.drop_message(50..51, token);
        history.receive(40..55, 1);
        history.assert_clean();
    }

    #[test]
    fn a_settle_that_changed_nothing_excuses_no_second_lease() {
        for outcome in [LeaseOutcome::Expired, LeaseOutcome::Failed("no".into())] {
            let mut history = sent();
            let token = history.receive(10..12, 1);
            history.settle(50..60, token, Disposition::Nack(Nack::Release), outcome);
            history.receive(100..110, 1);
            history.assert_accused(KIND, 2);
        }
    }

    #[test]
    fn a_settle_that_began_after_the_second_delivery_does_not_excuse_it() {
        let mut history = sent();
        let token = history.receive(10..12, 1);
        history.receive(20..30, 1);
        history.settle(31..40, token, Disposition::Ack, LeaseOutcome::Unknown);
        history.assert_accused(KIND, 2);
    }

    #[test]
    fn an_extended_lease_is_held_longer() {
        let mut history = sent();
        let token = history.receive(10..12, 1);
        history.extend(500..510, token, LEASE, LeaseOutcome::Done);
        history.receive(1_400..1_450, 1);
        history.assert_accused(KIND, 2);
    }

    #[test]
    fn an_extension_can_shorten_a_lease_also_when_its_answer_was_lost() {
        for outcome in [LeaseOutcome::Done, LeaseOutcome::Unknown] {
            let mut history = sent();
            let token = history.receive(10..12, 1);
            history.extend(20..30, token, 50, outcome);
            history.receive(80..90, 1);
            history.assert_clean();
        }
        let mut history = sent();
        let token = history.receive(10..12, 1);
        history.extend(20..30, token, 50, LeaseOutcome::Failed("no".into()));
        history.receive(80..90, 1);
        history.assert_accused(KIND, 2);
    }

    #[test]
    fn of_two_overlapping_extensions_either_may_be_the_last() {
        let mut history = sent();
        let token = history.receive(10..12, 1);
        history.extend(20..40, token, 2_000, LeaseOutcome::Done);
        history.extend(30..50, token, 60, LeaseOutcome::Done);
        history.receive(90..100, 1);
        history.assert_clean();
        let mut history = sent();
        let token = history.receive(10..12, 1);
        history.extend(30..35, token, 60, LeaseOutcome::Done);
        history.extend(40..50, token, 2_000, LeaseOutcome::Done);
        history.receive(900..1_600, 1);
        history.assert_accused(KIND, 2);
    }

    #[test]
    fn two_copies_may_be_leased_at_once_but_not_three() {
        let mut history = TestHistory::default();
        history.send_with(0..1, 1, |call| call.outcome = Outcome::Unknown);
        history.send(2..3, 1);
        history.receive(10..12, 1);
        history.receive(20..22, 1);
        history.assert_clean();
        history.receive(30..32, 1);
        let text = history.assert_accused(KIND, 2);
        assert!(text.contains("3 leases at once, and there were at most 2 copies"), "{text}");
    }

    #[test]
    fn a_resend_that_was_answered_with_another_id_is_no_copy() {
        let mut history = sent();
        history.send(0..1, 2);
        history.send_with(2..3, 1, |call| call.outcome = Outcome::Failed("no".into()));
        history.receive(10..12, 1);
        history.receive(20..22, 1);
        let verdict = history.verdict();
        assert_eq!(verdict.findings[0].id, id(1));
        assert!(verdict.has(KIND));
    }
}
