//! Messages to queues that are elsewhere.

use std::time::Duration;

use postgres_types::ToSql;
use postrider_core::task::{OutboxBatch, OutboxRow};
use postrider_core::{ContentType, Deadline, Message, QueueName, Timestamp};
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;

use super::Tasks;
use super::rows::{duration, priority};
use crate::rows::{body, message_id, micros, time};

/// So many messages are taken by one statement at most.
const MOST_TAKEN: usize = 1000;

impl Tasks {
    /// Takes due messages to be sent.
    pub(super) async fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<OutboxBatch, Undone> {
        const TAKE: &str = "take messages of the outbox";
        let (limit, lease, token) = (limit.min(MOST_TAKEN), micros(lease), rand::random::<i64>());
        let number = limit as i64;
        let found = persist(|| {
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&number, &lease, &token];
            self.ask(TAKE, deadline, &self.sql().outbox_take, parameters)
        });
        let found = found.await?;
        let mut rows: Vec<(Timestamp, OutboxRow)> = found.iter().filter_map(|row| taken(row, token)).collect();
        rows.sort_by_key(|(due_at, row)| (*due_at, row.id));
        let mut batch = OutboxBatch { rows: rows.into_iter().map(|(_, row)| row).collect(), next_due: None };
        if found.len() < limit {
            // What was taken must be told: without this the next one is only found by a look.
            let next = self.ask(TAKE, deadline, &self.sql().outbox_next_due, Vec::new()).await;
            let next = next.unwrap_or_default();
            batch.next_due = next.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(duration);
        }
        Ok(batch)
    }

    /// These messages were sent, for certain.
    pub(super) async fn outbox_sent(&self, rows: &[(i64, i64)], deadline: Deadline) -> Result<(), Undone> {
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        rows.dedup();
        if rows.is_empty() {
            return Ok(());
        }
        let (ids, tokens): (Vec<i64>, Vec<i64>) = rows.into_iter().unzip();
        let sent = persist(|| self.ask("empty the outbox", deadline, &self.sql().outbox_sent, vec![&ids, &tokens]));
        sent.await.map(drop)
    }
}

/// A message that was taken; `None` when its queue is none, and so was not written by us.
fn taken(row: &Row, token: i64) -> Option<(Timestamp, OutboxRow)> {
    let content_type = match row.get::<_, Option<&str>>(5) {
        None => ContentType::OCTET_STREAM,
        Some(name) => ContentType::parse(name).ok()?,
    };
    let message =
        Message::new(body(row, 6)).id(message_id(row, 3)).priority(priority(row, 4)).content_type(content_type);
    let queue = QueueName::new(row.get::<_, &str>(2)).ok()?;
    Some((time(row, 1), OutboxRow { id: row.get(0), token, queue, message }))
}
