//! How long a message certainly lived, and what may have removed it.

use postrider_core::{DeadLetterReason, Timestamp};

use super::index::{FinalDeadLetter, Index, MessageLog, Stay};

/// Earlier than every other time.
const NEVER: Timestamp = Timestamp::from_micros(i64::MIN);

impl Index<'_> {
    /// Until when the message was certainly in the queue, once it had arrived: until then it was neither acknowledged, nor
    /// dead, nor removed in any order of the overlapping calls.
    ///
    /// Never certain for a message that may have had two copies or a redrive: one copy may have ended unseen.
    pub(super) fn alive_until(&self, message: &MessageLog<'_>, stay: &Stay<'_>) -> Timestamp {
        if message.copies != 1 || !message.redrives.is_empty() {
            return NEVER;
        }
        let Some(arrival) = stay.first_arrival() else {
            return NEVER;
        };
        let ends = message.settles.iter().filter(|settled| settled.queue == stay.queue);
        let ends = ends.filter(|settled| settled.ends_stay());
        let mut until = Timestamp::MAX;
        let mut seen_to_end = message.live.contains(&stay.queue);
        for settled in ends {
            until = until.min(settled.span.start);
            seen_to_end |= settled.is_done();
        }
        let removed = self.queue(stay.queue).removals.earliest(arrival);
        if !seen_to_end && (removed.is_none() || self.may_have_died(message, stay, arrival)) {
            until = until.min(self.earliest_death(message, stay, arrival));
        }
        removed.map_or(until, |removed| until.min(removed))
    }

    /// Whether the message may have been among the dead letters of its queue at some time.
    fn may_have_died(&self, message: &MessageLog<'_>, stay: &Stay<'_>, arrival: Timestamp) -> bool {
        !self.queue(stay.queue).has_final
            || !message.dead.is_empty()
            || self.may_have_left_dead_letters(message, stay.queue, arrival)
    }

    /// The earliest time at which the store can have dead-lettered the message by itself, or lost it: not before its last
    /// lease ended, and an expired message not before its expiry.
    fn earliest_death(&self, message: &MessageLog<'_>, stay: &Stay<'_>, arrival: Timestamp) -> Timestamp {
        let leases = stay.deliveries.iter().map(|delivered| delivered.lease.held_until);
        let free = leases.max().unwrap_or(arrival);
        let expired = |dead: &FinalDeadLetter<'_>| dead.record.reason == DeadLetterReason::EXPIRED;
        if message.dead.is_empty() || !message.dead.iter().all(expired) {
            return free;
        }
        let expiry = message.possible_sends().map(|sent| {
            let lifetime = sent.call.expires_in.unwrap_or_default();
            sent.span.start.saturating_add(lifetime).saturating_sub(self.options.tolerance)
        });
        expiry.min().map_or(free, |expiry| free.max(expiry))
    }

    /// Whether a purge or deletion may have removed the message, alive or dead.
    pub(super) fn may_be_purged(&self, message: &MessageLog<'_>) -> bool {
        let Some(arrival) = message.first_arrival() else {
            return true;
        };
        message.dead_purged_until.is_some()
            || message.stays.iter().any(|stay| {
                let queue = self.queue(self.queue(stay.queue).origin);
                queue.removals.earliest(arrival).is_some()
                    || queue.dead_purged_until.is_some_and(|until| until >= arrival)
            })
    }

    /// Whether a message that was dead-lettered in `origin` may have left the dead letters after `since`.
    pub(super) fn may_have_left_dead_letters(&self, message: &MessageLog<'_>, origin: usize, since: Timestamp) -> bool {
        let purged_until = self.queue(origin).dead_purged_until.max(message.dead_purged_until);
        purged_until.is_some_and(|until| until >= since)
            || message.redrives.possible_between(since, Timestamp::MAX)
            || message.settles.iter().any(|settled| {
                let queue = self.queue(settled.queue);
                settled.is_ack() && queue.holds_dead_letters && queue.origin == origin
            })
    }

    /// Whether the final state of every queue of the message is known.
    pub(super) fn seen_at_end(&self, message: &MessageLog<'_>) -> bool {
        message.stays.iter().all(|stay| self.queue(self.queue(stay.queue).origin).has_final)
    }
}
