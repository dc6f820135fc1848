//! Deliveries of messages that were never sent, and of messages that differ from what was sent.

use super::finding::{FindingKind, Findings};
use super::index::{Delivered, Index, MessageLog, Stay};
use crate::history::{BodyHash, Outcome};

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    for message in &index.messages {
        for stay in &message.stays {
            for delivered in &stay.deliveries {
                if was_sent(index, findings, message, stay, delivered) {
                    is_unchanged(index, findings, message, stay, delivered);
                }
            }
        }
        answers_are_of_sent_messages(index, findings, message);
    }
}

fn was_sent(
    index: &Index<'_>,
    findings: &mut Findings,
    message: &MessageLog<'_>,
    stay: &Stay<'_>,
    delivered: &Delivered<'_>,
) -> bool {
    let queue = index.queue(stay.queue);
    // The store dead-letters a message itself; the message must have been in the origin queue before.
    let arrivals = if queue.holds_dead_letters { message.stay(queue.origin) } else { Some(stay) };
    let arrival = arrivals.and_then(Stay::first_arrival);
    if arrival.is_some_and(|arrival| arrival <= delivered.span.end) {
        return true;
    }
    let mut kind = (FindingKind::Phantom, 1);
    let sent_here = message.sends.iter().find(|sent| sent.queue == queue.origin);
    let why = match sent_here.map(|sent| (&sent.call.outcome, sent.event)) {
        Some((Outcome::Failed(error), event)) => {
            format!("although {} was refused: {error}", index.cite(event))
        }
        Some((Outcome::Done(other), event)) if *other != message.id => {
            kind.0 = FindingKind::Duplicated;
            format!("although {} was answered with the id of message {other}", index.cite(event))
        }
        Some((_, event)) => format!("before {}", index.cite(event)),
        None => "and it was never sent there".to_owned(),
    };
    findings.add(kind, &queue.name, message.id, || format!("delivered by {} {why}", index.cite(delivered.event)));
    false
}

fn is_unchanged(
    index: &Index<'_>,
    findings: &mut Findings,
    message: &MessageLog<'_>,
    stay: &Stay<'_>,
    delivered: &Delivered<'_>,
) {
    let queue = &index.queue(stay.queue).name;
    let kind = FindingKind::Altered;
    let delivery = delivered.delivery;
    if !is_own_body(message, delivery.body_hash) {
        findings.add((kind, 1), queue, message.id, || {
            format!("the body of {} differs from the one that was sent", index.cite(delivered.event))
        });
    }
    let key = &delivery.ordering_key;
    if !message.possible_sends().any(|sent| sent.call.ordering_key == *key) {
        findings.add((kind, 11), queue, message.id, || {
            format!("{} has ordering key {key:?}; it was sent with another", index.cite(delivered.event))
        });
    }
}

/// Whether the message was sent, or edited, with these bytes.
pub(super) fn is_own_body(message: &MessageLog<'_>, hash: BodyHash) -> bool {
    message.possible_sends().any(|sent| sent.call.body_hash == hash) || message.edited.contains(&hash)
}

