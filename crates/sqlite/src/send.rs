//! Accepts messages.

use postrider_core::service::check_sendable;
use postrider_core::{DeadLetterReason, Expiry, Message, MessageId, QueueName, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use crate::error::Failure;
use crate::rows::{self, content_type_column, headers_column};
use crate::session::Session;
use crate::sql;

impl Session<'_> {
    /// Accepts a message, or returns the id of the living message with its dedup key.
    pub(crate) fn send(&mut self, queue: &QueueName, message: &Message) -> Result<MessageId, Failure> {
        check_sendable(&self.rules.capabilities, queue, message)?;
        self.require_space(message.body.len().saturating_add(message.headers.byte_len()))?;
        self.accept(queue, message)
    }

    /// [`Self::send`] for a message that belongs to another change, which may use the last free space.
    pub(crate) fn accept(&mut self, queue: &QueueName, message: &Message) -> Result<MessageId, Failure> {
        self.require_queue(queue)?;
        if let Some(key) = &message.dedup_key
            && let Some(holder) = self.living_holder(queue, key.as_str())?
        {
            return Ok(holder);
        }
        let due = self.now.saturating_add(message.delay);
        let blocked = match &message.ordering_key {
            Some(key) => self.key_is_taken(queue, key.as_str())?,
            None => false,
        };
        let headers = headers_column(&message.headers);
        let expires_at = message.expires.map(|expiry: Expiry| expiry.resolve(self.now).as_micros());
        self.hot.send.get(self.connection, sql::SEND)?.execute(rusqlite::params![
            queue.as_str(),
            blocked,
            message.priority.get(),
            due.as_micros(),
            self.now.as_micros(),
            expires_at,
            message.id.as_uuid().as_bytes(),
            message.ordering_key.as_ref().map(|key| key.as_str()),
            message.dedup_key.as_ref().map(|key| key.as_str()),
            content_type_column(&message.content_type),
            headers.as_ref(),
            message.body.as_ref(),
        ])?;
        if !blocked {
            self.touch(queue, due);
        }
        Ok(message.id)
    }

    /// The living message that holds a dedup key. One that has expired and is not leased does not live: it is
    /// dead-lettered now, or it would take the place of the new message and die at the next claim.
    pub(crate) fn living_holder(&mut self, queue: &QueueName, key: &str) -> rusqlite::Result<Option<MessageId>> {
        let Some(holder) = dedup_holder(self.connection, queue, key, self.now)? else { return Ok(None) };
        if !holder.lives(self.now) {
            let key = holder.ordering_key.as_deref();
            self.move_to_dead_letters(queue, holder.id, key, &DeadLetterReason::EXPIRED, None)?;
            return Ok(None);
        }
        Ok(Some(holder.message_id))
    }

    fn key_is_taken(&self, queue: &QueueName, key: &str) -> rusqlite::Result<bool> {
        let mut statement = self.connection.prepare_cached(sql::KEY_IS_TAKEN)?;
        statement.query_row((queue.as_str(), key), |row| row.get(0))
    }
}

/// The row that has a dedup key.
pub(crate) struct Holder {
    id: i64,
    message_id: MessageId,
    expires_at: Option<Timestamp>,
    is_leased: bool,
    ordering_key: Option<String>,
}

impl Holder {
    /// Whether the message still holds its key at this time.
    pub(crate) fn lives(&self, now: Timestamp) -> bool {
        self.is_leased || self.expires_at.is_none_or(|expires_at| expires_at > now)
    }
}

pub(crate) fn dedup_holder(
    connection: &Connection,
    queue: &QueueName,
    key: &str,
    now: Timestamp,
) -> rusqlite::Result<Option<Holder>> {
    let mut statement = connection.prepare_cached(sql::DEDUP_HOLDER)?;
    let holder = statement.query_row((queue.as_str(), key, now.as_micros()), |row| {
        let id = row.get("id")?;
        Ok(Holder {
            message_id: rows::message_id(row, "message_id", id),
            id,
            expires_at: rows::optional_time(row, "expires_at").unwrap_or_default(),
            is_leased: row.get("is_leased")?,
            ordering_key: row.get("ordering_key").unwrap_or_default(),
        })
    });
    holder.optional()
}
