//! Read access to queues: listings, statistics, peek, attempts.

use std::time::Duration;

use postrider_core::service::KEPT_ATTEMPTS;
use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Deadline, LiveState, Measured,
    MessageAttempt, MessageId, MessagingError, PeekedMessage, QueueName, QueueStats,
};
use postrider_pg::Step;
use postrider_provider::Undone;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::rows::{self, DeadLetterColumns, Label, LabelColumns};
use crate::store::Shared;

/// Below this count a queue is read by its index; above it, by row number until the page is full.
const SHORT: i64 = 10_000;

impl Shared {
    /// Runs one statement in a transaction of its own.
    pub(crate) async fn ask(
        &self,
        operation: &'static str,
        deadline: Deadline,
        sql: &str,
        parameters: Vec<&(dyn postgres_types::ToSql + Sync)>,
    ) -> Result<Vec<Row>, Undone> {
        let mut session = self.database.session(operation, deadline).await?;
        session.ask(Step::new(sql, parameters)).await
    }

    pub(crate) async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, Undone> {
        let rows = self.ask("list queues", deadline, &self.database.sql.list_queues, Vec::new()).await?;
        // Skip names that are invalid: another program wrote them.
        Ok(rows.iter().filter_map(|row| QueueName::new(row.get::<_, &str>("name")).ok()).collect())
    }

    pub(crate) async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, Undone> {
        let name = queue.as_str();
        let rows = self.ask("stats", deadline, &self.database.sql.stats, vec![&name]).await?;
        let row = rows.first();
        let count = |column| row.map_or(0, |row| row.get::<_, i64>(column)).max(0).cast_unsigned();
        let oldest = row.and_then(|row| row.get::<_, Option<i64>>("oldest_micros"));
        let oldest = oldest.map(|micros| Duration::from_micros(micros.max(0).cast_unsigned()));
        Ok(QueueStats {
            queue: queue.clone(),
            ready: Measured::Exact(count("ready")),
            in_flight: Measured::Exact(count("in_flight")),
            delayed: Measured::Exact(count("delayed")),
            dead: Measured::Exact(count("dead")),
            oldest_age: Measured::Exact(oldest),
            paused: row.is_some_and(|row| row.get("is_paused")),
        })
    }

