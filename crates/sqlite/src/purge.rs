//! Removes messages and queues on an operator's request, a chunk at a time.
//!
//! A transaction holds the file's one write lock while every other process waits; one transaction over a million
//! messages would block them for seconds.

use std::collections::HashSet;

use postrider_core::{QueueName, Timestamp};
use postrider_provider::Removal;
use rusqlite::{Connection, OptionalExtension};

use crate::session::Session;
use crate::sql;

/// Messages removed in one transaction.
pub(crate) const CHUNK: usize = 2000;

/// A message that was in the queue when a removal began. Both row number and message id, because a new message can get
/// the number of a removed row.
pub(crate) type Present = (i64, Vec<u8>);

/// The messages of a queue at this moment. A removal is limited to these; with new messages it might never end.
pub(crate) fn present(connection: &Connection, queue: &QueueName) -> rusqlite::Result<Vec<Present>> {
    let mut statement = connection.prepare_cached(sql::SELECT_QUEUE)?;
    let rows = statement.query_map([queue.as_str()], |row| Ok((row.get("id")?, row.get("message_id")?)))?;
    rows.collect()
}

impl Session<'_> {
    /// The row number of the newest message; 0 if there is none.
    pub(crate) fn last_id(&mut self) -> rusqlite::Result<i64> {
        let last: Option<i64> = self.connection.prepare_cached(sql::LAST_ID)?.query_row([], |row| row.get(0))?;
        Ok(last.unwrap_or(0))
    }

    /// Removes those of the chosen messages that are still in the queue, and returns how many.
    pub(crate) fn remove_some(
        &mut self,
        queue: &QueueName,
        chosen: &[Present],
        removal: Removal,
    ) -> rusqlite::Result<u64> {
        let unleased_at = (removal == Removal::Unleased).then_some(self.now).map(Timestamp::as_micros);
        let (origin, mut keys) = (queue.origin(), HashSet::new());
        let mut removed = 0;
        {
            let mut find = self.connection.prepare_cached(sql::REMOVABLE)?;
            let mut remove = self.connection.prepare_cached(sql::REMOVE)?;
            let mut forget = self.connection.prepare_cached(sql::FORGET_ATTEMPTS)?;
            let mut forget_death = self.connection.prepare_cached(sql::FORGET_DEAD_LETTER)?;
            for (id, message) in chosen {
                let parameters = (id, queue.as_str(), message, unleased_at);
                let found = find.query_row(parameters, |row| Ok(row.get::<_, Option<String>>(0).unwrap_or_default()));
                let Some(key) = found.optional()? else { continue };
                remove.execute([id])?;
                if queue.holds_dead_letters() {
                    forget_death.execute([id])?;
                }
                forget.execute((origin.as_str(), message))?;
                keys.extend(key);
                removed += 1;
            }
        }
        if !queue.holds_dead_letters() {
            // Messages sent meanwhile behind a removed head must not wait for it.
            for key in keys {
                self.promote(queue, &key)?;
            }
        }
        Ok(removed)
    }

    /// Removes the name and the pause of a queue. Its messages are removed separately.
    pub(crate) fn unlist_queue(&mut self, queue: &QueueName) -> rusqlite::Result<()> {
        self.cache.queues.remove(queue);
        self.connection.prepare_cached(sql::DELETE_QUEUE)?.execute([queue.as_str()])?;
        for name in [queue.dead_letters(), queue.clone()] {
            self.connection.prepare_cached(sql::RESUME)?.execute([name.as_str()])?;
            self.cache.claims.remove(&name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::{Deadline, Message, MessagingService, QueueAdmin};

    use super::*;
    use crate::{SqliteOptions, SqliteStore};

    #[tokio::test]
    async fn a_message_with_the_row_number_of_a_removed_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("queues.db");
        let store = SqliteStore::open(&file, SqliteOptions::default()).await.unwrap();
        let provider = store.connect().await.unwrap();
        let (queue, soon) = (QueueName::new("orders").unwrap(), Deadline::default);
        let messages = (0..3).map(|n| Message::new(format!("{n}"))).collect();
        provider.send_batch(&queue, messages, soon()).await.unwrap();
        let connection = Connection::open(&file).unwrap();
        let before = present(&connection, &queue).unwrap();
        // The first chunk of the removal takes the newest row.
        let chunks = [vec![before[2].clone()], before];
        for (n, chunk) in chunks.into_iter().enumerate() {
            let name = queue.clone();
            let remove = move |session: &mut Session<'_>| Ok(session.remove_some(&name, &chunk, Removal::Unleased)?);
            let removed = provider.write("purge", soon(), remove).await.unwrap();
            assert_eq!(removed, if n == 0 { 1 } else { 2 });
            if n == 0 {
                provider.send_message(&queue, Message::new("accepted meanwhile"), soon()).await.unwrap();
                let newest = present(&connection, &queue).unwrap().into_iter().map(|(id, _)| id).max();
                assert_eq!(newest, Some(3), "the row number is used again");
            }
        }
        assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().message_count(), Some(1));
    }
}
