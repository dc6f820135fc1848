//! The outbox: messages to queues of another store.

use std::time::Duration;

use postgres_types::ToSql;
use postrider_core::task::{OutboxBatch, OutboxRow};
use postrider_core::{ContentType, Deadline, Message, QueueName, Timestamp};
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;

use super::Tasks;
use super::rows::{duration, priority};
use crate::rows::{body, message_id, micros, time};

/// Upper bound of one statement.
const MAX_TAKEN: usize = 1000;

impl Tasks {
    /// Leases due messages of the outbox.
    pub(super) async fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<OutboxBatch, Undone> {
        const TAKE: &str = "take messages of the outbox";
        let (limit, lease, token) = (limit.min(MAX_TAKEN), micros(lease), rand::random::<i64>());
        let number = limit as i64;
        let found = persist(|| {
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&number, &lease, &token];
            self.ask(TAKE, deadline, &self.sql().outbox_take, parameters)
        });
        let found = found.await?;
        let columns = OutboxColumns::of(&found);
        let mut rows: Vec<(Timestamp, OutboxRow)> = found.iter().filter_map(|row| taken(row, columns, token)).collect();
        rows.sort_by_key(|(due_at, row)| (*due_at, row.id));
        let mut batch = OutboxBatch { rows: rows.into_iter().map(|(_, row)| row).collect(), next_due: None };
        if found.len() < limit {
            // An error here must not hide what was leased; the next message is then found by polling.
            let next = self.ask(TAKE, deadline, &self.sql().outbox_next_due, Vec::new()).await;
            let next = next.unwrap_or_default();
            batch.next_due = next.first().and_then(|row| row.get::<_, Option<i64>>("due_in")).map(duration);
        }
        Ok(batch)
    }

    /// Removes messages that were sent.
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

postrider_pg::columns! {
    /// The columns of `outbox_take.sql`.
    OutboxColumns { id, due_at, queue, message_id, priority, content_type, payload }
}

/// Reads a leased message; `None` if its queue or type is invalid: another program wrote it.
fn taken(row: &Row, columns: OutboxColumns, token: i64) -> Option<(Timestamp, OutboxRow)> {
    let content_type = match row.get::<_, Option<&str>>(columns.content_type) {
        None => ContentType::OCTET_STREAM,
        Some(name) => ContentType::parse(name).ok()?,
    };
    let message = Message::new(body(row, columns.payload))
        .id(message_id(row, columns.message_id))
        .priority(priority(row, columns.priority))
        .content_type(content_type);
    let queue = QueueName::new(row.get::<_, &str>(columns.queue)).ok()?;
    Some((time(row, columns.due_at), OutboxRow { id: row.get(columns.id), token, queue, message }))
}
