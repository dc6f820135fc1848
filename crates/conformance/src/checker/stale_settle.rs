//! Settles and extensions that were carried out after their lease had ended.

use postrider_core::Timestamp;

use super::finding::{FindingKind, Findings};
use super::index::{Delivered, Index, MessageLog, Stay};
use super::span::Span;
use crate::history::Operation;

const KIND: (FindingKind, u8) = (FindingKind::StaleSettle, 3);

pub(super) fn check(index: &Index<'_>, findings: &mut Findings) {
    tokens_were_handed_out(index, findings);
    for message in &index.messages {
        for stay in &message.stays {
            let newer = if message.copies == 1 { Newer::of(stay) } else { Newer::default() };
            for delivered in &stay.deliveries {
                check_lease(index, findings, message, stay, delivered, &newer);
            }
        }
    }
}

fn tokens_were_handed_out(index: &Index<'_>, findings: &mut Findings) {
    for event in &index.unknown_token_uses {
        let (queue, id) = match &index.events[*event].operation {
            Operation::Settle(call) => (&call.queue, call.id),
            Operation::Extend(call) => (&call.queue, call.id),
            _ => continue,
        };
        findings.add(KIND, queue, id, || {
            format!("{} was carried out with a token that no delivery of the message had", index.cite(*event))
        });
    }
    for (first, again, id) in &index.repeated_tokens {
        let Operation::Receive(call) = &index.events[*again].operation else {
            continue;
        };
        findings.add(KIND, &call.queue, *id, || {
            format!("{} returned a token that {} had returned", index.cite(*again), index.cite(*first))
        });
    }
}

fn check_lease(
    index: &Index<'_>,
    findings: &mut Findings,
    message: &MessageLog<'_>,
    stay: &Stay<'_>,
    delivered: &Delivered<'_>,
    newer: &Newer,
) {
    let mut settles: Vec<_> = delivered
        .settles
        .iter()
        .map(|position| &message.settles[*position])
        .filter(|settled| settled.is_done())
        .collect();
    settles.sort_by_key(|settled| (settled.span.end, settled.event));
    let settled = settles.first().map(|settled| (settled.span, settled.event));
    // A token ends with its first settle, so a second settle was carried out too late even if the two overlapped.
    let uses = settles.iter().enumerate().map(|(nth, settled)| Use {
        event: settled.event,
        span: settled.span,
        after_settle: nth > 0,
        after_end: settled.span.start > delivered.lease.over_by
            || (settled.is_ack() && newer.began_in(delivered.lease.over_by, settled.span.end)),
    });
    let extends = delivered.extends.iter().enumerate().filter(|(_, extend)| extend.done);
    let extends = extends.map(|(position, extend)| Use {
        event: extend.event,
        span: extend.span,
        after_settle: settled.is_some_and(|(settled, _)| settled.is_before(extend.span)),
        after_end: delivered.lease.late_extends.binary_search(&position).is_ok(),
    });
    for used in uses.chain(extends) {
        let taken_over = newer.than(delivered.span).filter(|(end, _)| *end < used.span.start);
        let why = || match (settled, taken_over) {
            (Some((_, settle)), _) if used.after_settle => {
                format!("had been settled by {}", index.cite(settle))
            }
            (_, Some((_, receive))) => format!("had ended before {}", index.cite(receive)),
            _ => format!("had expired by {}", index.time(delivered.lease.over_by)),
        };
        if used.after_settle || used.after_end || taken_over.is_some() {
            findings.add(KIND, &index.queue(stay.queue).name, message.id, || {
                let (used, receive) = (index.cite(used.event), index.cite(delivered.event));
                format!("{used} was carried out although the lease of {receive} {}", why())
            });
        }
    }
}

/// A settle or an extension that was carried out.
struct Use {
    event: usize,
    span: Span,
    after_settle: bool,
    after_end: bool,
}

