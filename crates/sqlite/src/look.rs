//! Read-only queries on a queue.

use std::collections::HashSet;

use postrider_core::service::KEPT_ATTEMPTS;
use postrider_core::{
    DeadLetterCursor, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, LiveState, Measured, MessageAttempt,
    MessageId, MessagingError, PeekedMessage, QueueHealthReport, QueueName, QueueStats, State, Timestamp,
};
use rusqlite::Connection;

use crate::error::Failure;
use crate::rows::{self, Columns, DeadLetterColumns, Metadata, MetadataColumns};
use crate::session::{is_paused, queue_exists};
use crate::sql;

/// Upper bound of a short queue, which is searched by its index. In a longer one a scan of the table finds a row soon
/// enough.
const SHORT: i64 = 10_000;

pub(crate) fn list_queues(connection: &Connection) -> rusqlite::Result<Vec<QueueName>> {
    let mut statement = connection.prepare_cached(sql::LIST_QUEUES)?;
    let names = statement.query_map([], |row| row.get::<_, String>("name"))?.collect::<rusqlite::Result<Vec<_>>>()?;
    // Names that are not valid were written by another program.
    Ok(names.into_iter().filter_map(|name| QueueName::new(name).ok()).collect())
}

pub(crate) fn verify_queues(connection: &Connection, queues: &[QueueName]) -> rusqlite::Result<QueueHealthReport> {
    let mut report = QueueHealthReport::default();
    for queue in queues {
        let list = if queue_exists(connection, queue)? { &mut report.healthy } else { &mut report.missing };
        list.push(queue.clone());
    }
    Ok(report)
}

pub(crate) fn stats(connection: &Connection, queue: &QueueName, now: Timestamp) -> rusqlite::Result<QueueStats> {
    let at = (queue.as_str(), now.as_micros());
    let (ready, oldest): (i64, Option<i64>) =
        connection.prepare_cached(sql::COUNT_DUE)?.query_row(at, |row| Ok((row.get("ready")?, row.get("oldest")?)))?;
    let (in_flight, not_due): (i64, i64) = connection
        .prepare_cached(sql::COUNT_NOT_DUE)?
        .query_row(at, |row| Ok((row.get("in_flight")?, row.get("not_due")?)))?;
    let oldest = match oldest {
        Some(id) => connection.prepare_cached(sql::CREATED_AT)?.query_row([id], |row| Ok(rows::time(row, 0).ok()))?,
        None => None,
    };
    let dead: i64 = if queue.holds_dead_letters() {
        0
    } else {
        connection.prepare_cached(sql::COUNT_DEAD)?.query_row([queue.as_str()], |row| row.get(0))?
    };
    let exact = |count: i64| Measured::Exact(count.max(0).cast_unsigned());
    Ok(QueueStats {
        queue: queue.clone(),
        ready: exact(ready),
        in_flight: exact(in_flight),
        delayed: exact(not_due - in_flight),
        dead: exact(dead),
        oldest_age: Measured::Exact(oldest.map(|oldest| now.since(oldest))),
        paused: is_paused(connection, queue)?,
    })
}

/// The rows with a message's id, in send order.
pub(crate) fn find(connection: &Connection, queue: &QueueName, id: MessageId) -> rusqlite::Result<Vec<i64>> {
    let statement = if is_short(connection, queue)? { sql::FIND_BY_ID } else { sql::FIND_BY_ID_LONG };
    let mut statement = connection.prepare_cached(statement)?;
    let found = statement.query_map((queue.as_str(), id.as_uuid().as_bytes()), |row| row.get("id"))?;
    let mut rows = found.collect::<rusqlite::Result<Vec<i64>>>()?;
    rows.sort_unstable();
    Ok(rows)
}

/// The kept failed attempts of a message that is in the queue or among its dead letters, oldest first.
pub(crate) fn attempts(
    connection: &Connection,
    queue: &QueueName,
    id: MessageId,
) -> rusqlite::Result<Vec<MessageAttempt>> {
    let (origin, bytes) = (queue.origin(), id.as_uuid().as_bytes());
    let mut statement = connection.prepare_cached(sql::MESSAGE_ATTEMPTS)?;
    let found = statement.query_map((origin.as_str(), bytes, KEPT_ATTEMPTS), |row| {
        Ok(MessageAttempt {
            attempt: rows::count(row, "attempt")?,
            started_at: rows::optional_time(row, "started_at")?,
            failed_at: rows::time(row, "failed_at")?,
            worker: row.get("worker")?,
            error: row.get("error")?,
        })
    })?;
    let mut attempts = found.collect::<rusqlite::Result<Vec<_>>>()?;
    attempts.reverse();
    // Searched last, because message ids have no index. An archived message keeps its attempts but does not count.
    let is_dead = || {
        let mut statement = connection.prepare_cached(sql::IS_DEAD)?;
        statement.query_row((origin.as_str(), bytes), |row| row.get::<_, bool>(0))
    };
    if attempts.is_empty() || is_dead()? || !find(connection, &origin, id)?.is_empty() {
        return Ok(attempts);
    }
    Ok(Vec::new())
}

