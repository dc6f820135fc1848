//! Messages of one key that were not handled one at a time and in send order.

use postrider_core::Timestamp;

use super::finding::{FindingKind, Findings};
use super::index::{Delivered, Index, MessageLog, Stay, group};

const KIND: (FindingKind, u8) = (FindingKind::Reordered, 11);

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    let members = index.messages.iter().flat_map(|message| {
        let stays = message.stays.iter().filter(|stay| !index.queue(stay.queue).holds_dead_letters);
        let key = message.ordering_key();
        stays.filter_map(move |stay| {
            let alive_until = index.alive_until(message, stay);
            Some(((stay.queue, key?), Member { message, stay, alive_until }))
        })
    });
    for ((_, key), members) in group(members).iter().filter(|(_, members)| members.len() > 1) {
        earlier_sends_come_first(index, findings, key, members);
        earlier_rows_come_first(index, findings, key, members);
        one_at_a_time(index, findings, key, members);
    }
}

/// A message of the key.
#[derive(Clone, Copy)]
struct Member<'i, 'a> {
    message: &'i MessageLog<'a>,
    stay: &'i Stay<'a>,
    alive_until: Timestamp,
}

/// A delivery of one of the key's messages.
#[derive(Clone, Copy)]
struct KeyDelivery<'i, 'a> {
    member: Member<'i, 'a>,
    delivered: &'i Delivered<'a>,
}

fn deliveries_of<'i, 'a>(members: &'i [Member<'i, 'a>]) -> impl Iterator<Item = KeyDelivery<'i, 'a>> {
    members
        .iter()
        .flat_map(|member| member.stay.deliveries.iter().map(|delivered| KeyDelivery { member: *member, delivered }))
}

/// No message may be delivered while one that was certainly sent before it is certainly still there.
///
/// One sweep by send time: of the messages sent before, the one that lives longest decides.
fn earlier_sends_come_first(index: &Index<'_>, findings: &mut Findings, key: &str, members: &[Member<'_, '_>]) {
    let mut earlier: Vec<_> = members.iter().filter_map(|member| Some((member.message.certain_by?, member))).collect();
    earlier.sort_by_key(|(by, _)| *by);
    let mut deliveries: Vec<_> =
        deliveries_of(members).filter_map(|delivery| Some((delivery.member.stay.first_arrival()?, delivery))).collect();
    deliveries.sort_by_key(|(arrival, delivery)| (*arrival, delivery.delivered.span.end));
    let mut earlier = earlier.into_iter().peekable();
    let mut holder: Option<&Member<'_, '_>> = None;
    for (arrival, delivery) in deliveries {
        while let Some((_, member)) = earlier.next_if(|(by, _)| *by < arrival) {
            if holder.is_none_or(|holder| holder.alive_until < member.alive_until) {
                holder = Some(member);
            }
        }
        let Some(holder) = holder.filter(|holder| delivery.delivered.span.end < holder.alive_until) else {
            continue;
        };
        report(index, findings, delivery, || {
            let first = holder.message.id;
            format!("with key '{key}', before message {first} that was sent before it and had not ended")
        });
    }
}

/// The same for the rows of one batch, whose times are equal but whose order is known.
fn earlier_rows_come_first(index: &Index<'_>, findings: &mut Findings, key: &str, members: &[Member<'_, '_>]) {
    let rows = members.iter().filter_map(|member| {
        let [sent] = &member.message.sends[..] else {
            return None;
        };
        let accepted = sent.queue == member.stay.queue && sent.call.outcome.done() == Some(&sent.call.id);
        let call = (index.events[sent.event].worker, sent.span.start, sent.span.end, sent.call.batch);
        accepted.then_some((call, (sent.call.row, member)))
    });
    for (_, mut rows) in group(rows) {
        rows.sort_by_key(|(row, _)| *row);
        let mut holder: Option<&Member<'_, '_>> = None;
        for (_, member) in rows {
            for delivered in &member.stay.deliveries {
                if let Some(holder) = holder.filter(|holder| delivered.span.end < holder.alive_until) {
                    report(index, findings, KeyDelivery { member: *member, delivered }, || {
                        let first = holder.message.id;
                        format!("with key '{key}', before message {first}, an earlier row of its batch")
                    });
                }
            }
            if holder.is_none_or(|holder| holder.alive_until < member.alive_until) {
                holder = Some(member);
            }
        }
    }
}

