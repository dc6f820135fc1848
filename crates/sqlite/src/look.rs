//! What people and tools see of a queue, through connections that only read.

use std::collections::HashSet;

use postrider_core::service::KEPT_ATTEMPTS;
use postrider_core::{
    DeadLetterCursor, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, LiveState, Measured, MessageAttempt,
    MessageId, MessagingError, PeekedMessage, QueueHealthReport, QueueName, QueueStats, State, Timestamp,
};
use rusqlite::Connection;

use crate::error::Failure;
use crate::rows::{self, Label};
use crate::session::{is_paused, queue_exists};
use crate::sql;

/// A queue with fewer messages is gone through by its index; a longer one is met soon enough when the table is walked.
const SHORT: i64 = 10_000;

pub(crate) fn list_queues(connection: &Connection) -> rusqlite::Result<Vec<QueueName>> {
    let mut statement = connection.prepare_cached(sql::LIST_QUEUES)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    // A name that is none was not written by us.
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
        connection.prepare_cached(sql::COUNT_DUE)?.query_row(at, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (in_flight, not_due): (i64, i64) =
        connection.prepare_cached(sql::COUNT_NOT_DUE)?.query_row(at, |row| Ok((row.get(0)?, row.get(1)?)))?;
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

/// The rows that have a message's id, in send order.
pub(crate) fn find(connection: &Connection, queue: &QueueName, id: MessageId) -> rusqlite::Result<Vec<i64>> {
    let statement = if is_short(connection, queue)? { sql::FIND_BY_ID } else { sql::FIND_BY_ID_LONG };
    let mut statement = connection.prepare_cached(statement)?;
    let found = statement.query_map((queue.as_str(), id.as_uuid().as_bytes()), |row| row.get(0))?;
    let mut rows = found.collect::<rusqlite::Result<Vec<i64>>>()?;
    rows.sort_unstable();
    Ok(rows)
}

/// The failed attempts that are kept of a message that lives in the queue or is among its dead letters, oldest first.
pub(crate) fn attempts(
    connection: &Connection,
    queue: &QueueName,
    id: MessageId,
) -> rusqlite::Result<Vec<MessageAttempt>> {
    let (origin, bytes) = (queue.origin(), id.as_uuid().as_bytes());
    let mut statement = connection.prepare_cached(sql::MESSAGE_ATTEMPTS)?;
    let found = statement.query_map((origin.as_str(), bytes, KEPT_ATTEMPTS), |row| {
        Ok(MessageAttempt {
            attempt: rows::count(row, 0)?,
            started_at: rows::optional_time(row, 1)?,
            failed_at: rows::time(row, 2)?,
            worker: row.get(3)?,
            error: row.get(4)?,
        })
    })?;
    let mut attempts = found.collect::<rusqlite::Result<Vec<_>>>()?;
    attempts.reverse();
    // Looked for last, because there is no index for the living. What is archived has its attempts too, and is not there.
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

/// The messages behind a row, with the numbers of theirs.
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
    let rows = statement.query_map((queue.as_str(), limit, after), |row| {
        let next_attempt_at = rows::time(row, 11).unwrap_or(Timestamp::MAX);
        let is_leased = row.get::<_, bool>(7)?;
        let state: String = row.get(6).unwrap_or_default();
        let state = if is_leased {
            if next_attempt_at > now { LiveState::Processing } else { LiveState::Pending }
        } else if state == State::Retryable.as_str() {
            LiveState::Retryable
        } else {
            LiveState::Pending
        };
        let number = row.get(13)?;
        let label = Label::read_leniently(row, [0, 2, 3, 4, 5], number);
        let message = PeekedMessage {
            id: label.id,
            body: rows::bytes(row, 1)?,
            content_type: label.content_type,
            headers: label.headers,
            ordering_key: label.ordering_key,
            priority: label.priority,
            state,
            deliveries_count: rows::count(row, 8).unwrap_or_default(),
            attempts_count: rows::count(row, 9).unwrap_or_default(),
            enqueued_at: rows::time(row, 10).unwrap_or(Timestamp::from_micros(0)),
            next_attempt_at,
            last_error: row.get(12).unwrap_or_default(),
        };
        Ok((number, message))
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
        Some(cursor) => cursor
            .0
            .parse::<i64>()
            .map_err(|_| MessagingError::invalid("cursor", format!("'{}' ends no page", cursor.0)))?,
    };
    let origin = queue.origin();
    let mut letters = Vec::new();
    if let DeadLetterSelection::Ids(ids) = &query.selection {
        let mut statement = connection.prepare_cached(sql::GET_DEAD_LETTER)?;
        for id in ids {
            let found = statement
                .query_map((id.as_uuid().as_bytes(), origin.as_str()), |row| rows::dead_letter(row, &origin))?;
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
        let found = statement
            .query_map((origin.as_str(), after, reason, limit, with_bodies), |row| rows::dead_letter(row, &origin))?;
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

/// The ids of dead letters, oldest death first.
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
        let row_number = row.get(1)?;
        Ok(rows::message_id(row, 0, row_number))
    })?;
    let mut found = found.collect::<rusqlite::Result<Vec<MessageId>>>()?;
    if let Some(wanted) = wanted {
        found.retain(|id| wanted.contains(id));
    }
    Ok(found)
}
