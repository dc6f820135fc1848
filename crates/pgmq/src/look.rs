//! Read access to queues, and purges.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Deadline, LiveState, Measured,
    MessageId, MessagingError, PeekedMessage, Priority, QueueName, QueueStats,
};
use postrider_pg::columns::{positions, time};
use postrider_pg::tokio_postgres::Row;
use postrider_provider::{DeadPart, Removal, Undone};
use postrider_sql::Present;

use crate::rows::{self, Dead, Json};
use crate::store::Shared;
use crate::{codec, names};

/// Messages removed in one transaction.
const CHUNK: usize = 2000;

impl Shared {
    pub(crate) async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, Undone> {
        let rows = self.ask("list queues", deadline, &self.database.sql.general.list_queues, Vec::new()).await?;
        // Skip queues that Postrider cannot use, and those of dead letters.
        let queues = rows.iter().filter_map(|row| QueueName::new(row.get::<_, &str>("name")).ok());
        Ok(queues.filter(|queue| names::check(queue).is_ok()).collect())
    }

    pub(crate) async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, Undone> {
        names::check(queue)?;
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        let look = || async { self.ask("stats", deadline, &sql.stats, vec![&name]).await };
        let rows = self.if_exists(queue, deadline, look).await?;
        let is_paused = match &rows {
            Some(rows) => rows.first().is_some_and(|row| row.get("is_paused")),
            // A queue can be paused before it exists.
            None => {
                let found = self.ask("stats", deadline, &self.database.sql.general.is_paused, vec![&name]).await?;
                found.first().is_some_and(|row| row.get("is_paused"))
            }
        };
        let rows = rows.unwrap_or_default();
        let mut dead = 0;
        if !queue.holds_dead_letters() {
            let count = || async { self.ask("stats", deadline, &sql.count_dead, Vec::new()).await };
            let counted = self.if_exists(&queue.dead_letters(), deadline, count).await?.unwrap_or_default();
            dead = counted.first().map_or(0, |row| row.get::<_, i64>(0).max(0).cast_unsigned());
        }
        let count = |column| rows.first().map_or(0, |row| row.get::<_, i64>(column)).max(0).cast_unsigned();
        let oldest = rows.first().and_then(|row| row.get::<_, Option<i64>>("oldest_micros"));
        let oldest = oldest.map(|micros| Duration::from_micros(micros.max(0).cast_unsigned()));
        Ok(QueueStats {
            queue: queue.clone(),
            ready: Measured::Exact(count("ready")),
            in_flight: Measured::Exact(count("in_flight")),
            delayed: Measured::Exact(count("delayed")),
            dead: Measured::Exact(dead),
            oldest_age: Measured::Exact(oldest),
            paused: is_paused,
        })
    }

    pub(crate) async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, Undone> {
        names::check(queue)?;
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let look = || async { self.ask("peek", deadline, &sql.peek, vec![&name, &limit]).await };
        let rows = self.if_exists(queue, deadline, look).await?.unwrap_or_default();
        let columns = PeekColumns::of(&rows);
        Ok(rows.iter().map(|row| peeked(queue, row, columns)).collect())
    }

    /// Returns the messages of a queue at this moment, in chunks. Delayed messages have negative numbers.
    pub(crate) async fn present(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Present>>, Undone> {
        names::check(queue)?;
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        let look = || async { self.ask(operation, deadline, &sql.select_queue, vec![&name]).await };
        let rows = self.if_exists(queue, deadline, look).await?.unwrap_or_default();
        let present: Vec<Present> = rows.iter().map(|row| (row.get("msg_id"), None)).collect();
        Ok(present.chunks(CHUNK).map(<[Present]>::to_vec).collect())
    }

    pub(crate) async fn remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chosen: &[Present],
        removal: Removal,
    ) -> Result<u64, Undone> {
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        let (delayed, rows): (Vec<i64>, Vec<i64>) = chosen.iter().map(|(row, _)| *row).partition(|row| *row < 0);
        let delayed: Vec<i64> = delayed.into_iter().map(i64::wrapping_neg).collect();
        let everything = removal == Removal::Everything;
        let remove = || async {
            let gone =
                self.ask(operation, Deadline::default(), &sql.purge, vec![&rows, &name, &everything, &delayed]).await?;
            Ok(gone.first().map_or(0, |row| row.get::<_, i64>("removed").max(0).cast_unsigned()))
        };
        let removed = self.if_exists(queue, Deadline::default(), remove).await?.unwrap_or(0);
        self.touch([queue]);
        Ok(removed)
    }

    /// Pauses or resumes a queue.
    pub(crate) async fn set_paused(
        &self,
        queue: &QueueName,
        is_paused: bool,
        deadline: Deadline,
    ) -> Result<(), Undone> {
        names::check(queue)?;
        let general = &self.database.sql.general;
        let statement = if is_paused { &general.pause } else { &general.resume };
        self.ask("pause or resume", deadline, statement, vec![&queue.as_str()]).await?;
        self.touch([queue]);
        Ok(())
    }

