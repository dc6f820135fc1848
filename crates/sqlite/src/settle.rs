//! Ends or extends a lease. Nothing happens without the currently valid lease token.

use std::time::Duration;

use postrider_core::service::KEPT_ATTEMPTS;
use postrider_core::{
    ArchivePolicy, Disposition, MessageId, MessagingError, Nack, QueueName, ReceiptHandle, Settlement, Timestamp,
};
use rusqlite::OptionalExtension;

use crate::PROVIDER;
use crate::claim::token;
use crate::error::Failure;
use crate::rows::{self, columns};
use crate::session::Session;
use crate::sql;

columns! {
    /// Where the columns of [`Held`] are.
    HeldColumns { ordering_key, attempts_count, last_attempt_at }
}

/// A row whose lease is valid.
struct Held {
    id: i64,
    message_id: MessageId,
    ordering_key: Option<String>,
    attempts_count: u32,
    last_attempt_at: Option<Timestamp>,
}

impl Session<'_> {
    pub(crate) fn settle(&mut self, settlement: &Settlement) -> Result<(), Failure> {
        let checked;
        let Settlement { receipt, disposition, worker } = match &settlement.disposition {
            Disposition::Ack => settlement,
            Disposition::Nack(_) => {
                checked = settlement.clone().checked(&self.rules.capabilities.limits)?;
                &checked
            }
        };
        let held = self.held(receipt)?;
        let queue = receipt.queue();
        match disposition {
            Disposition::Ack => self.complete(queue, &held)?,
            Disposition::Nack(Nack::Retry { after, error }) => {
                self.note_attempt(queue, &held, worker.as_deref(), error.as_deref())?;
                let due = self.now.saturating_add(*after);
                self.connection.prepare_cached(sql::RETRY)?.execute((held.id, due.as_micros(), error))?;
                self.touch(queue, due);
            }
            Disposition::Nack(Nack::Release) => {
                self.connection.prepare_cached(sql::RELEASE)?.execute((held.id, self.now.as_micros()))?;
                self.touch(queue, self.now);
            }
            Disposition::Nack(Nack::DeadLetter { reason, error }) => {
                if queue.holds_dead_letters() {
                    return Err(MessagingError::invalid(
                        "disposition",
                        format!("'{queue}' has no dead letters of its own; redrive the message or purge it"),
                    )
                    .into());
                }
                self.note_attempt(queue, &held, worker.as_deref(), error.as_deref())?;
                self.move_to_dead_letters(queue, held.id, held.ordering_key.as_deref(), reason, error.as_deref())?;
            }
        }
        Ok(())
    }

    pub(crate) fn extend(&mut self, receipt: &ReceiptHandle, extension: Duration) -> Result<(), Failure> {
        let held = self.held(receipt)?;
        let end = self.now.saturating_add(extension);
        self.connection.prepare_cached(sql::EXTEND)?.execute((held.id, end.as_micros()))?;
        self.touch(receipt.queue(), end);
        Ok(())
    }

    /// Ends the lease of a message that was dropped unsettled; its delivery stays counted.
    pub(crate) fn give_up(&mut self, receipt: &ReceiptHandle) -> Result<(), Failure> {
        let held = self.held(receipt)?;
        self.connection.prepare_cached(sql::GIVE_UP)?.execute((held.id, self.now.as_micros()))?;
        self.touch(receipt.queue(), self.now);
        Ok(())
    }

    /// The row of a receipt, if its lease is valid now.
    fn held(&mut self, receipt: &ReceiptHandle) -> Result<Held, Failure> {
        receipt.check_provider(PROVIDER)?;
        let expired = || Failure::Refused(receipt.expired());
        let id = i64::try_from(receipt.row()?).map_err(|_| expired())?;
        let lease = ((receipt.token().0 >> 64) as u64).cast_signed();
        if receipt.token() != token(lease, id) {
            return Err(expired());
        }
        let (statement, columns) = self.hot.held.with_columns(self.connection, sql::HELD)?;
        let message_id = receipt.message_id();
        let parameters = (id, receipt.queue().as_str(), message_id.as_uuid().as_bytes(), lease, self.now.as_micros());
        let held = statement.query_row(parameters, |row| {
            Ok(Held {
                id,
                message_id,
                ordering_key: row.get(columns.ordering_key)?,
                attempts_count: rows::count(row, columns.attempts_count)?,
                last_attempt_at: rows::optional_time(row, columns.last_attempt_at)?,
            })
        });
        held.optional()?.ok_or_else(expired)
    }

    fn complete(&mut self, queue: &QueueName, held: &Held) -> rusqlite::Result<()> {
        if self.rules.archive == ArchivePolicy::All {
            self.hot.archive.get(self.connection, sql::ARCHIVE)?.execute((held.id, self.now.as_micros()))?;
            self.archived += 1;
        } else if held.attempts_count > 0 || queue.holds_dead_letters() {
            self.forget_attempts(queue, held.message_id)?;
        }
        self.remove(queue, held.id, held.ordering_key.as_deref())
    }

    /// Removes a row. If it was the head of its key, the next one becomes the head.
    pub(crate) fn remove(&mut self, queue: &QueueName, id: i64, key: Option<&str>) -> rusqlite::Result<()> {
        self.hot.remove.get(self.connection, sql::REMOVE)?.execute([id])?;
        if queue.holds_dead_letters() {
            self.connection.prepare_cached(sql::FORGET_DEAD_LETTER)?.execute([id])?;
        } else if let Some(key) = key {
            self.promote(queue, key)?;
        }
        Ok(())
    }

    /// Removes the failed attempts of a message that is in a queue or among its dead letters.
    pub(crate) fn forget_attempts(&mut self, queue: &QueueName, message: MessageId) -> rusqlite::Result<()> {
        let mut forget = self.connection.prepare_cached(sql::FORGET_ATTEMPTS)?;
        forget.execute((queue.origin().as_str(), message.as_uuid().as_bytes()))?;
        Ok(())
    }

    /// Records a failed attempt. Attempts on dead letters are not recorded.
    fn note_attempt(
        &mut self,
        queue: &QueueName,
        held: &Held,
        worker: Option<&str>,
        error: Option<&str>,
    ) -> rusqlite::Result<()> {
        if queue.holds_dead_letters() {
            return Ok(());
        }
        let attempt = held.attempts_count.saturating_add(1);
        self.connection.prepare_cached(sql::NOTE_ATTEMPT)?.execute((
            queue.as_str(),
            held.message_id.as_uuid().as_bytes(),
            attempt,
            held.last_attempt_at.map(Timestamp::as_micros),
            self.now.as_micros(),
            worker.unwrap_or(&self.rules.worker),
            error,
        ))?;
        if let Some(oldest) = attempt.checked_sub(KEPT_ATTEMPTS).filter(|oldest| *oldest > 0) {
            let mut trim = self.connection.prepare_cached(sql::TRIM_ATTEMPTS)?;
            trim.execute((queue.as_str(), held.message_id.as_uuid().as_bytes(), oldest))?;
        }
        Ok(())
    }
}
