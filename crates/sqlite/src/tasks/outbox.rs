//! Messages that wait to be sent to queues elsewhere.

use std::time::Duration;

use postrider_core::task::{OutboxBatch, OutboxRow};
use postrider_core::{ContentType, Message, QueueName, Timestamp};
use rusqlite::{Connection, Row};

use super::record;
use super::step::TaskStep;
use crate::rows;
use crate::sql;

impl TaskStep<'_, '_> {
    /// Takes due messages that nobody else has.
    pub(super) fn take_outbox(&mut self, limit: usize, lease: Duration) -> rusqlite::Result<OutboxBatch> {
        let now = self.now();
        let mut rows: Vec<(Timestamp, OutboxRow)> = {
            let mut statement = self.session.connection.prepare_cached(sql::OUTBOX_DUE)?;
            let found = statement.query_map((now.as_micros(), i64::try_from(limit).unwrap_or(i64::MAX)), read)?;
            // A row whose queue has no name was not written by us.
            found.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?
        };
        let until = now.saturating_add(lease).as_micros();
        let mut statement = self.session.connection.prepare_cached(sql::OUTBOX_TAKE)?;
        for (_, row) in &rows {
            statement.execute((row.id, row.token, until))?;
        }
        // Those that somebody has given up stand behind others that are younger.
        rows.sort_by_key(|(due, row)| (*due, row.id));
        let mut batch = OutboxBatch { rows: rows.into_iter().map(|(_, row)| row).collect(), next_due: None };
        if batch.rows.len() < limit {
            let next = next_due(self.session.connection, now)?;
            batch.next_due = (next != Timestamp::MAX).then(|| next.since(now));
        }
        Ok(batch)
    }

    /// Removes messages that were sent by whoever has them still.
    pub(super) fn outbox_sent(&mut self, rows: &[(i64, i64)]) -> rusqlite::Result<()> {
        let mut statement = self.session.connection.prepare_cached(sql::OUTBOX_SENT)?;
        for row in rows {
            statement.execute(*row)?;
        }
        Ok(())
    }
}

/// Reads a row of `outbox_due`, for a new taker.
fn read(row: &Row<'_>) -> rusqlite::Result<Option<(Timestamp, OutboxRow)>> {
    let id = row.get(0)?;
    let Some(queue) = row.get::<_, String>(1).ok().and_then(|name| QueueName::new(name).ok()) else { return Ok(None) };
    let content_type = row.get::<_, String>(4).ok().and_then(|name| ContentType::parse(&name).ok());
    let message = Message::new(rows::bytes(row, 5)?)
        .id(rows::message_id(row, 2, id))
        .priority(record::priority(row, 3))
        .content_type(content_type.unwrap_or(ContentType::OCTET_STREAM));
    Ok(Some((rows::time(row, 6)?, OutboxRow { id, token: rand::random(), queue, message })))
}

/// When there is something to take that cannot be taken at `after`.
pub(super) fn next_due(connection: &Connection, after: Timestamp) -> rusqlite::Result<Timestamp> {
    let mut statement = connection.prepare_cached(sql::OUTBOX_NEXT_DUE)?;
    let next = statement.query_row([after.as_micros()], |row| Ok(rows::optional_time(row, 0).unwrap_or_default()))?;
    Ok(next.unwrap_or(Timestamp::MAX))
}
