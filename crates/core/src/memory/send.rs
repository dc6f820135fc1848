//! Sends.

use std::collections::VecDeque;

use super::lifecycle::{Lifecycle, Waiting};
use super::queue::{Phase, Row, RowId};
use super::store::State;
use crate::capabilities::Capabilities;
use crate::clock::Timestamp;
use crate::dead_letter::DeadLetterReason;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message::{Expiry, Key, Message};
use crate::queue_name::QueueName;
use crate::service::check_sendable;

impl State {
    /// Stores a message, or returns the id of the living one with its dedup key.
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
            phase: Phase::Waiting(Waiting::Pending(Lifecycle::begin(now, due))),
            message,
            death: None,
            failures: VecDeque::new(),
        };
        queue.insert(row_id, row, now);
        Ok(id)
    }

    /// The living message with this dedup key. An expired one without a valid lease is dead-lettered first; otherwise
    /// the new message would be dropped in its favour.
    pub(super) fn living_holder(&mut self, name: &QueueName, key: &Key, now: Timestamp) -> Option<MessageId> {
        let (row_id, row) = self.dedup_holder(name, key)?;
        if row.is_over(now) {
            self.dead_letter_unread(name, row_id, DeadLetterReason::EXPIRED, now);
            return None;
        }
        Some(row.message.id)
    }

    pub(super) fn dedup_holder(&self, name: &QueueName, key: &Key) -> Option<(RowId, &Row)> {
        self.queues.get(name)?.dedup_holder(key)
    }
}