/// No message may be delivered while another one of its key, delivered before, certainly still exists: one of the two
/// was delivered out of order, whichever was sent first.
///
/// One sweep by delivery time. The two longest lives are kept, since the longest may be the message's own.
fn one_at_a_time(index: &Index<'_>, findings: &mut Findings, key: &str, members: &[Member<'_, '_>]) {
    let mut deliveries: Vec<_> = deliveries_of(members).collect();
    deliveries.sort_by_key(|delivery| (delivery.delivered.span.end, delivery.delivered.event));
    let mut longest: [Option<KeyDelivery<'_, '_>>; 2] = [None, None];
    let mut last: Option<KeyDelivery<'_, '_>> = None;
    for delivery in deliveries {
        let id = delivery.member.message.id;
        let same_receive =
            last.filter(|last| last.delivered.event == delivery.delivered.event && last.member.message.id != id);
        let other = longest.iter().flatten().find(|other| other.member.message.id != id);
        let overlapping = same_receive.or(other.filter(|other| overlap(other, &delivery)).copied());
        if let Some(other) = overlapping {
            report(index, findings, delivery, || {
                let (first, before) = (other.member.message.id, index.cite(other.delivered.event));
                format!("with key '{key}', while message {first} of {before} had not ended")
            });
        }
        keep_longest(&mut longest, delivery);
        last = Some(delivery);
    }
}

/// Whether the two deliveries overlapped, whichever of them was first.
fn overlap(first: &KeyDelivery<'_, '_>, second: &KeyDelivery<'_, '_>) -> bool {
    let first_there = second.delivered.span.end < first.member.alive_until;
    let second_there = first.delivered.span.end < second.member.alive_until;
    first_there && (first.delivered.span.is_before(second.delivered.span) || second_there)
}

fn keep_longest<'i, 'a>(longest: &mut [Option<KeyDelivery<'i, 'a>>; 2], delivery: KeyDelivery<'i, 'a>) {
    let id = delivery.member.message.id;
    let lives_longer = |than: &Option<KeyDelivery<'_, '_>>| {
        than.is_none_or(|than| than.member.alive_until < delivery.member.alive_until)
    };
    let is_first = longest[0].is_some_and(|first| first.member.message.id == id);
    if is_first {
        return;
    }
    if lives_longer(&longest[0]) {
        longest[1] = longest[0].replace(delivery);
    } else if lives_longer(&longest[1]) {
        longest[1] = Some(delivery);
    }
}

