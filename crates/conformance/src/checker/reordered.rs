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
struct Turn<'i, 'a> {
    member: Member<'i, 'a>,
    delivered: &'i Delivered<'a>,
}

fn turns<'i, 'a>(members: &'i [Member<'i, 'a>]) -> impl Iterator<Item = Turn<'i, 'a>> {
    members.iter().flat_map(|member| member.stay.deliveries.iter().map(|delivered| Turn { member: *member, delivered }))
}

/// No message may be delivered while one that was certainly sent before it is certainly still there.
///
/// One sweep by the time of sending: of the messages that were sent before, the one that lives longest decides.
fn earlier_sends_come_first(index: &Index<'_>, findings: &mut Findings, key: &str, members: &[Member<'_, '_>]) {
    let mut earlier: Vec<_> = members.iter().filter_map(|member| Some((member.message.certain_by?, member))).collect();
    earlier.sort_by_key(|(by, _)| *by);
    let mut turns: Vec<_> = turns(members).filter_map(|turn| Some((turn.member.stay.first_birth()?, turn))).collect();
    turns.sort_by_key(|(birth, turn)| (*birth, turn.delivered.span.end));
    let mut earlier = earlier.into_iter().peekable();
    let mut holder: Option<&Member<'_, '_>> = None;
    for (birth, turn) in turns {
        while let Some((_, member)) = earlier.next_if(|(by, _)| *by < birth) {
            if holder.is_none_or(|holder| holder.alive_until < member.alive_until) {
                holder = Some(member);
            }
        }
        let Some(holder) = holder.filter(|holder| turn.delivered.span.end < holder.alive_until) else {
            continue;
        };
        report(index, findings, turn, || {
            let first = holder.message.id;
            format!("with key '{key}', before message {first} that was sent before it and had not ended")
        });
    }
}

/// The same for the rows of one batch, whose times are all the same but whose order is known.
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
                    report(index, findings, Turn { member: *member, delivered }, || {
                        let first = holder.message.id;
                        format!("with key '{key}', before message {first} that stood before it in its batch")
                    });
                }
            }
            if holder.is_none_or(|holder| holder.alive_until < member.alive_until) {
                holder = Some(member);
            }
        }
    }
}

/// No message may be delivered while another one of its key, which was delivered before, is certainly still there:
/// whichever of the two was sent first, one of them was delivered out of turn.
///
/// One sweep by the time of delivery. The two longest lives are kept, since the longest may be the message's own.
fn one_at_a_time(index: &Index<'_>, findings: &mut Findings, key: &str, members: &[Member<'_, '_>]) {
    let mut turns: Vec<_> = turns(members).collect();
    turns.sort_by_key(|turn| (turn.delivered.span.end, turn.delivered.event));
    let mut longest: [Option<Turn<'_, '_>>; 2] = [None, None];
    let mut last: Option<Turn<'_, '_>> = None;
    for turn in turns {
        let id = turn.member.message.id;
        let same_receive =
            last.filter(|last| last.delivered.event == turn.delivered.event && last.member.message.id != id);
        let other = longest.iter().flatten().find(|other| other.member.message.id != id);
        let met = same_receive.or(other.filter(|other| holds_up(other, &turn)).copied());
        if let Some(other) = met {
            report(index, findings, turn, || {
                let (first, before) = (other.member.message.id, index.cite(other.delivered.event));
                format!("with key '{key}', while message {first} of {before} had not ended")
            });
        }
        keep_longest(&mut longest, turn);
        last = Some(turn);
    }
}

/// Whether the two deliveries were at once, whichever of them was first.
fn holds_up(first: &Turn<'_, '_>, second: &Turn<'_, '_>) -> bool {
    let first_there = second.delivered.span.end < first.member.alive_until;
    let second_there = first.delivered.span.end < second.member.alive_until;
    first_there && (first.delivered.span.is_before(second.delivered.span) || second_there)
}

fn keep_longest<'i, 'a>(longest: &mut [Option<Turn<'i, 'a>>; 2], turn: Turn<'i, 'a>) {
    let id = turn.member.message.id;
    let lives_longer =
        |than: &Option<Turn<'_, '_>>| than.is_none_or(|than| than.member.alive_until < turn.member.alive_until);
    let is_first = longest[0].is_some_and(|first| first.member.message.id == id);
    if is_first {
        return;
    }
    if lives_longer(&longest[0]) {
        longest[1] = longest[0].replace(turn);
    } else if lives_longer(&longest[1]) {
        longest[1] = Some(turn);
    }
}