    /// Drops a queue and its dead letters, with everything in them.
    pub(crate) async fn drop_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), Undone> {
        names::check(queue)?;
        let (name, dead) = (queue.as_str(), queue.dead_letters());
        let statement = &self.database.sql.general.delete_queue;
        self.ask("delete queue", deadline, statement, vec![&name, &dead.as_str()]).await.map(drop)
    }

    /// Returns the dead letters of a selection, in the order of deaths.
    pub(crate) async fn select_dead(
        &self,
        operation: &'static str,
        deadline: Deadline,
        part: &DeadPart,
    ) -> Result<Vec<Dead>, Undone> {
        names::check(&part.queue)?;
        let (origin, dead) = (part.queue.origin(), part.queue.dead_letters());
        let sql = self.database.sql.of(&origin);
        let limit = i64::try_from(part.limit).unwrap_or(i64::MAX);
        let look = || async {
            match &part.selection {
                DeadLetterSelection::Ids(ids) => {
                    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                    self.ask(operation, deadline, &sql.get_dead_letters, vec![&part.after, &ids]).await
                }
                DeadLetterSelection::All => {
                    let reason: Option<&str> = None;
                    self.ask(operation, deadline, &sql.list_dead_letters, vec![&part.after, &reason, &limit]).await
                }
                DeadLetterSelection::Reason(reason) => {
                    let reason = Some(reason.as_str());
                    self.ask(operation, deadline, &sql.list_dead_letters, vec![&part.after, &reason, &limit]).await
                }
            }
        };
        let rows = self.if_exists(&dead, deadline, look).await?.unwrap_or_default();
        let mut found = Dead::read_all(&dead, &rows);
        if let DeadLetterSelection::Ids(ids) = &part.selection {
            let ids: HashSet<&MessageId> = ids.iter().collect();
            found.retain(|dead| ids.contains(&dead.decoded.id));
            found.truncate(part.limit);
        }
        Ok(found)
    }

    pub(crate) async fn find_dead(
        &self,
        queue: &QueueName,
        reason: Option<&str>,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, Undone> {
        names::check(queue)?;
        let (sql, dead) = (self.database.sql.of(&queue.origin()), queue.dead_letters());
        let look =
            || async { self.ask("find dead letters", deadline, &sql.find_dead_letters, vec![&reason, &error]).await };
        let found = self.if_exists(&dead, deadline, look).await?.unwrap_or_default();
        let [msg_id, headers] = positions(&found, ["msg_id", "headers"]);
        let id =
            |row: &Row| codec::id(&dead, row.get(msg_id), row.get::<_, Option<Json<'_>>>(headers).map(|json| json.0));
        Ok(found.iter().map(id).collect())
    }

    pub(crate) async fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, Undone> {
        query.check()?;
        let after: i64 = match &query.after {
            None => 0,
            Some(cursor) => cursor.0.parse().map_err(|_| MessagingError::invalid_cursor(&cursor.0))?,
        };
        let limit = query.limit.saturating_add(1);
        let selection = query.selection.clone();
        let part = DeadPart { queue: queue.clone(), selection, after, limit, revived: Arc::default() };
        let mut found = self.select_dead("list dead letters", deadline, &part).await?;
        let has_more = found.len() > query.limit;
        found.truncate(query.limit);
        let last = found.last().map_or(after, |dead| dead.msg_id);
        let letters: Vec<DeadLetter> = found.into_iter().map(|dead| dead.into_letter(&queue.origin())).collect();
        Ok(DeadLetterPage { letters, next: has_more.then(|| DeadLetterCursor(last.to_string())) })
    }
}

postrider_pg::columns! {
    /// The columns of `peek.sql`.
    PeekColumns { msg_id, message, headers, read_ct, enqueued_at, vt, is_not_due, is_leased }
}

fn peeked(queue: &QueueName, row: &Row, columns: PeekColumns) -> PeekedMessage {
    let decoded = rows::decoded(queue, row.get(columns.msg_id), row, [columns.message, columns.headers]);
    let (is_later, is_leased): (bool, bool) = (row.get(columns.is_not_due), row.get(columns.is_leased));
    let state = match (is_leased, is_later, decoded.attempts) {
        (true, ..) => LiveState::Processing,
        // After a failure and an expired lease it is pending again; only the count of failures tells, so it shows as
        // retryable.
        (false, _, attempts) if attempts > 0 => LiveState::Retryable,
        _ => LiveState::Pending,
    };
    PeekedMessage {
        id: decoded.id,
        body: decoded.body,
        content_type: decoded.content_type,
        headers: decoded.headers,
        ordering_key: decoded.ordering_key,
        priority: Priority::default(),
        state,
        deliveries_count: u32::try_from(row.get::<_, i32>(columns.read_ct))
            .unwrap_or(0)
            .saturating_sub(decoded.released),
        attempts_count: decoded.attempts,
        enqueued_at: time(row, columns.enqueued_at),
        next_attempt_at: time(row, columns.vt),
        last_error: decoded.error,
    }
}
