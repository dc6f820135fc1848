//! Claims: a message is leased, or dead-lettered if it is past its delivery limit or expiry.

use super::lifecycle::Record;
use crate::clock::Timestamp;
use crate::dead_letter::DeadLetterReason;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::receipt::LeaseToken;
use crate::receive_options::ReceiveOptions;

use super::queue::{Phase, Queue, RowId};
use super::store::State;

/// A copy of a leased row.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) row: RowId,
    pub(super) token: LeaseToken,
    pub(super) message: Message,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) record: Record,
    pub(super) lease_expires_at: Timestamp,
}

impl State {
    /// Leases up to `options.max` rows that are due.
    pub(super) fn claim(&mut self, queue: &QueueName, options: &ReceiveOptions, now: Timestamp) -> Vec<Claimed> {
        let mut claimed = Vec::new();
        while claimed.len() < options.max {
            let Some(row) = self.queues.get(queue).and_then(|queue| queue.next_due(now)) else { break };
            claimed.extend(self.claim_row(queue, row, options, now));
        }
        claimed
    }

    /// Leases one row that is due; `None` if it was dead-lettered instead.
    pub(super) fn claim_row(
        &mut self,
        name: &QueueName,
        id: RowId,
        options: &ReceiveOptions,
        now: Timestamp,
    ) -> Option<Claimed> {
        let token = self.next_token();
        let queue = self.queues.get_mut(name)?;
        if let Some(reason) = dead_letter_reason(queue, id, options, now) {
            self.dead_letter_unread(name, id, reason, now);
            return None;
        }
        queue.count_claim();
        queue.reschedule(id, now, |phase| match phase.expire(now) {
            Phase::Waiting(waiting) => match waiting.lease(token, options.visibility, now) {
                Ok(lifecycle) => Phase::Leased(lifecycle),
                Err(waiting) => Phase::Waiting(waiting),
            },
            held @ Phase::Leased(_) => held,
        });
        let row = queue.rows.get(&id)?;
        Some(Claimed {
            row: id,
            token,
            message: row.message.clone(),
            expires_at: row.expires_at,
            record: row.record().clone(),
            lease_expires_at: row.next_attempt_at(),
        })
    }
}

/// Returns why a row must be dead-lettered instead of leased. Dead letters have no limits.
fn dead_letter_reason(queue: &Queue, id: RowId, options: &ReceiveOptions, now: Timestamp) -> Option<DeadLetterReason> {
    let row = queue.rows.get(&id)?;
    if queue.name.holds_dead_letters() {
        None
    } else if row.expires_at.is_some_and(|expires_at| expires_at <= now) {
        Some(DeadLetterReason::EXPIRED)
    } else if row.record().deliveries_count >= options.max_receive_count {
        Some(DeadLetterReason::MAX_RECEIVE_COUNT)
    } else {
        None
    }
}
