//! Where messages and queues are removed by an operator's word, a chunk at a time.
//!
//! A transaction that removes keyed messages holds their stripes, and whoever sends to the same keys waits for its end. So
//! it waits for nobody's row itself.

use std::time::Instant;

use postrider_core::{Deadline, QueueName};
use postrider_provider::{Removal, Undone, persist};
use postrider_sql::Present;
use postrider_sql::stripes::{in_order, stripe};

use crate::store::{Shared, in_the_way};

/// So many messages are removed in one transaction.
const CHUNK: usize = 2000;

impl Shared {
    /// The messages of a queue at this moment, in chunks. A removal goes through these and no others, or new ones would
    /// keep it going for ever.
    pub(crate) async fn present(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Present>>, Undone> {
        let name = queue.as_str();
        let rows = self.ask(operation, deadline, &self.database.sql.select_queue, vec![&name]).await?;
        let mut present: Vec<Present> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        present.sort_unstable();
        Ok(present.chunks(CHUNK).map(<[Present]>::to_vec).collect())
    }

    /// Removes those of a queue's messages that are still there, and answers how many.
    pub(crate) async fn remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chosen: &[Present],
        removal: Removal,
    ) -> Result<u64, Undone> {
        persist(|| self.try_remove_some(operation, queue, chosen, removal)).await
    }

    async fn try_remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chosen: &[Present],
        removal: Removal,
    ) -> Result<u64, Undone> {
        let began = Instant::now();
        let rows: Vec<i64> = chosen.iter().map(|(row, _)| *row).collect();
        // A dead-letter queue orders nothing.
        let is_ordered = !queue.holds_dead_letters();
        let keys: Vec<&str> = chosen.iter().filter(|_| is_ordered).filter_map(|(_, key)| key.as_deref()).collect();
        let (name, everything) = (queue.as_str(), removal == Removal::Everything);
        let mut session = self.database.session(operation, Deadline::default()).await?;
        session.begin().await?;
        self.await_stripes(&session, &in_order(keys.iter().map(|key| stripe(queue, key)).collect())).await?;
        let found = session.query(&session.sql().purge, &[&rows, &name, &everything]).await?;
        // What was sent meanwhile behind a head that is gone must not wait for it.
        self.promote(&session, keys.into_iter().map(|key| (name, key))).await?;
        session.commit().await?;
        self.touch([queue], began);
        let gone = found.iter().filter(|row| row.get(1)).count();
        if gone < found.len() {
            return Err(in_the_way(operation, "some messages are in transactions that have not ended, and were left"));
        }
        Ok(gone as u64)
    }
}
