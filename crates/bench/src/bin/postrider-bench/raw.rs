//! The same work straight on the drivers: one table, one index, nothing that a queue must know beyond what is due.

pub(crate) mod mysql;
pub(crate) mod pgmq;
pub(crate) mod postgres;
pub(crate) mod rabbitmq;
pub(crate) mod spool;
pub(crate) mod sqlite;
pub(crate) mod sqs;

use std::time::Duration;

use crate::Failure;

/// A bare table on a server. Each answers how long it took.
pub(crate) trait RawServer {
    /// Sends that many bodies, a row a transaction, over eight connections.
    async fn send_one(&self, messages: usize, size: usize) -> Result<Duration, Failure>;

    /// Sends that many bodies over one connection, `batch` in a transaction, by the server's fastest statement.
    async fn send_batches(&self, messages: usize, batch: usize, size: usize) -> Result<Duration, Failure>;

    /// Claims and deletes until nothing is left, in two transactions a batch: a claim must be durable before the work,
    /// and the deletion comes after it.
    async fn drain(&self, messages: usize, batch: usize) -> Result<Duration, Failure>;

    /// Sends at a steady pace to somebody who waits for it and claims; answers how long each took, from the send to the
    /// end of the claim. A server that tells nobody of a row has none.
    async fn latency(&self, _messages: usize, _pace: usize, _size: usize) -> Result<Vec<Duration>, Failure> {
        Err("this server tells nobody of a row, so there is no latency to measure".into())
    }

    /// Removes the table.
    async fn remove(self) -> Result<(), Failure>;
}

/// How many connections send one row at a time.
pub(crate) const SENDERS: usize = 8;

/// In a task, because what drives the runtime from outside is woken more slowly than what runs in it.
pub(crate) async fn in_a_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(work).await?
}
