//! One write transaction, as the steps of the law use it.
//!
//! Everything happens under the file's one write lock and at one time: `now` is read once, after the lock was taken.
//! Waiting receivers are woken only after the commit.

use std::collections::{HashMap, HashSet};

use postrider_core::{ArchivePolicy, Capabilities, MessagingError, QueueName, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Statement};

use crate::error::Failure;
use crate::free_space::FreeSpace;
use crate::rows::{Columns, ReadDueColumns};
use crate::settle::HeldColumns;
use crate::sql;
use crate::tasks::{ClaimableColumns, TaskByIdColumns, TaskHeldColumns};

/// Settings that are the same for all transactions of a store.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) capabilities: Capabilities,
    pub(crate) create_queues: bool,
    pub(crate) archive: ArchivePolicy,
    pub(crate) worker: String,
    /// Bytes of free space that sends leave to receives and acks.
    pub(crate) headroom: u64,
}

/// Upper bound of cached queue names; one process can meet any number of queues.
pub(crate) const MAX_QUEUES: usize = 10_000;

/// What a writer keeps from one transaction to the next.
#[derive(Debug, Default)]
pub(crate) struct WriterCache {
    /// Queues that exist. Cleared when another process has written.
    pub(crate) queues: HashSet<QueueName>,
    /// Number of messages claimed from each queue, for the turns of the oldest.
    pub(crate) claims: HashMap<QueueName, u64>,
    pub(crate) free_space: FreeSpace,
    /// Makes the commit return a disk error although it succeeded; no test can cause such an error otherwise.
    #[cfg(test)]
    pub(crate) commit_fails: bool,
}

#[derive(Debug)]
pub(crate) struct Session<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) rules: &'c Rules,
    pub(crate) cache: &'c mut WriterCache,
    pub(crate) now: Timestamp,
    /// Queues with a change to wake receivers for, and the earliest time at which it can be received.
    touched: Vec<(QueueName, Timestamp)>,
    /// Number of rows added to the archive.
    pub(crate) archived: u64,
    pub(crate) hot: HotStatements<'c>,
}

/// The statements that every message and every task uses, kept for the whole transaction: finding them in the
/// connection's cache by their text for each row costs a tenth of a batch.
#[derive(Default)]
pub(crate) struct HotStatements<'c> {
    pub(crate) send: Prepared<'c>,
    pub(crate) read_due: Prepared<'c, ReadDueColumns>,
    pub(crate) claim: Prepared<'c>,
    pub(crate) held: Prepared<'c, HeldColumns>,
    pub(crate) archive: Prepared<'c>,
    pub(crate) remove: Prepared<'c>,
    pub(crate) task_create: Prepared<'c>,
    pub(crate) task_key_tail: Prepared<'c>,
    /// One for each state that a task can be claimed in, because both are read at the same time.
    pub(crate) task_due: [Prepared<'c, ClaimableColumns>; 2],
    pub(crate) task_by_id: Prepared<'c, TaskByIdColumns>,
    pub(crate) task_claim: Prepared<'c>,
    pub(crate) task_held: Prepared<'c, TaskHeldColumns>,
    pub(crate) task_succeed: Prepared<'c>,
    pub(crate) task_enqueue: Prepared<'c>,
    pub(crate) outbox_put: Prepared<'c>,
}

impl std::fmt::Debug for HotStatements<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HotStatements")
    }
}

/// A statement, prepared when it is first used, and the positions of its columns.
pub(crate) struct Prepared<'c, C = ()>(Option<(CachedStatement<'c>, C)>);

impl<C> Default for Prepared<'_, C> {
    fn default() -> Self {
        Self(None)
    }
}

/// A statement that returns no rows, or a single value.
impl Columns for () {
    fn of(_: &Statement<'_>) -> rusqlite::Result<Self> {
        Ok(())
    }
}

