//! Where a message is claimed: leased, or dead-lettered because it was read too often or too late.

use std::collections::VecDeque;

use postrider_core::{
    DeadLetterReason, Envelope, LeaseToken, MessageId, NativeRef, QueueName, ReceiptHandle, ReceiveOptions, Timestamp,
};
use postrider_provider::Claimed;
use rusqlite::OptionalExtension;
use rusqlite::types::ValueRef;

use crate::PROVIDER;
use crate::rows::{self, Label, Life};
use crate::session::{MOST_NAMES, Session, is_paused};
use crate::sql;

/// Every so many claims the oldest due message goes first, whatever its priority, so that none waits for ever.
const OLDEST_FIRST_EVERY: u64 = 16;

/// So many messages die in one claim at most; a backlog of dead ones is cleared over several transactions.
const MOST_DEATHS: usize = 500;

/// So many messages are leased in one claim at most, whatever was asked for: every other process waits for the lock.
const MOST_LEASES: usize = 1000;

/// What a claim found.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) messages: Vec<Claimed>,
    /// When something more becomes due.
    pub(crate) next: Timestamp,
    /// Whether it ended before it had looked at everything that is due.
    pub(crate) is_cut_short: bool,
}

/// Half of a receipt's token: chance, so that no two leases of a row ever share it. The row is the other half.
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
        let most = options.max.min(MOST_LEASES);
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
            if deaths >= MOST_DEATHS {
                claim.is_cut_short = true;
                break;
            }
        }
        if claim.messages.is_empty() && !options.wait.is_zero() {
            claim.next = next_due(self.connection, queue, self.now)?;
        }
        Ok(claim)
    }

    /// Leases one message by its id, if it may be received now. `rows` are those that had the id a moment ago.
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

    /// The rows that are due, in the order of their turns: the more urgent first, now and then the oldest.
    fn due(&self, queue: &QueueName, limit: usize) -> rusqlite::Result<Vec<i64>> {
        let now = self.now.as_micros();
        let mut statement = self.connection.prepare_cached(sql::DUE_PRIORITIES)?;
        let priorities = statement
            .query_map((queue.as_str(), now), |row| row.get::<_, i64>(0))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut statement = self.connection.prepare_cached(sql::DUE)?;
        let mut lines = Vec::with_capacity(priorities.len());
        for priority in priorities {
            let rows = statement.query_map((queue.as_str(), priority, now, limit), |row| {
                // A time that is no whole number is only a place in line.
                Ok((row.get::<_, i64>(1).unwrap_or_default(), row.get::<_, i64>(0)?))
            })?;
            lines.push(rows.collect::<rusqlite::Result<VecDeque<(i64, i64)>>>()?);
        }
        let mut turn = self.memory.claims.get(queue).copied().unwrap_or(0);
        let mut order = Vec::new();
        while order.len() < usize::try_from(limit).unwrap_or(usize::MAX) {
            lines.retain(|line| !line.is_empty());
            let oldest_first = turn % OLDEST_FIRST_EVERY == OLDEST_FIRST_EVERY - 1;
            let line = if oldest_first { lines.iter_mut().min_by_key(|line| line[0]) } else { lines.first_mut() };
            let Some((_, id)) = line.and_then(VecDeque::pop_front) else { break };
            order.push(id);
            turn += 1;
        }
        Ok(order)
    }

    /// Leases one row that is due; `None` when reading it sent it to the dead letters.
    fn lease(
        &mut self,
        queue: &QueueName,
        id: i64,
        lease: i64,
        options: &ReceiveOptions,
    ) -> rusqlite::Result<Option<Claimed>> {
        let (now, connection) = (self.now, self.connection);
        let mut found = self.hot.read_due.get(connection, sql::READ_DUE)?.query([id])?;
        let Some(row) = found.next()? else { return Ok(None) };
        let (label_columns, life_columns) = ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]);
        let ordering_key = row.get::<_, Option<String>>(3);
        let dedup_key = row.get::<_, Option<String>>(10).map_err(|error| format!("dedup_key is unreadable: {error}"));
        let read = || -> Result<(Label, Life), String> {
            dedup_key.as_ref().map_err(String::clone)?;
            Ok((Label::read(row, label_columns)?, Life::read(row, life_columns)?))
        };
        let read = read();
        let death = if queue.holds_dead_letters() {
            // Dead letters can be read for ever.
            None
        } else {
            match &read {
                Err(text) => Some((DeadLetterReason::UNDECODABLE, Some(text.clone()))),
                Ok((_, life)) if life.expires_at.is_some_and(|expires_at| expires_at <= now) => {
                    Some((DeadLetterReason::EXPIRED, None))
                }
                Ok((_, life)) if life.deliveries_count >= options.max_receive_count => {
                    Some((DeadLetterReason::MAX_RECEIVE_COUNT, None))
                }
                Ok(_) => None,
            }
        };
        if let Some((reason, error)) = death {
            let message_id = rows::message_id(row, 0, id);
            let holds_no_key = matches!(row.get_ref(3)?, ValueRef::Null);
            let is_known = holds_no_key || rows::key(row, 3, "ordering key").is_some();
            drop(found);
            if read.is_err() {
                // An id that is unreadable is replaced, so that the dead letter can be asked for.
                self.connection.prepare_cached(sql::SET_MESSAGE_ID)?.execute((id, message_id.as_uuid().as_bytes()))?;
            }
            let key = ordering_key.unwrap_or_default();
            self.bury(queue, id, key.as_deref(), &reason, error.as_deref())?;
            if !is_known {
                self.free_keys(queue)?;
            }
            return Ok(None);
        }
        let dedup_key = match queue.holds_dead_letters() {
            // The dead do not hold their key, but they have it.
            true => {
                let mut statement = connection.prepare_cached(sql::DEAD_DEDUP_KEY)?;
                statement.query_row([id], |row| Ok(rows::key(row, 0, "dedup key"))).optional()?.flatten()
            }
            false => rows::key(row, 10, "dedup key"),
        };
        let lenient = |_| (Label::read_leniently(row, label_columns, id), Life::read_leniently(row, life_columns));
        let (label, life) = read.unwrap_or_else(lenient);
        let lease_expires_at = now.saturating_add(options.visibility);
        let envelope = Envelope {
            id: label.id,
            queue: queue.clone(),
            content_type: label.content_type,
            headers: label.headers,
            ordering_key: label.ordering_key,
            dedup_key,
            priority: label.priority,
            expires_at: life.expires_at,
            receive_count: life.deliveries_count.saturating_add(1),
            attempts_count: life.attempts_count,
            enqueued_at: life.created_at,
            first_attempt_at: life.first_attempt_at.unwrap_or(now),
            lease_expires_at,
        };
        let body = rows::bytes(row, 11)?;
        drop(found);
        let parameters = (id, lease_expires_at.as_micros(), lease, now.as_micros());
        self.hot.claim.get(connection, sql::CLAIM)?.execute(parameters)?;
        self.count_claim(queue);
        self.touch(queue, lease_expires_at);
        let native = NativeRef::Row(id.cast_unsigned());
        let receipt = ReceiptHandle::new(PROVIDER, queue.clone(), envelope.id, token(lease, id), native);
        Ok(Some(Claimed { body, envelope, receipt }))
    }

    /// Lets the first of every key go ahead: a head has died whose key nobody can read, so nobody knows who is next.
    fn free_keys(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql::FREE_KEYS)?.execute([queue.as_str()])?;
        self.touch(queue, self.now);
        Ok(())
    }

    fn count_claim(&mut self, queue: &QueueName) {
        match self.memory.claims.get_mut(queue) {
            Some(claims) => *claims = claims.wrapping_add(1),
            None => {
                // Only whose turn it is would be forgotten.
                if self.memory.claims.len() >= MOST_NAMES {
                    self.memory.claims.clear();
                }
                self.memory.claims.insert(queue.clone(), 1);
            }
        }
    }
}

/// When the first message becomes due that is not due at `after`.
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
    // A time that is unreadable never comes.
    Ok(next.ok().flatten().unwrap_or(Timestamp::MAX))
}
