//! What queues and the outbox bring.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::task::{OutboxRow, TaskId, TaskMessage, TaskStore};
use postrider_core::{ContentType, MessagingError, Priority, Provider, QueueName, QueuedMessage, ReceiveOptions};

use super::fixture::MANY;
use crate::probe::{LONG, Stop, soon};

/// A message of a queue or the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Brought {
    pub(super) body: Bytes,
    pub(super) priority: Priority,
    pub(super) is_json: bool,
}

impl Brought {
    /// The task of the message.
    pub(super) fn task(&self) -> Result<TaskId, Stop> {
        Ok(TaskMessage::read(&self.body)?)
    }
}

/// Receives and acknowledges every ready message of a queue.
pub(super) async fn drain<Q: Provider>(queue: &Q, name: &QueueName) -> Result<Vec<Brought>, Stop> {
    let options = ReceiveOptions::batch(100).visibility(LONG).max_receive_count(1000);
    let mut brought = Vec::new();
    loop {
        let received: Vec<QueuedMessage> = queue.receive_messages(name, &options, soon()).await?;
        if received.is_empty() {
            return Ok(brought);
        }
        for message in received {
            brought.push(Brought {
                body: message.message.clone(),
                priority: message.envelope.priority,
                is_json: message.envelope.content_type == ContentType::JSON,
            });
            queue.ack_message(name, message, soon()).await?;
        }
    }
}

/// The tasks of the ready messages of a queue.
pub(super) async fn drain_tasks<Q: Provider>(queue: &Q, name: &QueueName) -> Result<Vec<TaskId>, Stop> {
    drain(queue, name).await?.iter().map(Brought::task).collect()
}

/// Takes every due row of the outbox. Rows of other tests are marked as sent.
pub(super) async fn take_all<S: TaskStore>(
    store: &S,
    lease: Duration,
    is_own: impl Fn(&OutboxRow) -> bool,
) -> Result<Vec<OutboxRow>, MessagingError> {
    let mut own = Vec::new();
    loop {
        let batch = store.take_outbox(MANY, lease, soon()).await?;
        let taken = batch.rows.len();
        let (mine, others): (Vec<_>, Vec<_>) = batch.rows.into_iter().partition(|row| is_own(row));
        own.extend(mine);
        let others: Vec<(i64, i64)> = others.iter().map(|row| (row.id, row.token)).collect();
        if !others.is_empty() {
            store.outbox_sent(&others, soon()).await?;
        }
        if taken < MANY {
            return Ok(own);
        }
    }
}

/// Sends every due PENDING task.
pub(super) async fn enqueue_all<S: TaskStore>(store: &S) -> Result<usize, Stop> {
    let mut count = 0;
    loop {
        let enqueued = store.enqueue_due(MANY, soon()).await?.count;
        count += enqueued;
        if enqueued < MANY {
            return Ok(count);
        }
    }
}
