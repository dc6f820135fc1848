//! Purges and deletions of queues, a chunk at a time.
//!
//! A transaction that removes keyed messages holds their stripes, for which senders to these keys wait. So it waits for
//! no row lock itself.

use std::time::Instant;

use postrider_core::{Deadline, QueueName};
use postrider_provider::{Removal, Undone, persist};
use postrider_sql::Present;
use postrider_sql::stripes::{in_order, stripe};

use crate::rows::positions;
use crate::store::{Shared, in_the_way};

/// Messages removed in one transaction.
const CHUNK: usize = 2000;

impl Shared {
    /// Returns the messages of a queue at this moment, in chunks. A removal handles only these; otherwise new messages
    /// could keep it going for ever.
    pub(crate) async fn present(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Present>>, Undone> {
        let name = queue.as_str();
        let rows = self.ask(operation, deadline, &self.database.sql.select_queue, vec![&name]).await?;
        let [id, key] = positions(&rows, ["id", "ordering_key"]);
        let mut present: Vec<Present> = rows.iter().map(|row| (row.get(id), row.get(key))).collect();
        present.sort_unstable();
        Ok(present.chunks(CHUNK).map(<[Present]>::to_vec).collect())
    }

    /// Removes the messages that still exist. Returns how many.
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
        // Dead letters have no order.
        let is_ordered = !queue.holds_dead_letters();
        let keys: Vec<&str> = chosen.iter().filter(|_| is_ordered).filter_map(|(_, key)| key.as_deref()).collect();
        let (name, everything) = (queue.as_str(), removal == Removal::Everything);
        let mut session = self.database.session(operation, Deadline::default()).await?;
        session.begin().await?;
        self.await_stripes(&session, &in_order(keys.iter().map(|key| stripe(queue, key)).collect())).await?;
        let found = session.query(&session.sql().purge, &[&rows, &name, &everything]).await?;
        // Messages sent meanwhile may be blocked by a head that is gone.
        self.promote(&session, keys.into_iter().map(|key| (name, key))).await?;
        session.commit().await?;
        self.touch([queue], began);
        let gone = found.iter().filter(|row| row.get("is_gone")).count();
        if gone < found.len() {
            return Err(in_the_way(operation, "open transactions have locked some messages, which were left"));
        }
        Ok(gone as u64)
    }
}
