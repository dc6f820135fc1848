//! The outbox: messages to send to queues of other stores.

use std::time::Duration;

use postrider_core::task::{OutboxBatch, OutboxRow};
use postrider_core::{ContentType, Message, QueueName, Timestamp};
use rusqlite::{Connection, Row};

use super::record;
use super::step::TaskStep;
use crate::rows;
use crate::sql;

impl TaskStep<'_, '_> {
    /// Leases due messages of the outbox.
    pub(super) fn take_outbox(&mut self, limit: usize, lease: Duration) -> rusqlite::Result<OutboxBatch> {
        let now = self.now();
        let mut rows: Vec<(Timestamp, OutboxRow)> = {
            let mut statement = self.session.connection.prepare_cached(sql::OUTBOX_DUE)?;
            let found = statement.query_map((now.as_micros(), i64::try_from(limit).unwrap_or(i64::MAX)), read)?;
            // A row with an invalid queue name was written by another program.
            found.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?
        };
        let until = now.saturating_add(lease).as_micros();
        let mut statement = self.session.connection.prepare_cached(sql::OUTBOX_TAKE)?;
        for (_, row) in &rows {
            statement.execute((row.id, row.token, until))?;
        }
        // The statement orders expired leases by their end; the batch goes by the due time.
        rows.sort_by_key(|(due, row)| (*due, row.id));
        let mut batch = OutboxBatch { rows: rows.into_iter().map(|(_, row)| row).collect(), next_due: None };
        if batch.rows.len() < limit {
            let next = next_due(self.session.connection, now)?;
            batch.next_due = (next != Timestamp::MAX).then(|| next.since(now));
        }
        Ok(batch)
    }

    /// Removes sent messages whose lease is still the current one.
    pub(super) fn outbox_sent(&mut self, rows: &[(i64, i64)]) -> rusqlite::Result<()> {
        let mut statement = self.session.connection.prepare_cached(sql::OUTBOX_SENT)?;
        for row in rows {
            statement.execute(*row)?;
        }
        Ok(())
    }
}

/// Reads a row of `outbox_due`, with a new lease token.
fn read(row: &Row<'_>) -> rusqlite::Result<Option<(Timestamp, OutboxRow)>> {
    let id = row.get("id")?;
    let queue = row.get::<_, String>("queue").ok().and_then(|name| QueueName::new(name).ok());
    let Some(queue) = queue else { return Ok(None) };
    let content_type = row.get::<_, String>("content_type").ok().and_then(|name| ContentType::parse(&name).ok());
    let message = Message::new(rows::bytes(row, "payload")?)
        .id(rows::message_id(row, "message_id", id))
        .priority(record::priority(row, "priority"))
        .content_type(content_type.unwrap_or(ContentType::OCTET_STREAM));
    Ok(Some((rows::time(row, "due_at")?, OutboxRow { id, token: rand::random(), queue, message })))
}

/// When the next message of the outbox can be taken after `after`.
pub(super) fn next_due(connection: &Connection, after: Timestamp) -> rusqlite::Result<Timestamp> {
    let mut statement = connection.prepare_cached(sql::OUTBOX_NEXT_DUE)?;
    let next = statement.query_row([after.as_micros()], |row| Ok(rows::optional_time(row, 0).unwrap_or_default()))?;
    Ok(next.unwrap_or(Timestamp::MAX))
}