/// For each delivery, the earliest-ending one among those that certainly came after it.
#[derive(Default)]
struct Newer {
    /// By start: the start, the earliest end among it and later starts, and the event of that end.
    by_start: Vec<(Timestamp, Timestamp, usize)>,
}

impl Newer {
    fn of(stay: &Stay<'_>) -> Self {
        if stay.deliveries.len() < 2 {
            return Self::default();
        }
        let spans = stay.deliveries.iter().map(|delivered| (delivered.span, delivered.event));
        let mut by_start: Vec<_> = spans.map(|(span, event)| (span.start, span.end, event)).collect();
        by_start.sort_unstable();
        let mut earliest = (Timestamp::MAX, 0);
        for (_, end, event) in by_start.iter_mut().rev() {
            earliest = earliest.min((*end, *event));
            (*end, *event) = earliest;
        }
        Self { by_start }
    }

    /// The end of that delivery, and its event.
    fn than(&self, span: Span) -> Option<(Timestamp, usize)> {
        let first = self.by_start.partition_point(|(start, ..)| *start <= span.end);
        self.by_start.get(first).map(|(_, end, event)| (*end, *event))
    }

    /// Whether one began after `after` and not after `until`. An ack that ended then cannot have taken effect before
    /// `after`, or nothing would have been left to deliver.
    fn began_in(&self, after: Timestamp, until: Timestamp) -> bool {
        let first = self.by_start.partition_point(|(start, ..)| *start <= after);
        self.by_start.get(first).is_some_and(|(start, ..)| *start <= until)
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::{Disposition, LeaseToken, Nack};

    use super::*;
    use crate::checker::CheckOptions;
    use crate::checker::test_history::{LEASE, TestHistory, id, ms, queue};
    use crate::history::{LeaseOutcome, Outcome, SettleCall};

    const KIND: FindingKind = FindingKind::StaleSettle;

    fn leased() -> (TestHistory, LeaseToken) {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        let token = history.receive(10..12, 1);
        (history, token)
    }

    #[test]
    fn a_token_settles_once() {
        let (mut history, token) = leased();
        history.nack(20..30, token, Nack::Release);
        history.ack(25..35, token);
        let text = history.assert_accused(KIND, 3);
        assert!(text.contains("had been settled by the release"), "{text}");
    }

    #[test]
    fn a_settle_repeated_after_an_unknown_outcome_may_be_the_first_one() {
        for outcome in [LeaseOutcome::Unknown, LeaseOutcome::Expired] {
            let (mut history, token) = leased();
            history.settle(20..30, token, Disposition::Ack, outcome);
            history.ack(40..50, token);
            history.assert_clean();
        }
    }

    #[test]
    fn an_extension_after_the_settle_is_accused_and_an_overlapping_one_is_not() {
        let (mut history, token) = leased();
        history.ack(20..30, token);
        history.extend(30..40, token, LEASE, LeaseOutcome::Done);
        history.assert_clean();
        history.extend(31..40, token, LEASE, LeaseOutcome::Done);
        history.assert_accused(KIND, 3);
    }

    #[test]
    fn a_settle_after_expiry_is_accused_also_without_a_newer_lease() {
        let (mut history, token) = leased();
        history.ack(1_017..1_020, token);
        history.assert_clean();
        let (mut history, token) = leased();
        history.ack(1_018..1_020, token);
        let text = history.assert_accused(KIND, 3);
        assert!(text.contains("had expired by 1.017000 s"), "{text}");
    }

    #[test]
    fn a_store_that_rounds_up_keeps_leases_longer() {
        let (mut history, token) = leased();
        history.options = CheckOptions { time_resolution: ms(3_000), ..CheckOptions::default() };
        history.ack(3_000..3_010, token);
        history.assert_clean();
    }

    #[test]
    fn an_extended_lease_lives_longer_and_a_shortened_one_does_not() {
        let (mut history, token) = leased();
        history.extend(900..910, token, LEASE, LeaseOutcome::Done);
        history.extend(1_800..1_810, token, LEASE, LeaseOutcome::Done);
        history.ack(2_700..2_710, token);
        history.assert_clean();

        let (mut history, token) = leased();
        history.extend(100..110, token, 50, LeaseOutcome::Done);
        history.ack(200..210, token);
        history.assert_accused(KIND, 3);
    }

    #[test]
    fn an_extension_without_an_answer_may_have_worked_at_the_last_moment() {
        let (mut history, token) = leased();
        history.extend(100..110, token, 500, LeaseOutcome::Unknown);
        history.ack(1_500..1_510, token);
        history.assert_clean();
        let (mut history, token) = leased();
        history.extend(100..110, token, 500, LeaseOutcome::Unknown);
        history.ack(1_550..1_560, token);
        history.assert_accused(KIND, 3);
    }

    #[test]
    fn an_extension_of_an_expired_lease_is_accused() {
        let (mut history, token) = leased();
        history.extend(1_100..1_110, token, LEASE, LeaseOutcome::Done);
        history.assert_accused(KIND, 3);
    }

    #[test]
    fn a_late_worker_may_not_settle_a_newer_delivery() {
        let (mut history, token) = leased();
        history.drop_message(20..21, token);
        history.receive(30..40, 1);
        history.ack(41..50, token);
        let text = history.assert_accused(KIND, 3);
        assert!(text.contains("had ended before the receive by worker 3"), "{text}");
    }

    #[test]
    fn a_settle_that_overlaps_the_newer_delivery_may_have_come_before_it() {
        let (mut history, token) = leased();
        history.receive(1_000..1_012, 1);
        history.nack(1_010..1_014, token, Nack::retry_after(ms(0)));
        history.assert_clean();
    }

    #[test]
    fn an_ack_longer_than_its_lease_is_too_late_for_an_overlapping_delivery() {
        let (mut history, token) = leased();
        history.receive(1_018..1_030, 1);
        history.ack(1_000..1_100, token);
        let text = history.assert_accused(KIND, 3);
        assert!(text.contains("had expired by 1.017000 s"), "{text}");

        let (mut history, token) = leased();
        history.receive(1_017..1_030, 1);
        history.ack(1_000..1_100, token);
        history.assert_clean();
    }

    #[test]
    fn a_newer_delivery_of_another_copy_ends_no_lease() {
        let mut history = TestHistory::default();
        history.send_with(0..1, 1, |call| call.outcome = Outcome::Unknown);
        history.send(2..3, 1);
        let token = history.receive(10..12, 1);
        history.receive(20..30, 1);
        history.ack(31..40, token);
        history.assert_clean();
    }

    #[test]
    fn a_token_of_no_delivery_is_accused() {
        for (queue, token, outcome, accused) in [
            (queue(), 99, LeaseOutcome::Done, true),
            (queue(), 99, LeaseOutcome::Expired, false),
            (queue(), 99, LeaseOutcome::Unknown, false),
            (queue().dead_letters(), 1, LeaseOutcome::Done, true),
        ] {
            let (mut history, _) = leased();
            let token = LeaseToken(token);
            let disposition = Disposition::Nack(Nack::Release);
            history.record(20..30, SettleCall { queue, id: id(1), token, disposition, outcome });
            if accused {
                history.assert_accused(KIND, 3);
            } else {
                history.assert_clean();
            }
        }
    }

    #[test]
    fn a_token_of_two_deliveries_is_accused() {
        let mut history = TestHistory::default();
        history.send(0..1, 1);
        history.send(0..1, 2);
        history.receive(10..12, 1);
        history.receive_with(20..30, &[2], |call| {
            if let Outcome::Done(deliveries) = &mut call.outcome {
                deliveries[0].token = LeaseToken(1);
            }
        });
        history.assert_accused(KIND, 3);
    }
}
