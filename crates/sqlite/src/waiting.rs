//! Operator commands on a single message that waits in a queue.

use postrider_core::{DeadLetterReason, MessageId, MessagingError, QueueName};
use rusqlite::OptionalExtension;

use crate::error::Failure;
use crate::session::Session;
use crate::sql;

/// A message that is not leased.
struct Waiting {
    id: i64,
    ordering_key: Option<String>,
}

impl Session<'_> {
    /// The first of these rows that still has the message; refuses it while it is leased.
    fn waiting(&self, queue: &QueueName, id: MessageId, rows: &[i64]) -> Result<Waiting, Failure> {
        let mut statement = self.connection.prepare_cached(sql::WAITING)?;
        for row in rows {
            let parameters = (row, queue.as_str(), id.as_uuid().as_bytes(), self.now.as_micros());
            let read = |found: &rusqlite::Row<'_>| {
                let ordering_key = found.get("ordering_key").unwrap_or_default();
                Ok((Waiting { id: *row, ordering_key }, found.get::<_, bool>("is_leased")?))
            };
            match statement.query_row(parameters, read).optional()? {
                Some((_, true)) => return Err(MessagingError::MessageLeased { queue: queue.clone(), id }.into()),
                Some((waiting, false)) => return Ok(waiting),
                None => {}
            }
        }
        Err(MessagingError::MessageNotFound { queue: queue.clone(), id }.into())
    }

    pub(crate) fn deliver_now(&mut self, queue: &QueueName, id: MessageId, rows: &[i64]) -> Result<(), Failure> {
        let waiting = self.waiting(queue, id, rows)?;
        self.connection.prepare_cached(sql::DELIVER_NOW)?.execute((waiting.id, self.now.as_micros()))?;
        self.touch(queue, self.now);
        Ok(())
    }

    pub(crate) fn dead_letter_waiting(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        rows: &[i64],
        reason: &DeadLetterReason,
        error: Option<&str>,
    ) -> Result<(), Failure> {
        let waiting = self.waiting(queue, id, rows)?;
        Ok(self.move_to_dead_letters(queue, waiting.id, waiting.ordering_key.as_deref(), reason, error)?)
    }
}
