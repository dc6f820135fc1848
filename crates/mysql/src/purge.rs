//! Purges and deletions of queues, a chunk at a time.
//!
//! A transaction that removes keyed messages holds their stripes, for which senders to these keys wait.

use std::collections::HashSet;

use postrider_core::{Deadline, QueueName};
use postrider_provider::{Removal, Undone, persist};
use postrider_sql::Present;
use postrider_sql::stripes::{in_order, stripe};

use crate::connection::PAUSES;
use crate::error::busy;
use crate::literal::{self, fill};
use crate::rows::{self, positions};
use crate::send::{lock_stripes, promote};
use crate::store::Shared;

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
        let name = literal::bytes(queue.as_str().as_bytes());
        let found = self.ask(operation, deadline, fill(&self.database.sql.select_queue, &[("queue", &name)])).await?;
        let [id, key] = positions(&found, ["id", "ordering_key"]);
        let mut present: Vec<Present> =
            found.iter().map(|row| (rows::number(row, id), rows::optional_text(row, key))).collect();
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
        let (mut removed, mut left) = persist(|| self.try_remove_some(operation, queue, chosen, removal)).await?;
        for pause in PAUSES {
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(pause).await;
            let (more, still) = persist(|| self.try_remove_some(operation, queue, &left, removal)).await?;
            (removed, left) = (removed + more, still);
        }
        match removal {
            Removal::Everything if !left.is_empty() => Err(Undone::InTheWay(busy(operation, "a message of the queue"))),
            _ => Ok(removed),
        }
    }

    /// Removes messages that are not locked. Returns how many, and the locked ones.
    async fn try_remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chosen: &[Present],
        removal: Removal,
    ) -> Result<(u64, Vec<Present>), Undone> {
        // Dead letters have no order.
        let is_ordered = !queue.holds_dead_letters();
        let keys: Vec<&str> = chosen.iter().filter(|_| is_ordered).filter_map(|(_, key)| key.as_deref()).collect();
        let stripes = in_order(keys.iter().map(|key| stripe(queue, key)).collect());
        let wanted = literal::list(chosen.iter().map(|(row, _)| row));
        let name = literal::bytes(queue.as_str().as_bytes());
        let everything = if removal == Removal::Everything { "true" } else { "false" };
        let mut session = self.database.session(operation, Deadline::default()).await?;
        let sql = session.sql();
        let lock = lock_stripes(sql, &stripes);
        session.begin(lock).await?;
        let choose = |lock: &str| {
            fill(&sql.purge, &[("ids", &wanted), ("queue", &name), ("everything", everything), ("lock", lock)])
        };
        let mut answers =
            session.query(format!("{};\n{}", choose("for update skip locked"), choose(""))).await?.into_iter();
        let (gone, wanted_still) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        let taken: HashSet<i64> = gone.iter().map(|row| rows::number(row, "id")).collect();
        let locked: HashSet<i64> =
            wanted_still.iter().map(|row| rows::number(row, "id")).filter(|row| !taken.contains(row)).collect();
        let ids = literal::list(gone.iter().map(|row| rows::number(row, "id")));
        let messages = gone.iter().map(|row| (queue.as_str(), literal::bytes(rows::bytes(row, "message_id"))));
        let steps = vec![
            fill(&sql.forget_dead, &[("ids", &ids)]),
            fill(&sql.forget_attempts, &[("messages", &literal::attempts_of(messages))]),
            fill(&sql.remove, &[("these", &literal::these(&ids))]),
        ];
        // Messages sent meanwhile may be blocked by a head that is gone.
        let keys = keys.into_iter().map(|key| (queue.as_str(), key));
        let steps = promote(&mut session, steps, keys).await?;
        session.commit(steps.join(";\n")).await?;
        self.touch([queue]);
        let left = chosen.iter().filter(|(row, _)| locked.contains(row)).cloned().collect();
        Ok((gone.len() as u64, left))
    }
}
