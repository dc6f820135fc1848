//! Deliveries and attempts that were not counted, and delivery limits that were exceeded.

use postrider_core::Timestamp;

use super::finding::{FindingKind, Findings};
use super::index::{Delivered, Index, MessageLog, Stay};
use super::span::{Redrives, Span};

const KIND: (FindingKind, u8) = (FindingKind::ForgottenCount, 8);

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    for message in &index.messages {
        for stay in &message.stays {
            limit_is_kept(index, findings, message, stay);
            if message.copies == 1 {
                nothing_is_forgotten(index, findings, message, stay);
            }
        }
    }
}

fn limit_is_kept(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    let queue = index.queue(stay.queue);
    if queue.holds_dead_letters {
        return;
    }
    for delivered in &stay.deliveries {
        let (count, limit) = (delivered.delivery.receive_count, delivered.limit);
        if count > limit {
            findings.add(KIND, &queue.name, message.id, || {
                let delivered = index.cite(delivered.event);
                format!("{delivered} allowed {limit} deliveries and got delivery number {count}")
            });
        }
    }
}

fn nothing_is_forgotten(index: &Index<'_>, findings: &mut Findings, message: &MessageLog<'_>, stay: &Stay<'_>) {
    let counted = stay.deliveries.iter().filter(|delivered| !may_be_released(message, delivered));
    let deliveries = before_each(stay, counted.map(|delivered| delivered.span).collect(), &message.redrives);
    let failed = stay.deliveries.iter().flat_map(|delivered| &delivered.settles);
    let failed = failed.map(|position| &message.settles[*position]);
    let failed = failed.filter(|settled| settled.is_done() && settled.retry_after().is_some());
    let attempts = before_each(stay, failed.map(|settled| settled.span).collect(), &message.redrives);
    let queue = &index.queue(stay.queue).name;
    for (position, delivered) in stay.deliveries.iter().enumerate() {
        let delivery = delivered.delivery;
        let counted = if index.options.counts_deliveries { deliveries[position] + 1 } else { 1 };
        let checks = [
            ("receive_count", delivery.receive_count, counted),
            ("attempts_count", delivery.attempts_count, attempts[position]),
        ];
        for (name, count, least) in checks {
            if count < least {
                findings.add(KIND, queue, message.id, || {
                    let delivered = index.cite(delivered.event);
                    format!("{delivered} has {name} {count}, and must have at least {least}")
                });
            }
        }
    }
}

/// Whether the delivery may have been released, which uncounts it.
fn may_be_released(message: &MessageLog<'_>, delivered: &Delivered<'_>) -> bool {
    delivered.settles.iter().any(|position| message.settles[*position].is_release())
}

