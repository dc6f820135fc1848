//! Dead letters that are missing, and dead letters that should not exist.

use std::collections::HashSet;

use postrider_core::DeadLetterReason;

use super::contents;
use super::finding::{FindingKind, Findings};
use super::index::{FinalDeadLetter, Index, MessageLog};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    for message in &index.messages {
        is_listed(index, findings, message);
        if message.dead.is_empty() {
            continue;
        }
        is_listed_once(index, findings, message);
        for dead in &message.dead {
            check_record(index, findings, message, dead);
        }
    }
}

/// A dead-lettered message is listed, unless a redrive or purge may have removed it.
fn is_listed(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>) {
    let moved = message.settles.iter().filter(|settled| settled.is_done() && settled.is_dead_letter());
    for settled in moved {
        let queue = index.queue(settled.queue);
        let listed = message.dead.iter().any(|dead| dead.record.origin == queue.name);
        let left = || index.may_have_left_dead_letters(message, queue.origin, settled.span.start);
        if queue.has_final && !listed && !left() {
            findings.add((FindingKind::WrongDeadLetter, 10), &queue.name, message.id, || {
                format!("{} dead-lettered it, and it is not among the dead letters", index.cite(settled.event))
            });
        }
    }
}

fn is_listed_once(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>) {
    let record = message.dead[0].record;
    let mut add = |text: String| {
        findings.add((FindingKind::WrongDeadLetter, 10), &record.origin, message.id, || text);
    };
    if message.dead.len() > message.copies {
        add(format!("it is listed {} times among the dead letters", message.dead.len()));
    }
    let acked = message.settles.iter().find(|settled| settled.is_done() && settled.is_ack());
    if let Some(ack) = acked.filter(|_| message.copies == 1) {
        add(format!("it is among the dead letters although {} was carried out", index.cite(ack.event)));
    }
}