    /// Returns messages after a row, with their row numbers.
    pub(crate) async fn peek(
        &self,
        queue: &QueueName,
        after: i64,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<(i64, PeekedMessage)>, Undone> {
        let (sql, name) = (&self.database.sql, queue.as_str());
        let some = self.ask("peek", deadline, &sql.count_some, vec![&name, &SHORT]).await?;
        let is_short = some.first().is_none_or(|row| row.get::<_, i64>(0) < SHORT);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let statement = if is_short { &sql.peek } else { &sql.peek_long };
        let rows = self.ask("peek", deadline, statement, vec![&name, &limit, &after]).await?;
        let (label, columns) = (LabelColumns::of(&rows), PeekColumns::of(&rows));
        Ok(rows.iter().map(|row| (row.get(columns.id), peeked(row, label, columns))).collect())
    }

    /// Returns the kept failed attempts of a message in the queue or its dead letters, oldest first.
    pub(crate) async fn attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, Undone> {
        const READ: &str = "read attempts";
        let (sql, origin, limit) = (&self.database.sql, queue.origin(), i64::from(KEPT_ATTEMPTS));
        let (name, id) = (origin.as_str(), id.as_uuid());
        let found = self.ask(READ, deadline, &sql.message_attempts, vec![&name, id, &limit]).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        // Checked last, because live messages have no index by id. Archived messages have attempts too, and none are
        // returned for them.
        let dead = self.ask(READ, deadline, &sql.is_dead, vec![&name, id]).await?;
        let is_dead = dead.first().is_some_and(|row| row.get("is_dead"));
        if !is_dead && self.ask(READ, deadline, &sql.find_by_id, vec![&name, id]).await?.is_empty() {
            return Ok(Vec::new());
        }
        let read = |row: &Row| MessageAttempt {
            attempt: rows::count(row, "attempt"),
            started_at: rows::optional_time(row, "started_at"),
            failed_at: rows::time(row, "failed_at"),
            worker: row.get("worker"),
            error: row.get("error"),
        };
        Ok(found.iter().rev().map(read).collect())
    }

    pub(crate) async fn find_dead(
        &self,
        queue: &QueueName,
        reason: Option<&str>,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, Undone> {
        let (sql, origin) = (&self.database.sql, queue.origin());
        let name = origin.as_str();
        let find = &sql.find_dead_letters;
        let found = self.ask("find dead letters", deadline, find, vec![&name, &reason, &error]).await?;
        Ok(found.iter().map(|row| rows::message_id(row, "message_id")).collect())
    }

    pub(crate) async fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        with_bodies: bool,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, Undone> {
        const LIST: &str = "list dead letters";
        query.check()?;
        let after: i64 = match &query.after {
            None => 0,
            Some(cursor) => cursor.0.parse().map_err(|_| MessagingError::invalid_cursor(&cursor.0))?,
        };
        let (sql, origin) = (&self.database.sql, queue.origin());
        let name = origin.as_str();
        let limit = i64::try_from(query.limit.saturating_add(1)).unwrap_or(i64::MAX);
        let rows = match &query.selection {
            DeadLetterSelection::Ids(ids) => {
                let ids: Vec<Uuid> = ids.iter().map(|id| *id.as_uuid()).collect();
                self.ask(LIST, deadline, &sql.get_dead_letters, vec![&name, &ids, &after, &limit]).await?
            }
            DeadLetterSelection::All | DeadLetterSelection::Reason(_) => {
                let reason = match &query.selection {
                    DeadLetterSelection::Reason(reason) => Some(reason.as_str()),
                    DeadLetterSelection::All | DeadLetterSelection::Ids(_) => None,
                };
                let values: Vec<&(dyn postgres_types::ToSql + Sync)> =
                    vec![&name, &after, &reason, &limit, &with_bodies];
                self.ask(LIST, deadline, &sql.list_dead_letters, values).await?
            }
        };
        let (label, columns) = (LabelColumns::of(&rows), DeadLetterColumns::of(&rows));
        let mut letters: Vec<(i64, DeadLetter)> =
            rows.iter().map(|row| rows::dead_letter(row, &origin, label, columns)).collect();
        let has_more = letters.len() > query.limit;
        letters.truncate(query.limit);
        let last = letters.last().map_or(after, |(death, _)| *death);
        Ok(DeadLetterPage {
            letters: letters.into_iter().map(|(_, letter)| letter).collect(),
            next: has_more.then(|| DeadLetterCursor(last.to_string())),
        })
    }
}

postrider_pg::columns! {
    /// The columns of `peek.sql` and `peek_long.sql`, but for the label's.
    PeekColumns {
        payload, is_retryable, is_leased, is_not_due, deliveries_count, attempts_count, created_at, next_attempt_at,
        last_error, id,
    }
}

fn peeked(row: &Row, label: LabelColumns, columns: PeekColumns) -> PeekedMessage {
    let (is_retryable, is_leased, is_not_due): (bool, bool, bool) =
        (row.get(columns.is_retryable), row.get(columns.is_leased), row.get(columns.is_not_due));
    let state = match (is_leased, is_not_due, is_retryable) {
        (true, true, _) => LiveState::Processing,
        (false, _, true) => LiveState::Retryable,
        _ => LiveState::Pending,
    };
    let label = Label::read_leniently(row, label);
    PeekedMessage {
        id: label.id,
        body: rows::body(row, columns.payload),
        content_type: label.content_type,
        headers: label.headers,
        ordering_key: label.ordering_key,
        priority: label.priority,
        state,
        deliveries_count: rows::count(row, columns.deliveries_count),
        attempts_count: rows::count(row, columns.attempts_count),
        enqueued_at: rows::time(row, columns.created_at),
        next_attempt_at: rows::time(row, columns.next_attempt_at),
        last_error: row.get(columns.last_error),
    }
}
