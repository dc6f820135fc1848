//! What people and tools see of a queue, and what they remove.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Deadline, LiveState, Measured,
    MessageId, MessagingError, PeekedMessage, Priority, QueueName, QueueStats,
};
use postrider_pg::columns::time;
use postrider_pg::tokio_postgres::Row;
use postrider_provider::{DeadPart, Removal, Undone};
use postrider_sql::Present;

use crate::rows::{self, Dead, Json};
use crate::store::Shared;
use crate::{codec, names};

/// So many messages are removed in one transaction.
const CHUNK: usize = 2000;

impl Shared {
    pub(crate) async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, Undone> {
        let rows = self.ask("list queues", deadline, &self.database.sql.general.list_queues, Vec::new()).await?;
        // What Postrider cannot use is not one of its queues, nor are those of dead letters.
        let queues = rows.iter().filter_map(|row| QueueName::new(row.get::<_, &str>(0)).ok());
        Ok(queues.filter(|queue| names::check(queue).is_ok()).collect())
    }

    pub(crate) async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, Undone> {
        names::check(queue)?;
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        let look = || async { self.ask("stats", deadline, &sql.stats, vec![&name]).await };
        let rows = self.if_exists(queue, deadline, look).await?;
        let is_paused = match &rows {
            Some(rows) => rows.first().is_some_and(|row| row.get(4)),
            // It can be paused before there is a queue of that name.
            None => {
                let found = self.ask("stats", deadline, &self.database.sql.general.is_paused, vec![&name]).await?;
                found.first().is_some_and(|row| row.get(0))
            }
        };
        let rows = rows.unwrap_or_default();
        let mut dead = 0;
        if !queue.holds_dead_letters() {
            let count = || async { self.ask("stats", deadline, &sql.count_dead, Vec::new()).await };
            let counted = self.if_exists(&queue.dead_letters(), deadline, count).await?.unwrap_or_default();
            dead = counted.first().map_or(0, |row| row.get::<_, i64>(0).max(0).cast_unsigned());
        }
        let count = |column: usize| rows.first().map_or(0, |row| row.get::<_, i64>(column)).max(0).cast_unsigned();
        let oldest = rows.first().and_then(|row| row.get::<_, Option<i64>>(3));
        let oldest = oldest.map(|micros| Duration::from_micros(micros.max(0).cast_unsigned()));
        Ok(QueueStats {
            queue: queue.clone(),
            ready: Measured::Exact(count(0)),
            in_flight: Measured::Exact(count(1)),
            delayed: Measured::Exact(count(2)),
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
        Ok(rows.iter().map(|row| peeked(queue, row)).collect())
    }

    /// What a removal goes through, in chunks. What is kept aside has a negative number.
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
        let present: Vec<Present> = rows.iter().map(|row| (row.get(0), None)).collect();
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
        let (aside, rows): (Vec<i64>, Vec<i64>) = chosen.iter().map(|(row, _)| *row).partition(|row| *row < 0);
        let aside: Vec<i64> = aside.into_iter().map(i64::wrapping_neg).collect();
        let everything = removal == Removal::Everything;
        let remove = || async {
            let gone =
                self.ask(operation, Deadline::default(), &sql.purge, vec![&rows, &name, &everything, &aside]).await?;
            Ok(gone.first().map_or(0, |row| row.get::<_, i64>(0).max(0).cast_unsigned()))
        };
        let removed = self.if_exists(queue, Deadline::default(), remove).await?.unwrap_or(0);
        self.touch([queue]);
        Ok(removed)
    }

    /// Holds a queue's messages back, or lets them go again.
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

    /// Drops a queue and that of its dead letters, with everything in them.
    pub(crate) async fn drop_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), Undone> {
        names::check(queue)?;
        let (name, dead) = (queue.as_str(), queue.dead_letters());
        let statement = &self.database.sql.general.delete_queue;
        self.ask("delete queue", deadline, statement, vec![&name, &dead.as_str()]).await.map(drop)
    }

    /// The dead letters that a selection names, in the order of their deaths.
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
        let mut found: Vec<Dead> = rows.iter().map(|row| Dead::read(&dead, row)).collect();
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
        let id = |row: &Row| codec::id(&dead, row.get(0), row.get::<_, Option<Json<'_>>>(1).map(|json| json.0));
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
            Some(cursor) => cursor
                .0
                .parse()
                .map_err(|_| MessagingError::invalid("cursor", format!("'{}' ends no page", cursor.0)))?,
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

fn peeked(queue: &QueueName, row: &Row) -> PeekedMessage {
    let decoded = rows::decoded(queue, row.get(0), row, [1, 2]);
    let (is_later, is_leased): (bool, bool) = (row.get(6), row.get(7));
    let state = match (is_leased, is_later, decoded.attempts) {
        (true, ..) => LiveState::Processing,
        // A lease that ran out after a failure makes it pending again; nothing tells these apart but the count.
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
        deliveries_count: u32::try_from(row.get::<_, i32>(3)).unwrap_or(0).saturating_sub(decoded.released),
        attempts_count: decoded.attempts,
        enqueued_at: time(row, 4),
        next_attempt_at: time(row, 5),
        last_error: decoded.error,
    }
}