fn check_record(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, dead: &FinalDeadLetter<'_>) {
    let record = dead.record;
    let origin = &record.origin;
    let stay = message.stays.iter().find(|stay| index.queue(stay.queue).name == *origin);
    let Some(stay) = stay.filter(|stay| !stay.arrivals.is_empty()) else {
        // Foreign messages have an id of no send in this history.
        if record.reason != DeadLetterReason::UNDECODABLE {
            findings.add((FindingKind::WrongDeadLetter, 10), origin, message.id, || {
                format!("{} lists it, and it was never sent there", index.cite(dead.event))
            });
        }
        return;
    };
    let mut add = |rule: u8, text: String| {
        findings.add((FindingKind::WrongDeadLetter, rule), origin, message.id, || text);
    };
    if !contents::is_own_body(message, record.body_hash) {
        add(10, "the body of the dead letter differs from the one that was sent".to_owned());
    }
    let released: HashSet<_> =
        message.settles.iter().filter(|settled| settled.is_release()).map(|settled| settled.call.token).collect();
    let counted = stay.deliveries.iter().filter(|d| !released.contains(&d.delivery.token)).count();
    let kept = record.deliveries_count as usize;
    if index.options.counts_deliveries && message.copies == 1 && message.redrives.is_empty() && kept < counted {
        add(10, format!("its record has {kept} deliveries, and there were {counted}"));
    }
    if message.settles.iter().any(|settled| settled.queue == stay.queue && settled.is_dead_letter()) {
        return;
    }
    let queue = index.queue(stay.queue);
    if record.reason == DeadLetterReason::MAX_RECEIVE_COUNT {
        let limit = queue.least_limit.map_or(1, u64::from);
        let seen = match index.options.counts_returns {
            false => stay.deliveries.len() as u64 + queue.unknown_receives,
            // Only the store knows of deliveries that no caller saw.
            true => u64::from(record.deliveries_count),
        };
        if seen.min(u64::from(record.deliveries_count)) < limit {
            add(
                8,
                format!(
                    "it died of too many deliveries after {seen} at most ({} by its record), and {limit} are allowed \
                     at least",
                    record.deliveries_count
                ),
            );
        }
    } else if record.reason == DeadLetterReason::EXPIRED {
        let may_expire =
            message.possible_sends().any(|sent| sent.call.expires_in.is_some() || sent.call.expires_at.is_some());
        if !may_expire {
            add(12, "it was dead-lettered as expired, and was sent without an expiry".to_owned());
        }
    } else {
        add(10, format!("it was dead-lettered for '{}', and no settle did that", record.reason));
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, LeaseToken, Nack};

    use super::*;
    use crate::checker::test_history::{TestHistory, body, id, queue};
    use crate::history::{LeaseOutcome, Operation, Outcome, PurgeCall, Purged, ReceiveCall, Selection};

    const KIND: FindingKind = FindingKind::WrongDeadLetter;

    fn delivered() -> (TestHistory, LeaseToken) {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        (history, token)
    }

    fn rejected(outcome: LeaseOutcome) -> TestHistory {
        let (mut history, token) = delivered();
        let reject = Disposition::Nack(Nack::dead_letter("rejected"));
        history.settle(20..30, token, reject, outcome);
        history
    }

    #[test]
    fn a_dead_lettered_message_is_listed() {
        let mut history = rejected(LeaseOutcome::Done);
        history.finish(&[], &[]);
        history.assert_accused(KIND, 10);
        let mut history = rejected(LeaseOutcome::Done);
        history.finish(&[(1, "rejected", 1)], &[]);
        history.assert_clean();
        rejected(LeaseOutcome::Done).assert_clean();
    }

    #[test]
    fn a_dead_letter_that_may_have_been_removed_is_not_missing() {
        for (ids, known) in [(&[1][..], false), (&[][..], false)] {
            let mut history = rejected(LeaseOutcome::Done);
            history.redrive(40..50, ids, known);
            let token = history.receive(60..70, 1);
            history.ack(71..72, token);
            history.finish(&[], &[]);
            history.assert_clean();
        }
        for selection in [Selection::All, Selection::Ids(vec![id(1)])] {
            let mut history = rejected(LeaseOutcome::Done);
            let what = Purged::DeadLetters(selection);
            history.record(40..50, PurgeCall { queue: queue(), what, outcome: Outcome::Unknown });
            history.finish(&[], &[]);
            history.assert_clean();
        }
        let mut history = rejected(LeaseOutcome::Done);
        let dead_letters = |call: &mut ReceiveCall| call.queue = queue().dead_letters();
        let token = history.receive_with(40..50, &[1], dead_letters)[0];
        history.settle(51..52, token, Disposition::Ack, LeaseOutcome::Unknown);
        history.finish(&[], &[]);
        history.assert_clean();
    }

    #[test]
    fn a_redrive_or_a_purge_before_the_dead_letter_removed_nothing() {
        let mut history = rejected(LeaseOutcome::Done);
        history.redrive(2..5, &[1], true);
        history.finish(&[], &[]);
        history.assert_accused(KIND, 10);
        let mut history = rejected(LeaseOutcome::Done);
        let what = Purged::DeadLetters(Selection::All);
        history.record(2..5, PurgeCall { queue: queue(), what, outcome: Outcome::Done(4) });
        history.finish(&[], &[]);
        history.assert_accused(KIND, 10);
    }

    #[test]
    fn a_message_is_listed_once_and_not_when_it_was_acknowledged() {
        let mut history = rejected(LeaseOutcome::Done);
        history.finish(&[(1, "rejected", 1), (1, "rejected", 1)], &[]);
        history.assert_accused(KIND, 10);
        let (mut history, token) = delivered();
        history.ack(20..30, token);
        history.finish(&[(1, "max_receive_count", 3)], &[]);
        history.assert_accused(KIND, 10);
        let (mut history, token) = delivered();
        history.options.findings_per_kind = 1;
        history.settle(20..30, token, Disposition::Ack, LeaseOutcome::Unknown);
        history.receive(1_100..1_110, 1);
        history.receive(2_200..2_210, 1);
        history.finish(&[(1, "max_receive_count", 3)], &[]);
        history.assert_clean();
    }

    #[test]
    fn the_limit_must_have_been_reached() {
        let (mut history, _) = delivered();
        history.finish(&[(1, "max_receive_count", 3)], &[]);
        history.assert_accused(KIND, 8);
        let (mut history, _) = delivered();
        history.receive(1_100..1_110, 1);
        history.receive(2_200..2_210, 1);
        history.finish(&[(1, "max_receive_count", 3)], &[]);
        history.assert_clean();
    }

    #[test]
    fn receives_without_an_answer_count_towards_the_limit() {
        let (mut history, _) = delivered();
        history.receive_with(1_100..1_110, &[], |call| call.outcome = Outcome::Unknown);
        history.receive_with(2_200..2_210, &[], |call| call.outcome = Outcome::Unknown);
        history.finish(&[(1, "max_receive_count", 3)], &[]);
        history.assert_clean();
    }

    #[test]
    fn the_smallest_limit_of_all_receivers_counts() {
        let (mut history, _) = delivered();
        history.receive_with(1_100..1_110, &[], |call| call.max_receive_count = 1);
        history.finish(&[(1, "max_receive_count", 1)], &[]);
        history.assert_clean();
    }

    #[test]
    fn a_record_keeps_the_count() {
        let (mut history, token) = delivered();
        history.drop_message(20..30, token);
        let token = history.receive(40..50, 1);
        history.nack(60..70, token, Nack::dead_letter("rejected"));
        let deaths = history.events.len();
        history.finish(&[(1, "rejected", 1)], &[]);
        history.assert_accused(KIND, 10);
        history.events.truncate(deaths);
        history.finish(&[(1, "rejected", 2)], &[]);
        history.assert_clean();
    }

    #[test]
    fn a_dead_letter_has_a_cause() {
        for outcome in [LeaseOutcome::Unknown, LeaseOutcome::Expired] {
            let excused = outcome == LeaseOutcome::Unknown;
            let mut history = rejected(outcome);
            history.finish(&[(1, "rejected", 1)], &[]);
            assert_eq!(history.verdict().is_clean(), excused);
        }
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history.finish(&[(1, "expired", 0)], &[]);
        history.assert_accused(KIND, 12);
    }

    #[test]
    fn a_dead_letter_was_sent_and_has_its_body() {
        let mut history = TestHistory::default();
        history.finish(&[(1, "rejected", 1)], &[]);
        history.assert_accused(KIND, 10);
        let mut history = TestHistory::default();
        history.finish(&[(1, "undecodable", 0)], &[]);
        history.assert_clean();
        let mut history = rejected(LeaseOutcome::Done);
        history.finish(&[(1, "rejected", 1)], &[]);
        if let Some(Operation::Final(state)) = history.events.last_mut().map(|event| &mut event.operation) {
            state.dead_letters[0].body_hash = body(7);
        }
        history.assert_accused(KIND, 10);
    }
}
