//! Messages that were delivered before they were due, or after they had expired.

use postrider_core::Timestamp;

use super::LeaseScope;
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
    let mut arrivals = stay.arrivals.iter().peekable();
    let mut due: Option<(Timestamp, usize)> = None;
    for delivered in &stay.deliveries {
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.span.start <= delivered.span.end) {
            let born_due = (arrival.span.start.saturating_add(arrival.delay), arrival.event);
            due = Some(due.map_or(born_due, |due| due.min(born_due)));
        }
        let Some((due, arrival)) = due else { continue };
        if is_early(index, delivered, due) {
            findings.add((FindingKind::Early, 12), &index.queue(stay.queue).name, message.id, || {
                let (delivered, arrival) = (index.cite(delivered.event), index.cite(arrival));
                format!("delivered by {delivered}, after {arrival} not due before {}", index.time(due))
            });
        }
    }
}

fn is_early(index: &Index<'_>, delivered: &Delivered<'_>, due: Timestamp) -> bool {
    delivered.span.end < due.saturating_sub(index.options.tolerance)
}

fn after_its_retry(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    if index.options.leases == LeaseScope::Connections && message.ordering_key().is_some() {
        return;
    }
    for pair in stay.deliveries.windows(2) {
        let [before, delivered] = pair else { continue };
        if !before.span.is_before(delivered.span) {
            continue;
        }
        for settled in before.settles.iter().map(|position| &message.settles[*position]) {
            let Some(after) = settled.retry_after().filter(|_| settled.is_done()) else {
                continue;
            };
            let due = settled.span.start.saturating_add(after);
            // A delivery before the retry began is a second lease, not an early retry.
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
        // A redrive removes the expiry.
        let redriven = message.redrives.possible_by(delivered.span.end);
        if delivered.span.start > expired && !redriven {
            findings.add((FindingKind::Early, 12), &index.queue(stay.queue).name, message.id, || {
                let (delivered, expired) = (index.cite(delivered.event), index.time(expired));
                format!("delivered by {delivered}, although it had expired by {expired}")
            });
        }
    }
}

/// By when every copy of the message had certainly expired. `expires_at` is not checked: the clocks of the store and
/// the history may differ.
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
    use crate::checker::test_history::{TestHistory, ms};
    use crate::history::LeaseOutcome;

    const KIND: FindingKind = FindingKind::Early;

    fn delayed(outcome: Outcome<postrider_core::MessageId>) -> TestHistory {
        let mut history = TestHistory::default();
        history.send_with(100..120, 1, |call| {
            call.delay = ms(500);
            call.outcome = outcome;
        });
        history
    }

    #[test]
    fn a_delayed_message_is_not_received_early() {
        let known = || Outcome::Done(crate::checker::test_history::id(1));
        for outcome in [known(), Outcome::Unknown] {
            let mut history = delayed(outcome.clone());
            history.receive(500..594, 1);
            history.assert_accused(KIND, 12);
            let mut history = delayed(outcome);
            history.receive(500..595, 1);
            history.assert_clean();
        }
    }

    #[test]
    fn a_resend_without_the_delay_may_be_the_one_received() {
        let mut history = delayed(Outcome::Unknown);
        history.send(200..210, 1);
        history.receive(220..230, 1);
        history.assert_clean();
    }

    #[test]
    fn a_redriven_message_is_due_at_once() {
        for known in [true, false] {
            let mut history = delayed(Outcome::Unknown);
            history.redrive(200..210, &[1], known);
            history.receive(205..230, 1);
            history.assert_clean();
        }
        let mut history = delayed(Outcome::Unknown);
        history.redrive(200..210, &[], false);
        history.receive(205..230, 1);
        history.assert_clean();
    }

    fn retried(outcome: LeaseOutcome) -> TestHistory {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive_with(10..12, &[1], |call| call.visibility = ms(100))[0];
        let retry = Disposition::Nack(Nack::retry_after(ms(500)));
        history.settle(20..30, token, retry, outcome);
        history
    }

    #[test]
    fn a_retry_stays_away_for_its_delay() {
        let mut history = retried(LeaseOutcome::Done);
        history.receive(500..514, 1);
        history.assert_accused(KIND, 6);
        let mut history = retried(LeaseOutcome::Done);
        history.receive(500..515, 1);
        history.assert_clean();
    }

    #[test]
    fn a_retry_that_its_worker_holds_ends_with_the_connection() {
        let retried = |leases: LeaseScope, is_keyed: bool| {
            let mut history = TestHistory::default();
            history.options.leases = leases;
            if is_keyed {
                history.send_keyed(0..1, 1)
            } else {
                history.send(0..1, 1)
            };
            let token = history.receive(2..3, 1);
            history.nack(4..5, token, Nack::retry_after(ms(500)));
            history.receive(100..110, 1);
            history
        };
        retried(LeaseScope::Connections, true).assert_clean();
        retried(LeaseScope::Connections, false).assert_accused(KIND, 6);
        retried(LeaseScope::Store, true).assert_accused(KIND, 6);
    }

    #[test]
    fn a_retry_that_may_not_have_happened_delays_nothing() {
        for outcome in [LeaseOutcome::Unknown, LeaseOutcome::Expired] {
            let mut history = retried(outcome);
            history.receive(110..120, 1);
            history.assert_clean();
        }
    }

    #[test]
    fn a_delivery_before_the_retry_is_not_early() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        history.receive(20..30, 1);
        history.nack(40..50, token, Nack::retry_after(ms(500)));
        let verdict = history.verdict();
        assert!(verdict.has(FindingKind::TwoLeases) && !verdict.has(KIND), "{verdict}");
    }

    #[test]
    fn a_redrive_ends_the_wait_for_a_retry() {
        let mut history = retried(LeaseOutcome::Done);
        history.redrive(100..110, &[1], false);
        history.receive(120..130, 1);
        history.assert_clean();
    }

    #[test]
    fn a_release_comes_back_at_once() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        history.nack(20..30, token, Nack::Release);
        history.receive(25..28, 1);
        history.assert_clean();
    }

    fn expiring() -> TestHistory {
        let mut history = TestHistory::default();
        history.send_with(0..10, 1, |call| call.expires_in = Some(ms(100)));
        history
    }

    #[test]
    fn an_expired_message_is_not_delivered() {
        let mut history = expiring();
        history.receive(116..120, 1);
        history.assert_accused(KIND, 12);
        let mut history = expiring();
        history.receive(115..120, 1);
        history.assert_clean();
    }

    #[test]
    fn an_uncertain_expiry_is_not_checked() {
        let mut history = expiring();
        history.options = CheckOptions { time_resolution: ms(150), ..CheckOptions::default() };
        history.receive(150..160, 1);
        history.assert_clean();

        let mut history = expiring();
        history.send(20..30, 1);
        history.receive(150..160, 1);
        history.assert_clean();

        let mut history = expiring();
        history.redrive(20..30, &[1], true);
        history.receive(150..160, 1);
        history.assert_clean();

        let mut history = TestHistory::default();
        history.send_with(0..10, 1, |call| call.expires_at = Some(Timestamp::EPOCH));
        history.receive(150..160, 1);
        history.assert_clean();
    }
}
