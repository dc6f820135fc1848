//! Messages that were delivered before they were due, or after they had expired.

use postrider_core::Timestamp;

use super::LeasesOf;
use super::finding::{FindingKind, Findings};
use super::index::{Delivered, Index, MessageLog, Stay};
use super::lease;
use crate::history::Outcome;

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    for message in &index.messages {
        for stay in &message.stays {
            after_its_delay(index, findings, message, stay);
            before_its_expiry(index, findings, message, stay);
            if message.copies == 1 {
                after_its_retry(index, findings, message, stay);
            }
        }
    }
}

fn after_its_delay(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    let mut births = stay.births.iter().peekable();
    let mut due: Option<(Timestamp, usize)> = None;
    for delivered in &stay.deliveries {
        while let Some(birth) = births.next_if(|birth| birth.span.start <= delivered.span.end) {
            let born_due = (birth.span.start.saturating_add(birth.delay), birth.event);
            due = Some(due.map_or(born_due, |due| due.min(born_due)));
        }
        let Some((due, birth)) = due else { continue };
        if is_early(index, delivered, due) {
            findings.add((FindingKind::Early, 12), &index.queue(stay.queue).name, message.id, || {
                let (delivered, birth) = (index.cite(delivered.event), index.cite(birth));
                format!("delivered by {delivered}, after {birth} not due before {}", index.time(due))
            });
        }
    }
}

fn is_early(index: &Index<'_>, delivered: &Delivered<'_>, due: Timestamp) -> bool {
    delivered.span.end < due.saturating_sub(index.options.tolerance)
}

fn after_its_retry(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    if index.options.leases == LeasesOf::Connections && message.ordering_key().is_some() {
        return;
    }
    for pair in stay.deliveries.windows(2) {
        let [before, delivered] = pair else { continue };
        if !before.span.is_before(delivered.span) {
            continue;
        }
        for settled in before.settles.iter().map(|place| &message.settles[*place]) {
            let Some(after) = settled.retry_after().filter(|_| settled.is_done()) else {
                continue;
            };
            let due = settled.span.start.saturating_add(after);
            // A delivery before the retry began is two leases at once, not an early return.
            let is_next = settled.span.start <= delivered.span.end;
            let redriven = message.redrives.possible_between(settled.span.start, delivered.span.end);
            if is_next && !redriven && is_early(index, delivered, due) {
                findings.add((FindingKind::Early, 6), &index.queue(stay.queue).name, message.id, || {
                    let (delivered, retry) = (index.cite(delivered.event), index.cite(settled.event));
                    format!("delivered by {delivered}, after {retry} not due before {}", index.time(due))
                });
            }
        }
    }
}

fn before_its_expiry(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    if index.queue(stay.queue).holds_dead_letters {
        return;
    }
    let Some(expired) = expired_by(index, message, stay) else {
        return;
    };
    for delivered in &stay.deliveries {
        // A redriven message has no expiry any more.
        let redriven = message.redrives.possible_by(delivered.span.end);
        if delivered.span.start > expired && !redriven {
            findings.add((FindingKind::Early, 12), &index.queue(stay.queue).name, message.id, || {
                let (delivered, expired) = (index.cite(delivered.event), index.time(expired));
                format!("delivered by {delivered}, although it had expired by {expired}")
            });
        }
    }
}