/// For each delivery, how many of `past` certainly took effect before it and after the last redrive, which resets
/// the counts.
fn before_each(stay: &Stay<'_>, mut past: Vec<Span>, redrives: &Redrives) -> Vec<u32> {
    let mut counts = vec![0; stay.deliveries.len()];
    if past.is_empty() {
        return counts;
    }
    past.sort_by_key(|span| span.end);
    let mut order: Vec<usize> = (0..stay.deliveries.len()).collect();
    order.sort_by_key(|position| stay.deliveries[*position].span.start);
    let mut past = past.into_iter().peekable();
    let mut redrives = redrives.spans().iter().peekable();
    let mut redriven_by = Timestamp::from_micros(i64::MIN);
    let mut latest = redriven_by;
    let mut count = 0;
    for position in order {
        let span = stay.deliveries[position].span;
        latest = latest.max(span.end);
        while let Some(before) = past.next_if(|before| before.is_before(span)) {
            count += u32::from(before.start > redriven_by);
        }
        while let Some(redrive) = redrives.next_if(|redrive| redrive.start <= latest) {
            redriven_by = redriven_by.max(redrive.end);
            count = 0;
        }
        counts[position] = count;
    }
    counts
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, Nack};

    use super::*;
    use crate::checker::test_history::{TestHistory, ms, queue};
    use crate::history::{LeaseOutcome, Outcome, ReceiveCall};

    const FORGOTTEN: FindingKind = FindingKind::ForgottenCount;

    fn count(receives: u32, attempts: u32) -> impl FnOnce(&mut ReceiveCall) {
        move |call| {
            if let Outcome::Done(deliveries) = &mut call.outcome {
                deliveries[0].receive_count = receives;
                deliveries[0].attempts_count = attempts;
            }
        }
    }

    /// Delivered once, and that lease has expired.
    fn delivered_once() -> TestHistory {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history.receive(10..12, 1);
        history
    }

    #[test]
    fn an_earlier_delivery_is_counted() {
        let mut history = delivered_once();
        history.receive_with(1_100..1_110, &[1], count(1, 0));
        let text = history.assert_accused(FORGOTTEN, 8);
        assert!(text.contains("receive_count 1, and must have at least 2"), "{text}");
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history.receive_with(10..12, &[1], count(0, 0));
        history.assert_accused(FORGOTTEN, 8);
    }

    #[test]
    fn a_store_that_counts_no_deliveries_must_still_report_one_and_count_failures() {
        let mut history = delivered_once();
        history.options.counts_deliveries = false;
        history.receive_with(1_100..1_110, &[1], count(1, 0));
        history.assert_clean();
        history.receive_with(2_200..2_210, &[1], count(0, 0));
        history.assert_accused(FORGOTTEN, 8);
        let mut history = TestHistory::default();
        history.options.counts_deliveries = false;
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        history.settle(20..30, token, Disposition::Nack(Nack::retry_after(ms(0))), LeaseOutcome::Done);
        history.receive_with(1_100..1_110, &[1], count(2, 0));
        history.assert_accused(FORGOTTEN, 8);
    }

    #[test]
    fn a_higher_count_may_come_from_unanswered_receives() {
        let mut history = delivered_once();
        history.receive_with(1_100..1_110, &[1], count(3, 0));
        history.assert_clean();
    }

    #[test]
    fn a_delivery_that_may_have_been_released_is_not_counted() {
        for outcome in [LeaseOutcome::Done, LeaseOutcome::Unknown] {
            let mut history = TestHistory::default();
            history.send(0..1, 1);
            let token = history.receive(10..12, 1);
            history.settle(20..30, token, Disposition::Nack(Nack::Release), outcome);
            history.receive_with(1_100..1_110, &[1], count(1, 0));
            history.assert_clean();
        }
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        history.drop_message(20..30, token);
        history.receive_with(1_100..1_110, &[1], count(1, 0));
        history.assert_accused(FORGOTTEN, 8);
    }

    #[test]
    fn of_two_overlapping_deliveries_either_may_have_been_first() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let lease = |call: &mut ReceiveCall| call.visibility = ms(1);
        history.receive_with(10..30, &[1], lease);
        history.receive_with(20..40, &[1], |call| {
            lease(call);
            count(1, 0)(call);
        });
        history.assert_clean();
    }

    #[test]
    fn a_redrive_resets_the_counts() {
        for (ids, known) in [(&[1][..], true), (&[1][..], false), (&[][..], false)] {
            let mut history = delivered_once();
            history.redrive(1_100..1_110, ids, known);
            history.receive_with(1_105..1_120, &[1], count(1, 0));
            history.assert_clean();
        }
        let mut history = delivered_once();
        history.redrive(1_100..1_110, &[1], true);
        history.receive_with(1_120..1_130, &[1], count(1, 0));
        history.receive_with(2_200..2_210, &[1], count(1, 0));
        history.assert_accused(FORGOTTEN, 8);
    }

    #[test]
    fn another_copy_has_a_count_of_its_own() {
        let mut history = TestHistory::default();
        history.send_with(0..1, 1, |call| call.outcome = Outcome::Unknown);
        history.send(2..3, 1);
        history.receive(10..12, 1);
        history.receive_with(1_100..1_110, &[1], count(1, 0));
        history.assert_clean();
    }

    #[test]
    fn an_attempt_that_failed_is_counted() {
        let retried = |outcome, again: std::ops::Range<u64>| {
            let mut history = TestHistory::default();
            history.send(0..1, 1);
            let token = history.receive(10..12, 1);
            let retry = Disposition::Nack(Nack::retry_after(ms(0)));
            history.settle(20..30, token, retry, outcome);
            history.receive_with(again, &[1], count(2, 0));
            history
        };
        retried(LeaseOutcome::Done, 31..40).assert_accused(FORGOTTEN, 8);
        retried(LeaseOutcome::Unknown, 31..40).assert_clean();
        retried(LeaseOutcome::Expired, 1_100..1_110).assert_clean();
    }

    #[test]
    fn the_limit_is_kept_but_not_on_dead_letters() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history.receive_with(10..12, &[1], count(4, 0));
        history.assert_accused(FORGOTTEN, 8);
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history.receive_with(10..12, &[1], |call| {
            call.queue = queue().dead_letters();
            count(4, 0)(call);
        });
        history.assert_clean();
    }
}
