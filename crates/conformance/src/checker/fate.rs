//! What may have become of a message.

use postrider_core::{DeadLetterReason, Timestamp};

use super::index::{Dead, Index, MessageLog, Stay};

/// Earlier than every other time.
const NEVER: Timestamp = Timestamp::from_micros(i64::MIN);

impl Index<'_> {
    /// Until when the message was in the queue for certain, once it was there: before that it was neither
    /// acknowledged, nor dead, nor removed, whatever the overlap of calls.
    ///
    /// A message that may have had two copies, or more than one life, is never certain: one may have ended unseen.
    pub(super) fn alive_until(&self, message: &MessageLog<'_>, stay: &Stay<'_>) -> Timestamp {
        if message.copies != 1 || !message.redrives.is_empty() {
            return NEVER;
        }
        let Some(birth) = stay.first_birth() else {
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
        let removed = self.queue(stay.queue).removals.earliest(birth);
        if !seen_to_end && (removed.is_none() || self.may_have_died(message, stay, birth)) {
            until = until.min(self.earliest_death(message, stay, birth));
        }
        removed.map_or(until, |removed| until.min(removed))
    }

    /// Whether the message may have been among the dead letters of its queue at some time.
    fn may_have_died(&self, message: &MessageLog<'_>, stay: &Stay<'_>, birth: Timestamp) -> bool {
        !self.queue(stay.queue).has_final
            || !message.dead.is_empty()
            || self.may_have_left_dead_letters(message, stay.queue, birth)
    }

    /// When the store can first have dead-lettered the message by itself, or have lost it: no earlier than its last
    /// lease ended, and for an expired one no earlier than it expired.
    fn earliest_death(&self, message: &MessageLog<'_>, stay: &Stay<'_>, birth: Timestamp) -> Timestamp {
        let leases = stay.deliveries.iter().map(|delivered| delivered.lease.held_until);
        let free = leases.max().unwrap_or(birth);
        let expired = |dead: &Dead<'_>| dead.record.reason == DeadLetterReason::EXPIRED;
        if message.dead.is_empty() || !message.dead.iter().all(expired) {
            return free;
        }
        let expiry = message.possible_sends().map(|sent| {
            let lifetime = sent.call.expires_in.unwrap_or_default();
            sent.span.start.saturating_add(lifetime).saturating_sub(self.options.tolerance)
        });
        expiry.min().map_or(free, |expiry| free.max(expiry))
    }

    /// Whether somebody may have removed the message, alive or dead, on purpose.
    pub(super) fn may_be_purged(&self, message: &MessageLog<'_>) -> bool {
        let Some(birth) = message.first_birth() else {
            return true;
        };
        message.dead_purged_until.is_some()
            || message.stays.iter().any(|stay| {
                let queue = self.queue(self.queue(stay.queue).origin);
                queue.removals.earliest(birth).is_some() || queue.dead_purged_until.is_some_and(|until| until >= birth)
            })
    }

    /// Whether a message that was moved to the dead letters of `origin` may have left them again after `since`.
    pub(super) fn may_have_left_dead_letters(&self, message: &MessageLog<'_>, origin: usize, since: Timestamp) -> bool {
        let purged_until = self.queue(origin).dead_purged_until.max(message.dead_purged_until);
        purged_until.is_some_and(|until| until >= since)
            || message.redrives.possible_between(since, Timestamp::MAX)
            || message.settles.iter().any(|settled| {
                let queue = self.queue(settled.queue);
                settled.is_ack() && queue.holds_dead_letters && queue.origin == origin
            })
    }

    /// Whether the final state of every queue that the message has been in is known.
    pub(super) fn seen_at_end(&self, message: &MessageLog<'_>) -> bool {
        message.stays.iter().all(|stay| self.queue(self.queue(stay.queue).origin).has_final)
    }
}