fn report(index: &Index<'_>, findings: &mut Findings, turn: Turn<'_, '_>, text: impl FnOnce() -> String) {
    let queue = &index.queue(turn.member.stay.queue).name;
    findings.add(KIND, queue, turn.member.message.id, || {
        format!("delivered by {}, {}", index.cite(turn.delivered.event), text())
    });
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::story::{LEASE, Story, id, ms, queue};
    use crate::history::{LeaseOutcome, Outcome, PurgeCall, Purged, ReceiveCall};

    const REORDERED: FindingKind = FindingKind::Reordered;

    /// Message 1, then message 2, of the same key.
    fn two() -> Story {
        let mut story = Story::default();
        story.send_keyed(0..1, 1);
        story.send_keyed(2..3, 2);
        story
    }

    #[test]
    fn a_later_message_is_not_delivered_before_an_earlier_one() {
        let mut story = two();
        let token = story.receive(10..12, 2);
        story.ack(13..14, token);
        let token = story.receive(20..22, 1);
        story.ack(23..24, token);
        let text = story.assert_accused(REORDERED, 11);
        assert!(text.contains("with key 'k', before message"), "{text}");
    }

    #[test]
    fn messages_without_a_key_or_with_another_have_no_order() {
        for key in [None, Some("other".to_owned())] {
            let mut story = Story::default();
            story.send_keyed(0..1, 1);
            story.send_with(2..3, 2, |call| call.ordering_key = key);
            let token = story.receive(10..12, 2);
            story.ack(13..14, token);
            let token = story.receive(20..22, 1);
            story.ack(23..24, token);
            story.assert_clean();
        }
    }

    #[test]
    fn sends_at_once_have_no_order_but_are_still_handled_one_at_a_time() {
        let at_once = || {
            let mut story = Story::default();
            story.send_keyed(0..3, 1);
            story.send_keyed(2..5, 2);
            story
        };
        let mut story = at_once();
        let token = story.receive(10..12, 2);
        story.ack(13..14, token);
        let token = story.receive(20..22, 1);
        story.ack(23..24, token);
        story.assert_clean();

        let mut story = at_once();
        let first = story.receive(10..12, 2);
        let second = story.receive(13..14, 1);
        story.ack(20..22, first);
        story.ack(23..24, second);
        let text = story.assert_accused(REORDERED, 11);
        assert!(text.contains("had not ended"), "{text}");
    }

    #[test]
    fn rows_of_a_batch_have_their_order() {
        let batch = |first_row| {
            let mut story = Story::default();
            for message in [1, 2] {
                story.send_with(0..5, message, |call| {
                    call.ordering_key = Some("k".into());
                    call.row = if message == 1 { first_row } else { 7 };
                    call.batch = id(1);
                });
            }
            story.events[1].worker = story.events[0].worker;
            let token = story.receive(10..12, 2);
            story.ack(13..14, token);
            let token = story.receive(20..22, 1);
            story.ack(23..24, token);
            story
        };
        batch(6).assert_accused(REORDERED, 11);
        batch(8).assert_clean();
    }

    #[test]
    fn a_batch_receive_holds_one_message_of_a_key() {
        let mut story = two();
        story.receive_with(10..12, &[1, 2], |_| {});
        story.assert_accused(REORDERED, 11);
        let mut story = two();
        story.send(4..5, 3);
        story.receive_with(10..12, &[1, 3], |_| {});
        story.assert_clean();

        // Also when everything happens at one moment, as it does while a test holds its clock still.
        let mut story = two();
        for token in story.receive_with(10..10, &[1, 2], |_| {}) {
            story.ack(10..10, token);
        }
        story.assert_accused(REORDERED, 11);
    }

    #[test]
    fn every_delivery_out_of_turn_is_counted() {
        let mut story = Story::default();
        story.send_keyed(0..3, 1);
        story.send_keyed(2..5, 2);
        let brief = |call: &mut ReceiveCall| call.visibility = ms(1);
        story.receive_with(10..11, &[1], brief);
        let second = story.receive(20..21, 2);
        story.receive_with(30..31, &[1], brief);
        story.receive_with(40..41, &[1], brief);
        story.ack(500..501, second);
        story.finish(&[], &[1]);
        let verdict = story.verdict();
        assert_eq!(verdict.found.get(&REORDERED), Some(&3), "{verdict}");
    }

    #[test]
    fn a_retrying_message_holds_its_key() {
        let mut story = two();
        let token = story.receive(10..12, 1);
        story.nack(13..14, token, Nack::retry_after(ms(10)));
        let token = story.receive(20..22, 2);
        story.ack(23..24, token);
        let token = story.receive(30..32, 1);
        story.ack(33..34, token);
        story.assert_accused(REORDERED, 11);
    }

    #[test]
    fn an_end_that_may_have_come_before_frees_the_key() {
        let ends = [Disposition::Ack, Disposition::Nack(Nack::dead_letter("rejected"))];
        for outcome in [LeaseOutcome::Done, LeaseOutcome::Unknown] {
            for end in &ends {
                let mut story = two();
                let token = story.receive(10..12, 1);
                story.settle(20..40, token, end.clone(), outcome.clone());
                story.receive(15..20, 2);
                story.assert_clean();
            }
        }
    }

    #[test]
    fn an_ack_that_changed_nothing_frees_nothing() {
        let mut story = two();
        let token = story.receive(10..12, 1);
        story.settle(13..14, token, Disposition::Ack, LeaseOutcome::Expired);
        story.receive(20..22, 2);
        let token = story.receive(1_100..1_102, 1);
        story.ack(1_103..1_104, token);
        story.assert_accused(REORDERED, 11);
    }

    #[test]
    fn a_dead_head_frees_its_key_from_the_end_of_its_last_lease() {
        let limit = |second: std::ops::Range<u64>| {
            let mut story = two();
            story.receive_with(10..12, &[1], |call| call.max_receive_count = 1);
            let token = story.receive(second, 2);
            story.ack(1_500..1_501, token);
            story.finish(&[(1, "max_receive_count", 1)], &[]);
            story
        };
        limit(1_000..1_010).assert_clean();
        limit(900..950).assert_accused(REORDERED, 11);
    }

    #[test]
    fn an_expired_head_frees_its_key_once_it_has_expired() {
        let expiring = |lifetime| {
            let mut story = Story::default();
            story.send_with(0..1, 1, |call| {
                call.ordering_key = Some("k".into());
                call.expires_in = Some(ms(lifetime));
            });
            story.send_keyed(2..3, 2);
            let token = story.receive(10..12, 2);
            story.ack(13..14, token);
            story.finish(&[(1, "expired", 0)], &[]);
            story
        };
        expiring(1).assert_clean();
        expiring(17).assert_clean();
        expiring(18).assert_accused(REORDERED, 11);
    }

    #[test]
    fn a_purged_head_frees_its_key() {
        let purged = |time| {
            let mut story = two();
            let (what, outcome) = (Purged::Waiting, Outcome::Done(1));
            story.record(time, PurgeCall { queue: queue(), what, outcome });
            let token = story.receive(10..12, 2);
            story.ack(13..14, token);
            story.finish(&[], &[]);
            story
        };
        purged(4..5).assert_clean();
        purged(12..20).assert_clean();
        purged(13..20).assert_accused(REORDERED, 11);
    }

    #[test]
    fn a_head_that_still_waits_at_the_end_was_passed() {
        let mut story = two();
        let token = story.receive(10..12, 2);
        story.ack(13..14, token);
        story.finish(&[], &[1]);
        story.assert_accused(REORDERED, 11);
    }

    #[test]
    fn a_message_that_may_not_exist_or_was_redriven_holds_nobody_up() {
        let mut story = Story::default();
        story.send_with(0..1, 1, |call| {
            call.ordering_key = Some("k".into());
            call.outcome = Outcome::Unknown;
        });
        story.send_keyed(2..3, 2);
        let token = story.receive(10..12, 2);
        story.ack(13..14, token);
        let token = story.receive(20..22, 1);
        story.ack(23..24, token);
        story.assert_clean();

        let mut story = two();
        let token = story.receive(4..5, 1);
        story.nack(6..7, token, Nack::dead_letter("rejected"));
        let second = story.receive(10..12, 2);
        story.redrive(13..14, &[1], true);
        story.ack(15..16, second);
        let token = story.receive(20..22, 1);
        story.ack(23..24, token);
        story.assert_clean();
    }

    #[test]
    fn a_redriven_message_waits_for_those_before_it() {
        let mut story = two();
        let token = story.receive(4..5, 1);
        story.nack(6..7, token, Nack::dead_letter("rejected"));
        let second = story.receive(10..12, 2);
        story.redrive(13..14, &[1], true);
        story.receive(20..22, 1);
        story.ack(LEASE - 20..LEASE, second);
        story.assert_accused(REORDERED, 11);
    }
}
