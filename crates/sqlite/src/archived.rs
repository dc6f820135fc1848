//! How the archive is searched.

use postrider_core::archive::{ArchivePosition, ArchiveWalk};
use postrider_core::{
    ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState, QueueName, State, Timestamp,
};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use crate::error::Failure;
use crate::rows::{self, Label};
use crate::sql;

/// A page of the messages of a queue that are kept after their end.
pub(crate) fn archived(
    connection: &Connection,
    queue: &QueueName,
    query: &ArchiveQuery,
) -> Result<ArchivePage, Failure> {
    let mut walk = ArchiveWalk::new(query)?;
    while walk.take(&step(connection, queue, &query.filter, &walk)?) {}
    let (found, next) = walk.finish();
    let mut messages = Vec::with_capacity(found.len());
    let mut statement = connection.prepare_cached(sql::ARCHIVED_GET)?;
    for position in found {
        messages.extend(statement.query_row([position.row], |row| read(row, queue, position.row)).optional()?);
    }
    Ok(ArchivePage { messages, next })
}

/// The rows of a step, each with whether the filter includes it.
fn step(
    connection: &Connection,
    queue: &QueueName,
    filter: &ArchiveFilter,
    walk: &ArchiveWalk,
) -> rusqlite::Result<Vec<(ArchivePosition, bool)>> {
    let step = walk.step();
    let text = |text: Option<&str>| text.map_or(Value::Null, |text| Value::Text(text.to_owned()));
    let header = filter.header.as_ref();
    let mut parameters = vec![
        text(Some(queue.origin().as_str())),
        text(Some(queue.dead_letters().as_str())),
        Value::Integer(step.since.as_micros()),
        Value::Integer(step.before.archived_at.as_micros()),
        Value::Integer(step.before.row),
        Value::Integer(i64::try_from(step.limit).unwrap_or(i64::MAX)),
        text(filter.ordering_key.as_ref().map(|key| key.as_str())),
        text(filter.state.map(ArchivedState::as_str)),
        // The walk has refused names that would need an escape.
        text(header.map(|(name, _)| format!("$.\"{name}\"")).as_deref()),
        text(header.map(|(_, value)| value.as_str())),
    ];
    let statement = match filter.id {
        Some(id) => {
            parameters.push(Value::Blob(id.as_uuid().as_bytes().to_vec()));
            sql::ARCHIVED_BY_ID
        }
        None => sql::ARCHIVED_WALK,
    };
    let mut statement = connection.prepare_cached(statement)?;
    let rows = statement.query_map(params_from_iter(parameters), |row| {
        Ok((ArchivePosition { archived_at: rows::time(row, 0)?, row: row.get(1)? }, row.get(2)?))
    })?;
    rows.collect()
}

fn read(row: &Row<'_>, queue: &QueueName, native: i64) -> rusqlite::Result<ArchivedMessage> {
    let label = Label::read_leniently(row, [0, 1, 2, 3, 4], native);
    let state: String = row.get(5).unwrap_or_default();
    Ok(ArchivedMessage {
        id: label.id,
        queue: queue.origin(),
        state: if state == State::Failed.as_str() { ArchivedState::Failed } else { ArchivedState::Completed },
        body: rows::bytes(row, 6)?,
        content_type: label.content_type,
        headers: label.headers,
        ordering_key: label.ordering_key,
        priority: label.priority,
        deliveries_count: rows::count(row, 7).unwrap_or_default(),
        attempts_count: rows::count(row, 8).unwrap_or_default(),
        enqueued_at: rows::time(row, 9).unwrap_or(Timestamp::EPOCH),
        first_attempt_at: rows::optional_time(row, 10).unwrap_or_default(),
        last_attempt_at: rows::optional_time(row, 11).unwrap_or_default(),
        archived_at: rows::time(row, 12)?,
        last_error: row.get(13).unwrap_or_default(),
    })
}
