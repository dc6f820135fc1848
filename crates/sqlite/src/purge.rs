//! Where messages and queues are removed by an operator's word, a chunk at a time.
//!
//! A transaction holds the file's one write lock, and every other process waits for it; a million messages in one would
//! stop them all for seconds.

use std::collections::HashSet;

use postrider_core::{QueueName, Timestamp};

use crate::session::Session;
use crate::sql;

/// So many messages are removed in one transaction.
const CHUNK: usize = 2000;

/// Which messages of a queue go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Those that nobody has leased.
    Unleased,
    /// Every one.
    Everything,
}

impl Session<'_> {
    /// The newest message's row number: what a removal that begins now goes up to, or new messages would keep it going
    /// for ever.
    pub(crate) fn last_id(&mut self) -> rusqlite::Result<i64> {
        let last: Option<i64> = self.connection.prepare_cached(sql::LAST_ID)?.query_row([], |row| row.get(0))?;
        Ok(last.unwrap_or(0))
    }

    /// Removes a chunk of a queue's messages. Answers how many, and whether that was all.
    pub(crate) fn remove_some(
        &mut self,
        queue: &QueueName,
        up_to: i64,
        removal: Removal,
    ) -> rusqlite::Result<(u64, bool)> {
        let unleased_at = (removal == Removal::Unleased).then_some(self.now).map(Timestamp::as_micros);
        let chunk = i64::try_from(CHUNK).unwrap_or(i64::MAX);
        let rows: Vec<(i64, Vec<u8>, Option<String>)> = self
            .connection
            .prepare_cached(sql::SELECT_QUEUE)?
            .query_map((queue.as_str(), up_to, unleased_at, chunk), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let mut keys = HashSet::new();
        {
            let mut remove = self.connection.prepare_cached(sql::REMOVE)?;
            let mut forget = self.connection.prepare_cached(sql::FORGET_ATTEMPTS)?;
            let mut forget_death = self.connection.prepare_cached(sql::FORGET_DEAD_LETTER)?;
            for (id, message, key) in &rows {
                remove.execute([id])?;
                if queue.holds_dead_letters() {
                    forget_death.execute([id])?;
                }
                forget.execute([message])?;
                keys.extend(key.as_deref());
            }
        }
        if !queue.holds_dead_letters() {
            // What was sent meanwhile behind a head that is gone must not wait for it.
            for key in keys {
                self.promote(queue, key)?;
            }
        }
        Ok((rows.len() as u64, rows.len() < CHUNK))
    }

    /// Takes a queue's name off the list. Its messages are removed apart.
    pub(crate) fn unlist_queue(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        self.memory.queues.remove(queue);
        self.connection.prepare_cached(sql::DELETE_QUEUE)?.execute([queue.as_str()])?;
        for name in [queue.dead_letters(), queue.clone()] {
            self.connection.prepare_cached(sql::RESUME)?.execute([name.as_str()])?;
            self.memory.claims.remove(&name);
        }
        Ok(())
    }
}
