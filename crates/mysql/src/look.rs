//! Read access to queues: listings, statistics, peek, attempts.

use std::time::Duration;

use mysql_async::Row;
use postrider_core::service::KEPT_ATTEMPTS;
use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Deadline, LiveState, Measured,
    MessageAttempt, MessageId, MessagingError, PeekedMessage, QueueName, QueueStats,
};
use postrider_provider::Undone;

use crate::literal::{self, fill, optional};
use crate::rows::{self, DeadLetterColumns, Label, LabelColumns, columns};
use crate::store::Shared;

/// Below this count a queue is read by its index; above it, by row number until the page is full.
const SHORT: i64 = 10_000;

impl Shared {
    /// Runs a single statement that writes.
    pub(crate) async fn change(
        &self,
        operation: &'static str,
        deadline: Deadline,
        statement: String,
    ) -> Result<Vec<Row>, Undone> {
        let mut session = self.database.session(operation, deadline).await?;
        Ok(session.change(statement).await?.concat())
    }

    /// Runs a single statement that only reads.
    pub(crate) async fn ask(
        &self,
        operation: &'static str,
        deadline: Deadline,
        statement: String,
    ) -> Result<Vec<Row>, Undone> {
        let mut session = self.database.session(operation, deadline).await?;
        Ok(session.ask(statement).await?.concat())
    }

    pub(crate) async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, Undone> {
        let rows = self.ask("list queues", deadline, self.database.sql.list_queues.clone()).await?;
        // Skip names that are invalid: another program wrote them.
        Ok(rows.iter().filter_map(|row| QueueName::new(rows::text(row, "name")).ok()).collect())
    }

    pub(crate) async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, Undone> {
        let name = literal::bytes(queue.as_str().as_bytes());
        let found = self.ask("stats", deadline, fill(&self.database.sql.stats, &[("queue", &name)])).await?;
        let row = found.first();
        let count = |column| row.map_or(0, |row| rows::number(row, column)).max(0).cast_unsigned();
        let oldest = row.and_then(|row| rows::optional_number(row, "oldest_micros"));
        let oldest = oldest.map(|micros| Duration::from_micros(micros.max(0).cast_unsigned()));
        Ok(QueueStats {
            queue: queue.clone(),
            ready: Measured::Exact(count("ready")),
            in_flight: Measured::Exact(count("in_flight")),
            delayed: Measured::Exact(count("delayed_count")),
            dead: Measured::Exact(count("dead")),
            oldest_age: Measured::Exact(oldest),
            paused: row.is_some_and(|row| rows::flag(row, "is_paused")),
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
        let (sql, name) = (&self.database.sql, literal::bytes(queue.as_str().as_bytes()));
        let count = fill(&sql.count_some, &[("queue", &name), ("limit", &SHORT.to_string())]);
        let some = self.ask("peek", deadline, count).await?;
        let is_short = some.first().is_none_or(|row| rows::number(row, 0) < SHORT);
        let statement = if is_short { &sql.peek } else { &sql.peek_long };
        let (after, limit) = (after.to_string(), limit.to_string());
        let values = [("queue", name.as_str()), ("after", after.as_str()), ("limit", limit.as_str())];
        let rows = self.ask("peek", deadline, fill(statement, &values)).await?;
        let (label, columns) = (LabelColumns::of(&rows), PeekColumns::of(&rows));
        Ok(rows.iter().map(|row| (rows::number(row, columns.id), peeked(row, label, columns))).collect())
    }

    /// Returns the kept failed attempts of a message in the queue or its dead letters, oldest first.
    pub(crate) async fn attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, Undone> {
        const READ: &str = "read attempts";
        let (sql, limit) = (&self.database.sql, KEPT_ATTEMPTS.to_string());
        let (name, id) = (literal::bytes(queue.origin().as_str().as_bytes()), literal::id(id));
        let values = [("queue", name.as_str()), ("message_id", id.as_str()), ("limit", limit.as_str())];
        let found = self.ask(READ, deadline, fill(&sql.message_attempts, &values)).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        // Checked last, because live messages have no index by id. Archived messages have attempts too, and none are
        // returned for them.
        let dead = self.ask(READ, deadline, fill(&sql.is_dead, &values[..2])).await?;
        let is_dead = dead.first().is_some_and(|row| rows::flag(row, "is_dead"));
        if !is_dead && self.ask(READ, deadline, fill(&sql.find_by_id, &values[..2])).await?.is_empty() {
            return Ok(Vec::new());
        }
        let read = |row: &Row| MessageAttempt {
            attempt: rows::count(row, "attempt"),
            started_at: rows::optional_time(row, "started_at"),
            failed_at: rows::time(row, "failed_at"),
            worker: rows::optional_text(row, "worker"),
            error: rows::optional_text(row, "error"),
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
        let (reason, error) = (optional(reason, literal::text), optional(error, literal::text));
        let name = literal::bytes(queue.origin().as_str().as_bytes());
        let values = [("queue", name.as_str()), ("reason", reason.as_str()), ("error", error.as_str())];
        let find = fill(&self.database.sql.find_dead_letters, &values);
        let found = self.ask("find dead letters", deadline, find).await?;
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
        let name = literal::bytes(origin.as_str().as_bytes());
        let (after_text, limit) = (after.to_string(), query.limit.saturating_add(1).to_string());
        let with_bodies = if with_bodies { "true" } else { "false" };
        let values = [
            ("queue", name.as_str()),
            ("after", after_text.as_str()),
            ("limit", limit.as_str()),
            ("with_bodies", with_bodies),
        ];
        let statement = match &query.selection {
            DeadLetterSelection::Ids(ids) => {
                let ids = literal::list(ids.iter().map(|id| literal::id(*id)));
                fill(&fill(&sql.get_dead_letters, &values), &[("message_ids", &ids)])
            }
            DeadLetterSelection::All => fill(&fill(&sql.list_dead_letters, &values), &[("reason", "null")]),
            DeadLetterSelection::Reason(reason) => {
                fill(&fill(&sql.list_dead_letters, &values), &[("reason", &literal::text(reason.as_str()))])
            }
        };
        let rows = self.ask(LIST, deadline, statement).await?;
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

columns! {
    /// The columns of `peek.sql` and `peek_long.sql`, but for the label's.
    PeekColumns {
        payload, is_retryable, is_leased, is_not_due, deliveries_count, attempts_count, created_at, due, last_error, id,
    }
}

fn peeked(row: &Row, label: LabelColumns, columns: PeekColumns) -> PeekedMessage {
    let (is_retryable, is_leased, is_not_due): (bool, bool, bool) = (
        rows::flag(row, columns.is_retryable),
        rows::flag(row, columns.is_leased),
        rows::flag(row, columns.is_not_due),
    );
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
        next_attempt_at: rows::time(row, columns.due),
        last_error: rows::optional_text(row, columns.last_error),
    }
}