/// By when every copy of the message had expired for certain. An expiry at a time of the store's clock is not judged:
/// the two clocks may differ.
fn expired_by(index: &Index<'_>, message: &MessageLog<'_>, stay: &Stay<'_>) -> Option<Timestamp> {
    let options = index.options;
    let mut latest = None;
    for sent in message.possible_sends().filter(|sent| sent.queue == stay.queue) {
        let lifetime = sent.call.expires_in.filter(|_| matches!(sent.call.outcome, Outcome::Done(_)))?;
        let lifetime = lease::round_up(lifetime, options.time_resolution);
        latest = latest.max(Some(sent.span.end.saturating_add(lifetime)));
    }
    latest.map(|latest| latest.saturating_add(options.tolerance))
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack, Timestamp};

    use super::*;
    use crate::checker::CheckOptions;
    use crate::checker::story::{Story, ms};
    use crate::history::LeaseOutcome;

    const KIND: FindingKind = FindingKind::Early;

    fn delayed(outcome: Outcome<postrider_core::MessageId>) -> Story {
        let mut story = Story::default();
        story.send_with(100..120, 1, |call| {
            call.delay = ms(500);
            call.outcome = outcome;
        });
        story
    }

    #[test]
    fn a_delayed_message_is_not_received_early() {
        let known = || Outcome::Done(crate::checker::story::id(1));
        for outcome in [known(), Outcome::Unknown] {
            let mut story = delayed(outcome.clone());
            story.receive(500..594, 1);
            story.assert_accused(KIND, 12);
            let mut story = delayed(outcome);
            story.receive(500..595, 1);
            story.assert_clean();
        }
    }

    #[test]
    fn a_resend_without_the_delay_may_be_what_was_received() {
        let mut story = delayed(Outcome::Unknown);
        story.send(200..210, 1);
        story.receive(220..230, 1);
        story.assert_clean();
    }

    #[test]
    fn a_redriven_message_is_due_at_once() {
        for known in [true, false] {
            let mut story = delayed(Outcome::Unknown);
            story.redrive(200..210, &[1], known);
            story.receive(205..230, 1);
            story.assert_clean();
        }
        let mut story = delayed(Outcome::Unknown);
        story.redrive(200..210, &[], false);
        story.receive(205..230, 1);
        story.assert_clean();
    }

    fn retried(outcome: LeaseOutcome) -> Story {
        let mut story = Story::default();
        story.send(0..1, 1);
        let token = story.receive_with(10..12, &[1], |call| call.visibility = ms(100))[0];
        let retry = Disposition::Nack(Nack::retry_after(ms(500)));
        story.settle(20..30, token, retry, outcome);
        story
    }

    #[test]
    fn a_retry_stays_away_for_its_delay() {
        let mut story = retried(LeaseOutcome::Done);
        story.receive(500..514, 1);
        story.assert_accused(KIND, 6);
        let mut story = retried(LeaseOutcome::Done);
        story.receive(500..515, 1);
        story.assert_clean();
    }

    #[test]
    fn a_retry_in_the_hand_of_its_worker_ends_with_the_connection() {
        let retried = |leases: LeasesOf, is_keyed: bool| {
            let mut story = Story::default();
            story.options.leases = leases;
            if is_keyed {
                story.send_keyed(0..1, 1)
            } else {
                story.send(0..1, 1)
            };
            let token = story.receive(2..3, 1);
            story.nack(4..5, token, Nack::retry_after(ms(500)));
            story.receive(100..110, 1);
            story
        };
        retried(LeasesOf::Connections, true).assert_clean();
        retried(LeasesOf::Connections, false).assert_accused(KIND, 6);
        retried(LeasesOf::Store, true).assert_accused(KIND, 6);
    }

    #[test]
    fn a_retry_that_may_not_have_happened_delays_nothing() {
        for outcome in [LeaseOutcome::Unknown, LeaseOutcome::Expired] {
            let mut story = retried(outcome);
            story.receive(110..120, 1);
            story.assert_clean();
        }
    }

    #[test]
    fn a_delivery_before_the_retry_is_another_matter() {
        let mut story = Story::default();
        story.send(0..1, 1);
        let token = story.receive(10..12, 1);
        story.receive(20..30, 1);
        story.nack(40..50, token, Nack::retry_after(ms(500)));
        let verdict = story.verdict();
        assert!(verdict.has(FindingKind::TwoLeases) && !verdict.has(KIND), "{verdict}");
    }

    #[test]
    fn a_redrive_ends_the_wait_for_a_retry() {
        let mut story = retried(LeaseOutcome::Done);
        story.redrive(100..110, &[1], false);
        story.receive(120..130, 1);
        story.assert_clean();
    }

    #[test]
    fn a_release_comes_back_at_once() {
        let mut story = Story::default();
        story.send(0..1, 1);
        let token = story.receive(10..12, 1);
        story.nack(20..30, token, Nack::Release);
        story.receive(25..28, 1);
        story.assert_clean();
    }

    fn expiring() -> Story {
        let mut story = Story::default();
        story.send_with(0..10, 1, |call| call.expires_in = Some(ms(100)));
        story
    }

    #[test]
    fn an_expired_message_is_not_delivered() {
        let mut story = expiring();
        story.receive(116..120, 1);
        story.assert_accused(KIND, 12);
        let mut story = expiring();
        story.receive(115..120, 1);
        story.assert_clean();
    }

    #[test]
    fn an_expiry_that_is_not_certain_is_not_judged() {
        let mut story = expiring();
        story.options = CheckOptions { time_resolution: ms(150), ..CheckOptions::default() };
        story.receive(150..160, 1);
        story.assert_clean();

        let mut story = expiring();
        story.send(20..30, 1);
        story.receive(150..160, 1);
        story.assert_clean();

        let mut story = expiring();
        story.redrive(20..30, &[1], true);
        story.receive(150..160, 1);
        story.assert_clean();

        let mut story = Story::default();
        story.send_with(0..10, 1, |call| call.expires_at = Some(Timestamp::EPOCH));
        story.receive(150..160, 1);
        story.assert_clean();
    }
}