/// A send may only be answered with its own id, or with that of a message that has the same dedup key.
fn answers_are_of_sent_messages(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>) {
    for sent in &message.sends {
        let Outcome::Done(answered) = &sent.call.outcome else {
            continue;
        };
        if *answered == message.id {
            continue;
        }
        let holds_key = index.by_id.get(answered).is_some_and(|position| {
            index.messages[*position].possible_sends().any(|other| {
                other.queue == sent.queue
                    && other.call.dedup_key.is_some()
                    && other.call.dedup_key == sent.call.dedup_key
                    && other.span.start <= sent.span.end
            })
        });
        if !holds_key {
            let queue = &index.queue(sent.queue).name;
            findings.add((FindingKind::Phantom, 1), queue, message.id, || {
                let cited = index.cite(sent.event);
                format!("{cited} was answered with {answered}, which is not a message with its dedup key")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::QueueName;

    use super::*;
    use crate::checker::test_history::{TestHistory, body, id, queue};
    use crate::history::{Delivery, EditCall, ReceiveCall, RedriveCall, Selection};

    fn sent() -> TestHistory {
        let mut history = TestHistory::default();
        history.send_keyed(10..20, 1);
        history
    }

    fn change(change: impl FnOnce(&mut Delivery)) -> impl FnOnce(&mut ReceiveCall) {
        move |call| {
            if let Outcome::Done(deliveries) = &mut call.outcome {
                change(&mut deliveries[0]);
            }
        }
    }

    #[test]
    fn a_message_that_was_never_sent_is_a_phantom() {
        let mut history = sent();
        history.receive(30..40, 2);
        history.assert_accused(FindingKind::Phantom, 1);
        let mut history = sent();
        history.receive(0..9, 1);
        history.assert_accused(FindingKind::Phantom, 1);
        let mut history = sent();
        history.send_with(10..20, 2, |call| call.outcome = Outcome::Failed("full".into()));
        history.receive(30..40, 2);
        let text = history.assert_accused(FindingKind::Phantom, 1);
        assert!(text.contains("was refused: full"), "{text}");
    }

    #[test]
    fn a_receive_during_the_send_or_after_a_send_without_an_answer_is_no_phantom() {
        let mut history = sent();
        history.receive(0..10, 1);
        history.assert_clean();
        let mut history = TestHistory::default();
        history.send_with(10..20, 2, |call| call.outcome = Outcome::Unknown);
        history.receive(30..40, 2);
        history.assert_clean();
    }

    #[test]
    fn dead_letters_come_from_their_origin() {
        for (message, phantom) in [(1, false), (2, true)] {
            let mut history = sent();
            history.receive_with(30..40, &[message], |call| call.queue = queue().dead_letters());
            assert_eq!(history.verdict().has(FindingKind::Phantom), phantom);
        }
    }

    #[test]
    fn a_redriven_message_is_delivered_from_where_it_went() {
        let other = || QueueName::new("other").unwrap();
        let redrives = [
            (Selection::All, Outcome::Done(vec![id(1)]), false),
            (Selection::Ids(vec![id(1)]), Outcome::Unknown, false),
            (Selection::All, Outcome::Unknown, false),
            (Selection::All, Outcome::Failed("no".into()), true),
            (Selection::All, Outcome::Done(vec![id(2)]), true),
        ];
        for (selection, outcome, phantom) in redrives {
            let mut history = sent();
            let queue = queue().dead_letters();
            history.record(21..22, RedriveCall { queue, to: Some(other()), selection, outcome });
            history.receive_with(30..40, &[1], |call| call.queue = other());
            let verdict = history.verdict();
            assert_eq!(verdict.has(FindingKind::Phantom), phantom, "{verdict}");
            assert_eq!(verdict.is_clean(), !phantom, "{verdict}");
        }
    }

    #[test]
    fn another_body_or_key_is_an_alteration() {
        let mut history = sent();
        history.receive_with(30..40, &[1], change(|delivery| delivery.body_hash = body(7)));
        history.assert_accused(FindingKind::Altered, 1);
        let mut history = sent();
        history.receive_with(30..40, &[1], change(|delivery| delivery.ordering_key = None));
        history.assert_accused(FindingKind::Altered, 11);
    }

    #[test]
    fn an_edited_body_is_no_alteration() {
        for (outcome, altered) in
            [(Outcome::Done(()), false), (Outcome::Unknown, false), (Outcome::Failed("no".into()), true)]
        {
            let mut history = sent();
            let edit = EditCall { queue: queue(), id: id(1), body_hash: Some(body(7)), outcome };
            history.record(21..22, edit);
            history.receive_with(30..40, &[1], change(|delivery| delivery.body_hash = body(7)));
            assert_eq!(history.verdict().has(FindingKind::Altered), altered);
        }
    }
}
