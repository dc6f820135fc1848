//! Where a message is accepted.

use super::queue::{Phase, Row};
use super::store::State;
use crate::capabilities::Capabilities;
use crate::clock::Timestamp;
use crate::dead_letter::DeadLetterReason;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::lifecycle::{Life, Waiting};
use crate::message::{Expiry, Key, Message};
use crate::queue_name::QueueName;
use crate::service::check_sendable;

impl State {
    /// Accepts a message, or answers the living one that has its dedup key.
    pub(super) fn send(
        &mut self,
        capabilities: &Capabilities,
        queue: &QueueName,
        message: Message,
        now: Timestamp,
    ) -> Result<MessageId, MessagingError> {
        check_sendable(capabilities, queue, &message)?;
        if let Some(holder) = message.dedup_key.as_ref().and_then(|key| self.living_holder(queue, key, now)) {
            return Ok(holder);
        }
        let row_id = self.next_row();
        let queue = self.queue(queue);
        queue.exists = true;
        let id = message.id;
        let due = now.saturating_add(message.delay);
        let row = Row {
            expires_at: message.expires.map(|expiry: Expiry| expiry.resolve(now)),
            phase: Phase::Waiting(Waiting::Pending(Life::begin(now, due))),
            message,
            death: None,
        };
        queue.insert(row_id, row, now);
        Ok(id)
    }

    /// The message that a dedup key is taken by. One that has expired and that nobody handles no longer lives: it goes
    /// to the dead letters now, or it would swallow the new message and die at the next read.
    fn living_holder(&mut self, name: &QueueName, key: &Key, now: Timestamp) -> Option<MessageId> {
        let queue = self.queues.get(name)?;
        let (row_id, row) = queue.dedup_holder(key)?;
        let is_over = row.expires_at.is_some_and(|expires_at| expires_at <= now) && !row.is_leased(now);
        if is_over {
            self.bury_unread(name, row_id, DeadLetterReason::EXPIRED, now);
            return None;
        }
        Some(row.message.id)
    }
}
