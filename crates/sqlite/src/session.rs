//! One write transaction, seen by the steps of the law.
//!
//! All of it happens under the file's one write lock and at one time: `now` is taken once, after the lock was had. What
//! a step does is told to those who wait only after the commit.

use std::collections::{HashMap, HashSet};

use postrider_core::{ArchivePolicy, Capabilities, MessagingError, QueueName, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension};

use crate::error::Failure;
use crate::room::Room;
use crate::sql;

/// What the file is used with; the same for all transactions of a store.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) capabilities: Capabilities,
    pub(crate) create_queues: bool,
    pub(crate) archive: ArchivePolicy,
    pub(crate) worker: String,
    /// How many bytes of the disk sends leave to receives and acks.
    pub(crate) headroom: u64,
}

/// So many queues are remembered. One process may meet any number of names.
pub(crate) const MOST_NAMES: usize = 10_000;

/// What a writer remembers from one transaction to the next.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Queues that are known to exist. Forgotten when another process has written.
    pub(crate) queues: HashSet<QueueName>,
    /// How many messages were claimed from each queue, for the turns of the oldest.
    pub(crate) claims: HashMap<QueueName, u64>,
    pub(crate) room: Room,
    /// Has the commit answer a failure of the disk, although it was done: nothing else can bring one about.
    #[cfg(test)]
    pub(crate) commit_fails: bool,
}

#[derive(Debug)]
pub(crate) struct Session<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) rules: &'c Rules,
    pub(crate) memory: &'c mut Memory,
    pub(crate) now: Timestamp,
    /// Queues in which something became receivable or will, and when at the earliest.
    touched: Vec<(QueueName, Timestamp)>,
    /// How many rows were put into the archive.
    pub(crate) archived: u64,
    pub(crate) hot: Hot<'c>,
}

/// The statements that every message and every task goes through, at hand for the whole transaction: to find them in the
/// connection's cache by their text for each row would cost a tenth of a batch.
#[derive(Default)]
pub(crate) struct Hot<'c> {
    pub(crate) send: Prepared<'c>,
    pub(crate) read_due: Prepared<'c>,
    pub(crate) claim: Prepared<'c>,
    pub(crate) held: Prepared<'c>,
    pub(crate) archive: Prepared<'c>,
    pub(crate) remove: Prepared<'c>,
    pub(crate) task_create: Prepared<'c>,
    pub(crate) task_key_tail: Prepared<'c>,
    /// One for each state that a task can be claimed in: both are read at the same time.
    pub(crate) task_due: [Prepared<'c>; 2],
    pub(crate) task_by_id: Prepared<'c>,
    pub(crate) task_claim: Prepared<'c>,
    pub(crate) task_held: Prepared<'c>,
    pub(crate) task_succeed: Prepared<'c>,
    pub(crate) task_enqueue: Prepared<'c>,
    pub(crate) outbox_put: Prepared<'c>,
}

impl std::fmt::Debug for Hot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hot")
    }
}

/// A statement, prepared when it is first used.
#[derive(Default)]
pub(crate) struct Prepared<'c>(Option<CachedStatement<'c>>);

impl<'c> Prepared<'c> {
    pub(crate) fn get(&mut self, connection: &'c Connection, sql: &str) -> rusqlite::Result<&mut CachedStatement<'c>> {
        match &mut self.0 {
            Some(statement) => Ok(statement),
            empty => Ok(empty.insert(connection.prepare_cached(sql)?)),
        }
    }
}

impl<'c> Session<'c> {
    pub(crate) fn new(connection: &'c Connection, rules: &'c Rules, memory: &'c mut Memory, now: Timestamp) -> Self {
        Self { connection, rules, memory, now, touched: Vec::new(), archived: 0, hot: Hot::default() }
    }

    /// Whom to tell after the commit.
    pub(crate) fn into_touched(self) -> Vec<(QueueName, Timestamp)> {
        self.touched
    }

    /// Something in the queue can be received at `due`.
    pub(crate) fn touch(&mut self, queue: &QueueName, due: Timestamp) {
        match self.touched.iter_mut().find(|(touched, _)| touched == queue) {
            Some((_, earliest)) => *earliest = due.min(*earliest),
            None => self.touched.push((queue.clone(), due)),
        }
    }

    /// Refuses to add a row of so many bytes when the disk is almost full.
    pub(crate) fn require_room(&mut self, bytes: usize) -> Result<(), Failure> {
        self.memory.room.take(self.connection, self.rules.headroom, bytes as u64)
    }

    /// Makes a queue that is missing, or refuses to.
    pub(crate) fn require_queue(&mut self, queue: &QueueName) -> Result<(), Failure> {
        if self.memory.queues.contains(queue) {
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

    /// Makes a queue that is missing, for messages that are not the caller's own choice to send.
    pub(crate) fn make_queue(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        if !self.memory.queues.contains(queue) {
            self.ensure_queue(queue)?;
            self.remember_queue(queue);
        }
        Ok(())
    }

    fn remember_queue(&mut self, queue: &QueueName) {
        // What is forgotten is only looked up again.
        if self.memory.queues.len() >= MOST_NAMES {
            self.memory.queues.clear();
        }
        self.memory.queues.insert(queue.clone());
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

    /// Lets the next message of a key go ahead, when the head was removed.
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
