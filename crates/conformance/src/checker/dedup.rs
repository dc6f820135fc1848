//! Dedup keys: one message while the first one lives, and a new one after that.

use std::collections::HashMap;

use postrider_core::{MessageId, Timestamp};

use super::DedupScope;
use super::finding::{FindingKind, Findings};
use super::index::{Index, MessageLog, Sent, group};
use crate::history::Outcome;

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    let sends = index.messages.iter().flat_map(|message| {
        message.sends.iter().filter_map(move |sent| {
            let key = sent.call.dedup_key.as_deref()?;
            Some(((sent.queue, key), Keyed { message, sent }))
        })
    });
    for (_, sends) in group(sends).iter().filter(|(_, sends)| sends.len() > 1) {
        one_message_while_the_first_lives(index, findings, sends);
        a_new_message_after_that(index, findings, sends);
    }
}

#[derive(Clone, Copy)]
struct Keyed<'i, 'a> {
    message: &'i MessageLog<'a>,
    sent: &'i Sent<'a>,
}

impl Keyed<'_, '_> {
    fn answer(&self) -> Option<MessageId> {
        self.sent.call.outcome.done().copied()
    }

    /// By when the send had certainly taken effect: when it was answered, or when its message was seen.
    fn effective_by(&self) -> Option<Timestamp> {
        match &self.sent.call.outcome {
            Outcome::Done(_) => Some(self.sent.span.end),
            // With two sends of the message, the delivery may stem from the other one.
            Outcome::Unknown if self.message.possible_sends().count() == 1 => {
                let stay = self.message.stay(self.sent.queue)?;
                stay.deliveries.first().map(|delivered| delivered.span.end)
            }
            Outcome::Unknown | Outcome::Failed(_) => None,
        }
    }
}

/// One sweep over the sends of a key: a send must be answered with the message that existed before the send began and
/// certainly lives longest.
fn one_message_while_the_first_lives(index: &Index<'_>, findings: &mut Findings, sends: &[Keyed<'_, '_>]) {
    let mut by_end: Vec<_> = sends.iter().filter(|keyed| keyed.answer() == Some(keyed.message.id)).collect();
    by_end.sort_by_key(|keyed| keyed.sent.span.end);
    let mut by_start: Vec<_> = sends.iter().collect();
    by_start.sort_by_key(|keyed| keyed.sent.span.start);
    let mut earlier = by_end.into_iter().peekable();
    let mut holder: Option<(Timestamp, &Keyed<'_, '_>)> = None;
    for keyed in by_start {
        while let Some(first) = earlier.next_if(|first| first.sent.span.is_before(keyed.sent.span)) {
            let Some(stay) = first.message.stay(first.sent.queue) else {
                continue;
            };
            let mut until = index.alive_until(first.message, stay);
            if let DedupScope::Window(window) = index.options.dedup {
                let window_end = first.sent.span.start.saturating_add(window);
                until = until.min(window_end.saturating_sub(index.options.tolerance));
            }
            if holder.is_none_or(|(longest, _)| longest < until) {
                holder = Some((until, first));
            }
        }
        let Some((until, first)) = holder else {
            continue;
        };
        let Some(by) = keyed.effective_by() else {
            continue;
        };
        let made_another = match keyed.answer() {
            Some(answer) => answer != first.message.id,
            None => keyed.message.id != first.message.id,
        };
        if made_another && by < until {
            let queue = &index.queue(keyed.sent.queue).name;
            findings.add((FindingKind::Duplicated, 1), queue, keyed.message.id, || {
                format!(
                    "{} was not answered with message {}, which has the same dedup key and lived all the time since {}",
                    index.cite(keyed.sent.event),
                    first.message.id,
                    index.cite(first.sent.event)
                )
            });
        }
    }
}

/// A send that is answered with the id of a message that had already ended has lost its message.
fn a_new_message_after_that(index: &Index<'_>, findings: &mut Findings, sends: &[Keyed<'_, '_>]) {
    let mut ends: HashMap<MessageId, Option<Ended>> = HashMap::new();
    for keyed in sends {
        let sent = keyed.sent;
        let Some(answer) = keyed.answer().filter(|answer| *answer != keyed.message.id) else {
            continue;
        };
        let ended = *ends.entry(answer).or_insert_with(|| ended(index, answer, sent.queue));
        let Some(ended) = ended.filter(|ended| ended.key_free_by < sent.span.start) else {
            continue;
        };
        let queue = &index.queue(sent.queue).name;
        findings.add((FindingKind::Lost, 1), queue, keyed.message.id, || {
            let (sent, ended) = (index.cite(sent.event), index.cite(ended.event));
            format!("{sent} was answered with message {answer}, which had ended with {ended}")
        });
    }
}

/// The end of a message, and by when its dedup key was certainly free.
#[derive(Clone, Copy)]
struct Ended {
    key_free_by: Timestamp,
    event: usize,
}

