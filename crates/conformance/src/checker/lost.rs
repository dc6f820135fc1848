//! Accepted messages that are nowhere at the end.

use super::finding::{FindingKind, Findings};
use super::index::{Index, MessageLog};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    for message in &index.messages {
        if message.certain_by.is_none() || !index.seen_at_end(message) || is_accounted_for(message) {
            continue;
        }
        let Some(sent) = message.possible_sends().next() else {
            continue;
        };
        if index.may_be_purged(message) {
            continue;
        }
        let queue = &index.queue(sent.queue).name;
        findings.add((FindingKind::Lost, 1), queue, message.id, || {
            let deliveries = message.stays.iter().flat_map(|stay| &stay.deliveries);
            let last = match deliveries.max_by_key(|delivered| delivered.span.end) {
                Some(last) => format!("last seen in {}", index.cite(last.event)),
                None => "never delivered".to_owned(),
            };
            let sent = index.cite(sent.event);
            format!("accepted ({sent}), {last}; at the end neither acknowledged, dead, nor in its queue")
        });
    }
}

/// Whether the message is, or may be, accounted for. A message that was certainly dead-lettered and is missing is
/// reported as a wrong dead letter.
fn is_accounted_for(message: &MessageLog<'_>) -> bool {
    !message.dead.is_empty()
        || !message.live.is_empty()
        || message.settles.iter().any(|settled| {
            let died = settled.is_done() && settled.is_dead_letter();
            settled.is_ack() || (died && !message.redrives.certain_after(settled.span.end))
        })
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::test_history::{TestHistory, id, queue};
    use crate::history::{DeleteCall, LeaseOutcome, Operation, Outcome, PurgeCall, Purged, Selection};

    const LOST: FindingKind = FindingKind::Lost;

    fn sent() -> TestHistory {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history
    }

    #[test]
    fn an_accepted_message_that_is_nowhere_is_lost() {
        let mut history = sent();
        history.finish(&[], &[]);
        let text = history.assert_accused(LOST, 1);
        assert!(text.contains("never delivered"), "{text}");
        let mut history = sent();
        let token = history.receive(10..12, 1);
        history.settle(20..30, token, Disposition::Ack, LeaseOutcome::Expired);
        history.finish(&[], &[]);
        let text = history.assert_accused(LOST, 1);
        assert!(text.contains("last seen in the receive by worker 1"), "{text}");
    }

    #[test]
    fn nothing_is_lost_before_the_final_state() {
        sent().assert_clean();
    }

    #[test]
    fn a_message_that_may_be_acknowledged_or_is_somewhere_is_not_lost() {
        for outcome in [LeaseOutcome::Done, LeaseOutcome::Unknown] {
            let mut history = sent();
            let token = history.receive(10..12, 1);
            history.settle(20..30, token, Disposition::Ack, outcome);
            history.finish(&[], &[]);
            history.assert_clean();
        }
        let mut history = sent();
        history.finish(&[], &[1]);
        history.assert_clean();
        let mut history = sent();
        let token = history.receive(10..12, 1);
        history.nack(20..30, token, Nack::dead_letter("rejected"));
        history.finish(&[(1, "rejected", 1)], &[]);
        history.assert_clean();
    }

    #[test]
    fn a_send_without_an_answer_may_have_made_no_message() {
        let mut history = TestHistory::default();
        history.send_with(0..1, 1, |call| call.outcome = Outcome::Unknown);
        history.send_with(0..1, 2, |call| call.outcome = Outcome::Failed("no".into()));
        history.finish(&[], &[]);
        assert_eq!(history.assert_clean().counts.unknown_sends, 1);
    }

    #[test]
    fn the_answered_id_is_the_message_that_must_exist() {
        let answered = |answer: u64| {
            let mut history = TestHistory::default();
            for message in [1, 2] {
                history.send_with(message * 10..message * 10 + 1, message, |call| {
                    call.dedup_key = Some("d".into());
                    call.outcome = if message == 1 { Outcome::Unknown } else { Outcome::Done(id(answer)) };
                });
            }
            history.finish(&[], &[2]);
            history
        };
        answered(2).assert_clean();
        answered(1).assert_accused(LOST, 1);
    }

    #[test]
    fn a_message_that_may_have_been_purged_is_not_lost() {
        let purge = |what, outcome| Operation::Purge(PurgeCall { queue: queue(), what, outcome });
        let delete = |outcome| Operation::Delete(DeleteCall { queue: queue(), outcome });
        let excuses = [
            purge(Purged::Waiting, Outcome::Done(1)),
            purge(Purged::Waiting, Outcome::Unknown),
            purge(Purged::DeadLetters(Selection::All), Outcome::Done(3)),
            purge(Purged::DeadLetters(Selection::Reason("expired".into())), Outcome::Unknown),
            purge(Purged::DeadLetters(Selection::Ids(vec![id(1)])), Outcome::Done(1)),
            delete(Outcome::Done(())),
        ];
        for excuse in excuses {
            let mut history = sent();
            history.record(10..12, excuse);
            history.finish(&[], &[]);
            history.assert_clean();
        }
        let no_excuses = [
            purge(Purged::Waiting, Outcome::Done(0)),
            purge(Purged::DeadLetters(Selection::All), Outcome::Failed("no".into())),
            purge(Purged::DeadLetters(Selection::Ids(vec![id(2)])), Outcome::Done(1)),
            delete(Outcome::Failed("no".into())),
        ];
        for no_excuse in no_excuses {
            let mut history = sent();
            history.record(10..12, no_excuse);
            history.finish(&[], &[]);
            history.assert_accused(LOST, 1);
        }
    }

    #[test]
    fn a_purge_before_the_send_removed_nothing() {
        let mut history = TestHistory::default();
        history.record(0..5, PurgeCall { queue: queue(), what: Purged::Waiting, outcome: Outcome::Done(9) });
        history.send(6..7, 1);
        history.finish(&[], &[]);
        history.assert_accused(LOST, 1);
    }

    #[test]
    fn a_redriven_message_can_be_lost_again() {
        let redriven = |known| {
            let mut history = sent();
            let token = history.receive(10..12, 1);
            history.nack(20..30, token, Nack::dead_letter("rejected"));
            history.redrive(40..50, &[1], known);
            history
        };
        let mut history = redriven(true);
        history.finish(&[], &[]);
        history.assert_accused(LOST, 1);
        let mut history = redriven(true);
        let token = history.receive(60..62, 1);
        history.ack(63..64, token);
        history.finish(&[], &[]);
        history.assert_clean();
    }
}
