//! Claims messages: leases what is due, and dead-letters what was delivered too often or has expired.

use std::collections::VecDeque;

use postrider_core::{
    DeadLetterReason, Envelope, LeaseToken, MessageId, NativeRef, QueueName, ReceiptHandle, ReceiveOptions, Timestamp,
};
use postrider_provider::Claimed;
use rusqlite::OptionalExtension;
use rusqlite::types::ValueRef;

use crate::PROVIDER;
use crate::rows::{self, DeliveryRecord, Metadata};
use crate::session::{MAX_QUEUES, Session, is_paused};
use crate::sql;

/// Each 16th claim takes the oldest due message first, whatever its priority, so that none starves.
const OLDEST_FIRST_EVERY: u64 = 16;

/// Upper bound of messages dead-lettered in one claim; a longer backlog takes several transactions.
const MAX_DEAD_LETTERED: usize = 500;

/// Upper bound of leases in one claim, whatever the caller requests: other processes wait for the write lock.
const MAX_LEASES: usize = 1000;

/// The result of a claim.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) messages: Vec<Claimed>,
    /// When the next message becomes due.
    pub(crate) next: Timestamp,
    /// Whether the claim stopped before it had read every due message.
    pub(crate) is_cut_short: bool,
}

/// The lease token of a row: a random half, so that no two leases of a row share it, and the row number.
pub(crate) fn token(lease: i64, row: i64) -> LeaseToken {
    LeaseToken(u128::from(lease.cast_unsigned()) << 64 | u128::from(row.cast_unsigned()))
}