fn report(index: &Index<'_>, findings: &mut Findings, delivery: KeyDelivery<'_, '_>, text: impl FnOnce() -> String) {
    let queue = &index.queue(delivery.member.stay.queue).name;
    findings.add(KIND, queue, delivery.member.message.id, || {
        format!("delivered by {}, {}", index.cite(delivery.delivered.event), text())
    });
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::test_history::{LEASE, TestHistory, id, ms, queue};
    use crate::history::{LeaseOutcome, Outcome, PurgeCall, Purged, ReceiveCall};

    const REORDERED: FindingKind = FindingKind::Reordered;

    /// Message 1, then message 2, of the same key.
    fn two() -> TestHistory {
        let mut history = TestHistory::default();
        history.send_keyed(0..1, 1);
        history.send_keyed(2..3, 2);
        history
    }

    #[test]
    fn a_later_message_is_not_delivered_before_an_earlier_one() {
        let mut history = two();
        let token = history.receive(10..12, 2);
        history.ack(13..14, token);
        let token = history.receive(20..22, 1);
        history.ack(23..24, token);
        let text = history.assert_accused(REORDERED, 11);
        assert!(text.contains("with key 'k', before message"), "{text}");
    }

    #[test]
    fn messages_without_a_key_or_with_another_have_no_order() {
        for key in [None, Some("other".to_owned())] {
            let mut history = TestHistory::default();
            history.send_keyed(0..1, 1);
            history.send_with(2..3, 2, |call| call.ordering_key = key);
            let token = history.receive(10..12, 2);
            history.ack(13..14, token);
            let token = history.receive(20..22, 1);
            history.ack(23..24, token);
            history.assert_clean();
        }
    }

    #[test]
    fn sends_at_once_have_no_order_but_are_still_handled_one_at_a_time() {
        let at_once = || {
            let mut history = TestHistory::default();
            history.send_keyed(0..3, 1);
            history.send_keyed(2..5, 2);
            history
        };
        let mut history = at_once();
        let token = history.receive(10..12, 2);
        history.ack(13..14, token);
        let token = history.receive(20..22, 1);
        history.ack(23..24, token);
        history.assert_clean();

        let mut history = at_once();
        let first = history.receive(10..12, 2);
        let second = history.receive(13..14, 1);
        history.ack(20..22, first);
        history.ack(23..24, second);
        let text = history.assert_accused(REORDERED, 11);
        assert!(text.contains("had not ended"), "{text}");
    }

    #[test]
    fn rows_of_a_batch_have_their_order() {
        let batch = |first_row| {
            let mut history = TestHistory::default();
            for message in [1, 2] {
                history.send_with(0..5, message, |call| {
                    call.ordering_key = Some("k".into());
                    call.row = if message == 1 { first_row } else { 7 };
                    call.batch = id(1);
                });
            }
            history.events[1].worker = history.events[0].worker;
            let token = history.receive(10..12, 2);
            history.ack(13..14, token);
            let token = history.receive(20..22, 1);
            history.ack(23..24, token);
            history
        };
        batch(6).assert_accused(REORDERED, 11);
        batch(8).assert_clean();
    }

    #[test]
    fn a_batch_receive_holds_one_message_of_a_key() {
        let mut history = two();
        history.receive_with(10..12, &[1, 2], |_| {});
        history.assert_accused(REORDERED, 11);
        let mut history = two();
        history.send(4..5, 3);
        history.receive_with(10..12, &[1, 3], |_| {});
        history.assert_clean();

        // Also when everything happens at one moment, as under a test's stopped clock.
        let mut history = two();
        for token in history.receive_with(10..10, &[1, 2], |_| {}) {
            history.ack(10..10, token);
        }
        history.assert_accused(REORDERED, 11);
    }

    #[test]
    fn every_delivery_out_of_order_is_counted() {
        let mut history = TestHistory::default();
        history.send_keyed(0..3, 1);
        history.send_keyed(2..5, 2);
        let brief = |call: &mut ReceiveCall| call.visibility = ms(1);
        history.receive_with(10..11, &[1], brief);
        let second = history.receive(20..21, 2);
        history.receive_with(30..31, &[1], brief);
        history.receive_with(40..41, &[1], brief);
        history.ack(500..501, second);
        history.finish(&[], &[1]);
        let verdict = history.verdict();
        assert_eq!(verdict.found.get(&REORDERED), Some(&3), "{verdict}");
    }

    #[test]
    fn a_retrying_message_holds_its_key() {
        let mut history = two();
        let token = history.receive(10..12, 1);
        history.nack(13..14, token, Nack::retry_after(ms(10)));
        let token = history.receive(20..22, 2);
        history.ack(23..24, token);
        let token = history.receive(30..32, 1);
        history.ack(33..34, token);
        history.assert_accused(REORDERED, 11);
    }

    #[test]
    fn an_end_that_may_have_come_first_frees_the_key() {
        let ends = [Disposition::Ack, Disposition::Nack(Nack::dead_letter("rejected"))];
        for outcome in [LeaseOutcome::Done, LeaseOutcome::Unknown] {
            for end in &ends {
                let mut history = two();
                let token = history.receive(10..12, 1);
                history.settle(20..40, token, end.clone(), outcome.clone());
                history.receive(15..20, 2);
                history.assert_clean();
            }
        }
    }

    #[test]
    fn an_ack_that_changed_nothing_frees_nothing() {
        let mut history = two();
        let token = history.receive(10..12, 1);
        history.settle(13..14, token, Disposition::Ack, LeaseOutcome::Expired);
        history.receive(20..22, 2);
        let token = history.receive(1_100..1_102, 1);
        history.ack(1_103..1_104, token);
        history.assert_accused(REORDERED, 11);
    }

    #[test]
    fn a_dead_head_frees_its_key_from_the_end_of_its_last_lease() {
        let limit = |second: std::ops::Range<u64>| {
            let mut history = two();
            history.receive_with(10..12, &[1], |call| call.max_receive_count = 1);
            let token = history.receive(second, 2);
            history.ack(1_500..1_501, token);
            history.finish(&[(1, "max_receive_count", 1)], &[]);
            history
        };
        limit(1_000..1_010).assert_clean();
        limit(900..950).assert_accused(REORDERED, 11);
    }

    #[test]
    fn an_expired_head_frees_its_key_once_it_has_expired() {
        let expiring = |lifetime| {
            let mut history = TestHistory::default();
            history.send_with(0..1, 1, |call| {
                call.ordering_key = Some("k".into());
                call.expires_in = Some(ms(lifetime));
            });
            history.send_keyed(2..3, 2);
            let token = history.receive(10..12, 2);
            history.ack(13..14, token);
            history.finish(&[(1, "expired", 0)], &[]);
            history
        };
        expiring(1).assert_clean();
        expiring(17).assert_clean();
        expiring(18).assert_accused(REORDERED, 11);
    }

    #[test]
    fn a_purged_head_frees_its_key() {
        let purged = |time| {
            let mut history = two();
            let (what, outcome) = (Purged::Waiting, Outcome::Done(1));
            history.record(time, PurgeCall { queue: queue(), what, outcome });
            let token = history.receive(10..12, 2);
            history.ack(13..14, token);
            history.finish(&[], &[]);
            history
        };
        purged(4..5).assert_clean();
        purged(12..20).assert_clean();
        purged(13..20).assert_accused(REORDERED, 11);
    }

    #[test]
    fn a_head_that_still_waits_at_the_end_was_overtaken() {
        let mut history = two();
        let token = history.receive(10..12, 2);
        history.ack(13..14, token);
        history.finish(&[], &[1]);
        history.assert_accused(REORDERED, 11);
    }

    #[test]
    fn a_message_that_may_not_exist_or_was_redriven_blocks_no_key() {
        let mut history = TestHistory::default();
        history.send_with(0..1, 1, |call| {
            call.ordering_key = Some("k".into());
            call.outcome = Outcome::Unknown;
        });
        history.send_keyed(2..3, 2);
        let token = history.receive(10..12, 2);
        history.ack(13..14, token);
        let token = history.receive(20..22, 1);
        history.ack(23..24, token);
        history.assert_clean();

        let mut history = two();
        let token = history.receive(4..5, 1);
        history.nack(6..7, token, Nack::dead_letter("rejected"));
        let second = history.receive(10..12, 2);
        history.redrive(13..14, &[1], true);
        history.ack(15..16, second);
        let token = history.receive(20..22, 1);
        history.ack(23..24, token);
        history.assert_clean();
    }

    #[test]
    fn a_redriven_message_waits_for_earlier_ones() {
        let mut history = two();
        let token = history.receive(4..5, 1);
        history.nack(6..7, token, Nack::dead_letter("rejected"));
        let second = history.receive(10..12, 2);
        history.redrive(13..14, &[1], true);
        history.receive(20..22, 1);
        history.ack(LEASE - 20..LEASE, second);
        history.assert_accused(REORDERED, 11);
    }
}