impl<'c, C: Columns> Prepared<'c, C> {
    pub(crate) fn get(&mut self, connection: &'c Connection, sql: &str) -> rusqlite::Result<&mut CachedStatement<'c>> {
        self.with_columns(connection, sql).map(|(statement, _)| statement)
    }

    pub(crate) fn with_columns(
        &mut self,
        connection: &'c Connection,
        sql: &str,
    ) -> rusqlite::Result<(&mut CachedStatement<'c>, C)> {
        let (statement, columns) = match &mut self.0 {
            Some(prepared) => prepared,
            empty => {
                let statement = connection.prepare_cached(sql)?;
                let columns = C::of(&statement)?;
                empty.insert((statement, columns))
            }
        };
        Ok((statement, *columns))
    }
}

impl<'c> Session<'c> {
    pub(crate) fn new(
        connection: &'c Connection,
        rules: &'c Rules,
        cache: &'c mut WriterCache,
        now: Timestamp,
    ) -> Self {
        Self { connection, rules, cache, now, touched: Vec::new(), archived: 0, hot: HotStatements::default() }
    }

    /// The queues to wake receivers of after the commit.
    pub(crate) fn into_touched(self) -> Vec<(QueueName, Timestamp)> {
        self.touched
    }

    /// Wakes receivers of the queue after the commit: something can be received at `due`.
    pub(crate) fn touch(&mut self, queue: &QueueName, due: Timestamp) {
        match self.touched.iter_mut().find(|(touched, _)| touched == queue) {
            Some((_, earliest)) => *earliest = due.min(*earliest),
            None => self.touched.push((queue.clone(), due)),
        }
    }

    /// Refuses to add a row of this size when the disk is almost full.
    pub(crate) fn require_space(&mut self, bytes: usize) -> Result<(), Failure> {
        self.cache.free_space.take(self.connection, self.rules.headroom, bytes as u64)
    }

    /// Creates a missing queue, or refuses to when the options say so.
    pub(crate) fn require_queue(&mut self, queue: &QueueName) -> Result<(), Failure> {
        if self.cache.queues.contains(queue) {
            return Ok(());
        }
        if self.rules.create_queues {
            self.ensure_queue(queue)?;
        } else if !queue_exists(self.connection, queue)? {
            return Err(MessagingError::QueueNotFound { queue: queue.clone() }.into());
        }
        self.remember_queue(queue);
        Ok(())
    }

    /// Creates a missing queue whatever the options say, for messages that the caller did not choose to send.
    pub(crate) fn make_queue(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        if !self.cache.queues.contains(queue) {
            self.ensure_queue(queue)?;
            self.remember_queue(queue);
        }
        Ok(())
    }

    fn remember_queue(&mut self, queue: &QueueName) {
        // A forgotten queue is only looked up again.
        if self.cache.queues.len() >= MAX_QUEUES {
            self.cache.queues.clear();
        }
        self.cache.queues.insert(queue.clone());
    }

    pub(crate) fn ensure_queue(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(sql::ENSURE_QUEUE)?;
        statement.execute((queue.as_str(), self.now.as_micros()))?;
        Ok(())
    }

    pub(crate) fn pause(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql::PAUSE)?.execute((queue.as_str(), self.now.as_micros()))?;
        Ok(())
    }

    pub(crate) fn resume(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql::RESUME)?.execute([queue.as_str()])?;
        self.touch(queue, self.now);
        Ok(())
    }

    /// Unblocks the next message of a key after its head was removed.
    pub(crate) fn promote(&mut self, queue: &QueueName, key: &str) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(sql::PROMOTE)?;
        let due =
            statement.query_row((queue.as_str(), key), |row| row.get(0).map(Timestamp::from_micros)).optional()?;
        if let Some(due) = due {
            self.touch(queue, due);
        }
        Ok(())
    }
}

pub(crate) fn queue_exists(connection: &Connection, queue: &QueueName) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql::QUEUE_EXISTS)?.query_row([queue.origin().as_str()], |row| row.get(0))
}

pub(crate) fn is_paused(connection: &Connection, queue: &QueueName) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql::IS_PAUSED)?.query_row([queue.as_str()], |row| row.get(0))
}