fn ended(index: &Index<'_>, id: MessageId, queue: usize) -> Option<Ended> {
    let message = index.by_id.get(&id).map(|position| &index.messages[*position])?;
    if message.copies != 1 || !message.redrives.is_empty() {
        return None;
    }
    let departures =
        message.settles.iter().filter(|settled| settled.queue == queue && settled.is_done() && settled.ends_stay());
    let first = departures.min_by_key(|settled| settled.span.end)?;
    let mut key_free_by = first.span.end;
    if let DedupScope::Window(window) = index.options.dedup {
        let sent = message.possible_sends().map(|sent| sent.span.end).max()?;
        let window_end = sent.saturating_add(window).saturating_add(index.options.tolerance);
        key_free_by = key_free_by.max(window_end);
    }
    Some(Ended { key_free_by, event: first.event })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::test_history::{TestHistory, id, ms};
    use crate::history::LeaseOutcome;

    fn send(history: &mut TestHistory, time: Range<u64>, message: u64, answer: u64) {
        history.send_with(time, message, |call| {
            call.dedup_key = Some("d".into());
            call.outcome = if answer == 0 { Outcome::Unknown } else { Outcome::Done(id(answer)) };
        });
    }

    /// Message 1 is sent, then message 2 with the same key, and message 1 is acknowledged at 1000.
    fn sent_twice(second: Range<u64>, answer: u64) -> TestHistory {
        let mut history = TestHistory::default();
        send(&mut history, 0..10, 1, 1);
        send(&mut history, second, 2, answer);
        let token = history.receive(900..910, 1);
        history.ack(1_000..1_010, token);
        history
    }

    #[test]
    fn a_second_send_is_answered_with_the_first_message() {
        sent_twice(20..30, 1).assert_clean();
        let text = sent_twice(20..30, 2).assert_accused(FindingKind::Duplicated, 1);
        assert!(text.contains("which has the same dedup key and lived all the time"), "{text}");
    }

    #[test]
    fn sends_at_once_and_sends_after_the_end_may_make_two() {
        sent_twice(10..30, 2).assert_clean();
        sent_twice(990..1_000, 2).assert_clean();
        sent_twice(1_100..1_110, 2).assert_clean();
    }

    #[test]
    fn a_second_message_whose_send_had_no_answer_is_found_by_its_delivery() {
        let mut history = sent_twice(20..30, 0);
        history.assert_clean();
        history.receive(500..510, 2);
        history.assert_accused(FindingKind::Duplicated, 1);
        let mut history = sent_twice(20..30, 0);
        history.receive(500..1_000, 2);
        history.assert_clean();
    }

    #[test]
    fn a_message_that_existed_before_the_first_may_be_sent_again() {
        let mut history = TestHistory::default();
        send(&mut history, 0..10, 2, 0);
        let token = history.receive(20..30, 2);
        history.settle(31..32, token, Disposition::Ack, LeaseOutcome::Unknown);
        send(&mut history, 40..50, 1, 1);
        send(&mut history, 60..70, 2, 0);
        let token = history.receive(80..90, 1);
        history.ack(91..92, token);
        history.assert_clean();
    }

    #[test]
    fn a_send_that_was_answered_with_the_first_message_made_none() {
        let mut history = sent_twice(20..30, 1);
        history.receive(500..510, 2);
        let text = history.assert_accused(FindingKind::Duplicated, 1);
        assert!(text.contains("was answered with the id of message"), "{text}");
    }

    #[test]
    fn a_first_message_that_may_have_ended_frees_the_key() {
        let mut history = TestHistory::default();
        send(&mut history, 0..10, 1, 1);
        let token = history.receive(12..14, 1);
        let reject = Disposition::Nack(Nack::dead_letter("rejected"));
        history.settle(15..16, token, reject, LeaseOutcome::Unknown);
        send(&mut history, 20..30, 2, 2);
        history.assert_clean();

        let mut history = TestHistory::default();
        send(&mut history, 0..10, 1, 1);
        send(&mut history, 20..30, 2, 2);
        history.finish(&[(1, "max_receive_count", 3)], &[2]);
        assert!(!history.verdict().has(FindingKind::Duplicated));

        let mut history = sent_twice(20..30, 2);
        history.redrive(15..18, &[1], false);
        history.assert_clean();
    }

    #[test]
    fn a_key_whose_message_has_ended_makes_a_new_one() {
        let mut history = sent_twice(1_011..1_020, 1);
        let text = history.assert_accused(FindingKind::Lost, 1);
        assert!(text.contains("which had ended with the ack"), "{text}");
        sent_twice(1_010..1_020, 1).assert_clean();

        history.options.dedup = DedupScope::Window(ms(996));
        history.assert_clean();
        history.options.dedup = DedupScope::Window(ms(995));
        history.assert_accused(FindingKind::Lost, 1);
    }

    #[test]
    fn a_window_ends_although_the_message_lives() {
        let mut history = sent_twice(20..30, 2);
        history.options.dedup = DedupScope::Window(ms(35));
        history.assert_clean();
        history.options.dedup = DedupScope::Window(ms(36));
        history.assert_accused(FindingKind::Duplicated, 1);
    }

    #[test]
    fn an_answer_must_be_a_message_of_that_key() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        send(&mut history, 2..3, 2, 1);
        history.assert_accused(FindingKind::Phantom, 1);
    }
}
