//! What a person does with one message that waits.

use postrider_core::{DeadLetterReason, MessageId, MessagingError, QueueName};
use rusqlite::OptionalExtension;

use crate::error::Failure;
use crate::session::Session;
use crate::sql;

/// A message that waits.
struct Waiting {
    id: i64,
    ordering_key: Option<String>,
}

impl Session<'_> {
    /// The first of these rows that is still there, if it waits.
    fn waiting(&self, queue: &QueueName, id: MessageId, rows: &[i64]) -> Result<Waiting, Failure> {
        let mut statement = self.connection.prepare_cached(sql::WAITING)?;
        for row in rows {
            let parameters = (row, queue.as_str(), id.as_uuid().as_bytes(), self.now.as_micros());
            let read = |found: &rusqlite::Row<'_>| {
                Ok((Waiting { id: *row, ordering_key: found.get(0).unwrap_or_default() }, found.get::<_, bool>(1)?))
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
        Ok(self.bury(queue, waiting.id, waiting.ordering_key.as_deref(), reason, error)?)
    }
}