impl Session<'_> {
    /// Leases up to `options.max` messages that are due.
    pub(crate) fn claim(&mut self, queue: &QueueName, options: &ReceiveOptions) -> rusqlite::Result<Claim> {
        let mut claim = Claim { messages: Vec::new(), next: Timestamp::MAX, is_cut_short: false };
        if is_paused(self.connection, queue)? {
            return Ok(claim);
        }
        let most = options.max.min(MAX_LEASES);
        let lease = rand::random();
        let mut deaths = 0;
        loop {
            let wanted = most - claim.messages.len();
            let due = self.due(queue, wanted)?;
            let before = deaths;
            for id in due {
                match self.lease(queue, id, lease, options)? {
                    Some(claimed) => claim.messages.push(claimed),
                    None => deaths += 1,
                }
            }
            if claim.messages.len() >= most || deaths == before {
                break;
            }
            if deaths >= MAX_DEAD_LETTERED {
                claim.is_cut_short = true;
                break;
            }
        }
        if claim.messages.is_empty() && !options.wait.is_zero() {
            claim.next = next_due(self.connection, queue, self.now)?;
        }
        Ok(claim)
    }

    /// Leases one message by its id, if it is due. `rows` are the rows that had the id a moment ago.
    pub(crate) fn claim_by_id(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        rows: &[i64],
        options: &ReceiveOptions,
    ) -> rusqlite::Result<Option<Claimed>> {
        if is_paused(self.connection, queue)? {
            return Ok(None);
        }
        for row in rows {
            let parameters = (row, queue.as_str(), id.as_uuid().as_bytes(), self.now.as_micros());
            if self.connection.prepare_cached(sql::IS_DUE)?.query_row(parameters, |row| row.get(0))? {
                return self.lease(queue, *row, rand::random(), options);
            }
        }
        Ok(None)
    }

    /// The due rows in the order of delivery: by priority, and from time to time the oldest first.
    fn due(&self, queue: &QueueName, limit: usize) -> rusqlite::Result<Vec<i64>> {
        let now = self.now.as_micros();
        let mut statement = self.connection.prepare_cached(sql::DUE_PRIORITIES)?;
        let priorities = statement
            .query_map((queue.as_str(), now), |row| row.get::<_, i64>("priority"))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut statement = self.connection.prepare_cached(sql::DUE)?;
        let (id, next_attempt_at) = (statement.column_index("id")?, statement.column_index("next_attempt_at")?);
        let mut by_priority = Vec::with_capacity(priorities.len());
        for priority in priorities {
            let rows = statement.query_map((queue.as_str(), priority, now, limit), |row| {
                // An unreadable time costs the row nothing but its order.
                Ok((row.get::<_, i64>(next_attempt_at).unwrap_or_default(), row.get::<_, i64>(id)?))
            })?;
            by_priority.push(rows.collect::<rusqlite::Result<VecDeque<(i64, i64)>>>()?);
        }
        let mut claim = self.cache.claims.get(queue).copied().unwrap_or(0);
        let mut order = Vec::new();
        while order.len() < usize::try_from(limit).unwrap_or(usize::MAX) {
            by_priority.retain(|rows| !rows.is_empty());
            let oldest_first = claim % OLDEST_FIRST_EVERY == OLDEST_FIRST_EVERY - 1;
            let rows =
                if oldest_first { by_priority.iter_mut().min_by_key(|rows| rows[0]) } else { by_priority.first_mut() };
            let Some((_, id)) = rows.and_then(VecDeque::pop_front) else { break };
            order.push(id);
            claim += 1;
        }
        Ok(order)
    }

    /// Leases one due row; `None` if the message was dead-lettered instead.
    fn lease(
        &mut self,
        queue: &QueueName,
        id: i64,
        lease: i64,
        options: &ReceiveOptions,
    ) -> rusqlite::Result<Option<Claimed>> {
        let (now, connection) = (self.now, self.connection);
        let (statement, columns) = self.hot.read_due.with_columns(connection, sql::READ_DUE)?;
        let mut found = statement.query([id])?;
        let Some(row) = found.next()? else { return Ok(None) };
        let ordering_key = row.get::<_, Option<String>>(columns.metadata.ordering_key);
        let dedup_key = row
            .get::<_, Option<String>>(columns.dedup_key)
            .map_err(|error| format!("dedup_key is unreadable: {error}"));
        let read = || -> Result<(Metadata, DeliveryRecord), String> {
            dedup_key.as_ref().map_err(String::clone)?;
            Ok((Metadata::read(row, columns.metadata)?, DeliveryRecord::read(row, columns.record)?))
        };
        let read = read();
        let death = if queue.holds_dead_letters() {
            // Dead letters can be received any number of times.
            None
        } else {
            match &read {
                Err(text) => Some((DeadLetterReason::UNDECODABLE, Some(text.clone()))),
                Ok((_, record)) if record.expires_at.is_some_and(|expires_at| expires_at <= now) => {
                    Some((DeadLetterReason::EXPIRED, None))
                }
                Ok((_, record)) if record.deliveries_count >= options.max_receive_count => {
                    Some((DeadLetterReason::MAX_RECEIVE_COUNT, None))
                }
                Ok(_) => None,
            }
        };
        if let Some((reason, error)) = death {
            let message_id = rows::message_id(row, columns.metadata.message_id, id);
            let has_no_key = matches!(row.get_ref(columns.metadata.ordering_key)?, ValueRef::Null);
            let has_readable_key =
                has_no_key || rows::key(row, columns.metadata.ordering_key, "ordering key").is_some();
            drop(found);
            if read.is_err() {
                // An unreadable id is replaced, so that the dead letter can be addressed.
                self.connection.prepare_cached(sql::SET_MESSAGE_ID)?.execute((id, message_id.as_uuid().as_bytes()))?;
            }
            let key = ordering_key.unwrap_or_default();
            self.move_to_dead_letters(queue, id, key.as_deref(), &reason, error.as_deref())?;
            if !has_readable_key {
                self.free_keys(queue)?;
            }
            return Ok(None);
        }
        let dedup_key = match queue.holds_dead_letters() {
            // Dead letters keep their dedup key but do not hold it.
            true => {
                let mut statement = connection.prepare_cached(sql::DEAD_DEDUP_KEY)?;
                statement.query_row([id], |row| Ok(rows::key(row, 0, "dedup key"))).optional()?.flatten()
            }
            false => rows::key(row, columns.dedup_key, "dedup key"),
        };
        let lenient = |_| {
            let metadata = Metadata::read_leniently(row, columns.metadata, id);
            (metadata, DeliveryRecord::read_leniently(row, columns.record))
        };
        let (metadata, record) = read.unwrap_or_else(lenient);
        let lease_expires_at = now.saturating_add(options.visibility);
        let envelope = Envelope {
            id: metadata.id,
            queue: queue.clone(),
            content_type: metadata.content_type,
            headers: metadata.headers,
            ordering_key: metadata.ordering_key,
            dedup_key,
            priority: metadata.priority,
            expires_at: record.expires_at,
            receive_count: record.deliveries_count.saturating_add(1),
            attempts_count: record.attempts_count,
            enqueued_at: record.created_at,
            first_attempt_at: record.first_attempt_at.unwrap_or(now),
            lease_expires_at,
        };
        let body = rows::bytes(row, columns.payload)?;
        drop(found);
        let parameters = (id, lease_expires_at.as_micros(), lease, now.as_micros());
        self.hot.claim.get(connection, sql::CLAIM)?.execute(parameters)?;
        self.count_claim(queue);
        self.touch(queue, lease_expires_at);
        let native = NativeRef::Row(id.cast_unsigned());
        let receipt = ReceiptHandle::new(PROVIDER, queue.clone(), envelope.id, token(lease, id), native);
        Ok(Some(Claimed { body, envelope, receipt }))
    }

    /// Unblocks the first message of every key: the key of the head that died is unreadable, so its successor is
    /// unknown.
    fn free_keys(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql::FREE_KEYS)?.execute([queue.as_str()])?;
        self.touch(queue, self.now);
        Ok(())
    }

    fn count_claim(&mut self, queue: &QueueName) {
        match self.cache.claims.get_mut(queue) {
            Some(claims) => *claims = claims.wrapping_add(1),
            None => {
                // Clearing the counts only restarts the interval of `OLDEST_FIRST_EVERY`.
                if self.cache.claims.len() >= MAX_QUEUES {
                    self.cache.claims.clear();
                }
                self.cache.claims.insert(queue.clone(), 1);
            }
        }
    }
}

/// When the next message becomes due after `after`.
pub(crate) fn next_due(
    connection: &rusqlite::Connection,
    queue: &QueueName,
    after: Timestamp,
) -> rusqlite::Result<Timestamp> {
    if is_paused(connection, queue)? {
        return Ok(Timestamp::MAX);
    }
    let mut statement = connection.prepare_cached(sql::NEXT_DUE)?;
    let next = statement.query_row((queue.as_str(), after.as_micros()), |row| Ok(rows::optional_time(row, 0)))?;
    // A message with an unreadable time never becomes due.
    Ok(next.ok().flatten().unwrap_or(Timestamp::MAX))
}