fn is_short(connection: &Connection, queue: &QueueName) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(sql::COUNT_SOME)?;
    statement.query_row((queue.as_str(), SHORT), |row| row.get::<_, i64>(0)).map(|some| some < SHORT)
}

/// The messages after a row, each with its row number.
pub(crate) fn peek(
    connection: &Connection,
    queue: &QueueName,
    after: i64,
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<Vec<(i64, PeekedMessage)>> {
    let statement = if is_short(connection, queue)? { sql::PEEK } else { sql::PEEK_LONG };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(statement)?;
    let columns = MetadataColumns::of(&statement)?;
    let rows = statement.query_map((queue.as_str(), limit, after), |row| {
        let next_attempt_at = rows::time(row, "next_attempt_at").unwrap_or(Timestamp::MAX);
        let is_leased = row.get::<_, bool>("is_leased")?;
        let state: String = row.get("state").unwrap_or_default();
        let state = if is_leased {
            if next_attempt_at > now { LiveState::Processing } else { LiveState::Pending }
        } else if state == State::Retryable.as_str() {
            LiveState::Retryable
        } else {
            LiveState::Pending
        };
        let id = row.get("id")?;
        let metadata = Metadata::read_leniently(row, columns, id);
        let message = PeekedMessage {
            id: metadata.id,
            body: rows::bytes(row, "payload")?,
            content_type: metadata.content_type,
            headers: metadata.headers,
            ordering_key: metadata.ordering_key,
            priority: metadata.priority,
            state,
            deliveries_count: rows::count(row, "deliveries_count").unwrap_or_default(),
            attempts_count: rows::count(row, "attempts_count").unwrap_or_default(),
            enqueued_at: rows::time(row, "created_at").unwrap_or(Timestamp::from_micros(0)),
            next_attempt_at,
            last_error: row.get("last_error").unwrap_or_default(),
        };
        Ok((id, message))
    })?;
    rows.collect()
}

pub(crate) fn list_dead(
    connection: &Connection,
    queue: &QueueName,
    query: &DeadLetterQuery,
    with_bodies: bool,
) -> Result<DeadLetterPage, Failure> {
    query.check()?;
    let after = match &query.after {
        None => 0,
        Some(cursor) => cursor.0.parse::<i64>().map_err(|_| MessagingError::invalid_cursor(&cursor.0))?,
    };
    let origin = queue.origin();
    let mut letters = Vec::new();
    if let DeadLetterSelection::Ids(ids) = &query.selection {
        let mut statement = connection.prepare_cached(sql::GET_DEAD_LETTER)?;
        let columns = DeadLetterColumns::of(&statement)?;
        for id in ids {
            let found = statement.query_map((id.as_uuid().as_bytes(), origin.as_str()), |row| {
                rows::dead_letter(row, &origin, columns)
            })?;
            for found in found {
                letters.push(found?);
            }
        }
        letters.retain(|(death, ..)| *death > after);
        letters.sort_by_key(|(death, ..)| *death);
        letters.dedup_by_key(|(death, ..)| *death);
    } else {
        let reason = match &query.selection {
            DeadLetterSelection::Reason(reason) => Some(reason.as_str()),
            DeadLetterSelection::All | DeadLetterSelection::Ids(_) => None,
        };
        let limit = i64::try_from(query.limit.saturating_add(1)).unwrap_or(i64::MAX);
        let mut statement = connection.prepare_cached(sql::LIST_DEAD_LETTERS)?;
        let columns = DeadLetterColumns::of(&statement)?;
        let found = statement.query_map((origin.as_str(), after, reason, limit, with_bodies), |row| {
            rows::dead_letter(row, &origin, columns)
        })?;
        for found in found {
            letters.push(found?);
        }
    }
    let has_more = letters.len() > query.limit;
    letters.truncate(query.limit);
    let last = letters.last().map_or(after, |(death, ..)| *death);
    Ok(DeadLetterPage {
        letters: letters.into_iter().map(|(_, _, letter)| letter).collect(),
        next: has_more.then(|| DeadLetterCursor(last.to_string())),
    })
}

/// The message ids of dead letters, oldest death first.
pub(crate) fn find_dead(
    connection: &Connection,
    queue: &QueueName,
    selection: &DeadLetterSelection,
    error: Option<&str>,
) -> rusqlite::Result<Vec<MessageId>> {
    let (reason, wanted) = match selection {
        DeadLetterSelection::All => (None, None),
        DeadLetterSelection::Reason(reason) => (Some(reason.as_str()), None),
        DeadLetterSelection::Ids(ids) => (None, Some(ids.iter().collect::<HashSet<_>>())),
    };
    let mut statement = connection.prepare_cached(sql::FIND_DEAD_LETTERS)?;
    let found = statement.query_map((queue.origin().as_str(), reason, error), |row| {
        let id = row.get("id")?;
        Ok(rows::message_id(row, "message_id", id))
    })?;
    let mut found = found.collect::<rusqlite::Result<Vec<MessageId>>>()?;
    if let Some(wanted) = wanted {
        found.retain(|id| wanted.contains(id));
    }
    Ok(found)
}
