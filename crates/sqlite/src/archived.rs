//! Searches the archive.

use postrider_core::archive::{ArchivePosition, ArchiveWalk};
use postrider_core::{
    ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState, QueueName, State, Timestamp,
};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, Statement, params_from_iter};

use crate::error::Failure;
use crate::rows::{self, Columns, Metadata, MetadataColumns, columns};
use crate::sql;

/// A page of the archived messages of a queue.
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
    let columns = ArchivedColumns::of(&statement)?;
    for position in found {
        let message = statement.query_row([position.row], |row| read(row, &columns, queue, position.row));
        messages.extend(message.optional()?);
    }
    Ok(ArchivePage { messages, next })
}

/// The rows of one step of the search, each with whether the filter includes it.
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
        // `ArchiveWalk` has refused names that would need an escape.
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
    let columns = WalkColumns::of(&statement)?;
    let rows = statement.query_map(params_from_iter(parameters), |row| {
        let archived_at = rows::time(row, columns.archived_at)?;
        let position = ArchivePosition { archived_at, row: row.get(columns.archive_id)? };
        Ok((position, row.get(columns.is_included)?))
    })?;
    rows.collect()
}

columns! {
    /// Where the columns of `archived_walk` and `archived_by_id` are.
    WalkColumns { archived_at, archive_id, is_included }
}

/// Where the columns of `archived_get` are.
struct ArchivedColumns {
    metadata: MetadataColumns,
    own: OwnColumns,
}

columns! {
    /// The columns besides the metadata.
    OwnColumns {
        state, payload, deliveries_count, attempts_count, created_at, first_attempt_at, last_attempt_at, archived_at,
        last_error,
    }
}

impl ArchivedColumns {
    fn of(statement: &Statement<'_>) -> rusqlite::Result<Self> {
        Ok(Self { metadata: MetadataColumns::of(statement)?, own: OwnColumns::of(statement)? })
    }
}

fn read(row: &Row<'_>, columns: &ArchivedColumns, queue: &QueueName, native: i64) -> rusqlite::Result<ArchivedMessage> {
    let ArchivedColumns { metadata, own } = *columns;
    let metadata = Metadata::read_leniently(row, metadata, native);
    let state: String = row.get(own.state).unwrap_or_default();
    Ok(ArchivedMessage {
        id: metadata.id,
        queue: queue.origin(),
        state: if state == State::Failed.as_str() { ArchivedState::Failed } else { ArchivedState::Completed },
        body: rows::bytes(row, own.payload)?,
        content_type: metadata.content_type,
        headers: metadata.headers,
        ordering_key: metadata.ordering_key,
        priority: metadata.priority,
        deliveries_count: rows::count(row, own.deliveries_count).unwrap_or_default(),
        attempts_count: rows::count(row, own.attempts_count).unwrap_or_default(),
        enqueued_at: rows::time(row, own.created_at).unwrap_or(Timestamp::EPOCH),
        first_attempt_at: rows::optional_time(row, own.first_attempt_at).unwrap_or_default(),
        last_attempt_at: rows::optional_time(row, own.last_attempt_at).unwrap_or_default(),
        archived_at: rows::time(row, own.archived_at)?,
        last_error: row.get(own.last_error).unwrap_or_default(),
    })
}
