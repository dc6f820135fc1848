//! The same work directly on the drivers: one table and one index on the due time.

pub(crate) mod mysql;
pub(crate) mod pgmq;
pub(crate) mod postgres;
pub(crate) mod rabbitmq;
pub(crate) mod spool;
pub(crate) mod sqlite;
pub(crate) mod sqs;

use std::time::Duration;

use crate::Failure;

/// A bare table on a server. Each method returns its duration.
pub(crate) trait RawServer {
    /// Sends messages over eight connections, one row a transaction.
    async fn send_one(&self, messages: usize, size: usize) -> Result<Duration, Failure>;

    /// Sends messages over one connection, `batch` in a transaction, by the server's fastest statement.
    async fn send_batches(&self, messages: usize, batch: usize, size: usize) -> Result<Duration, Failure>;

    /// Claims and deletes until the table is empty, in two transactions a batch: a claim must be durable before the work,
    /// and the deletion follows it.
    async fn drain(&self, messages: usize, batch: usize) -> Result<Duration, Failure>;

    /// Sends at a steady rate to a receiver that waits for hints and claims; returns the time of each message from send to
    /// the end of its claim. An error on servers without hints.
    async fn latency(&self, _messages: usize, _pace: usize, _size: usize) -> Result<Vec<Duration>, Failure> {
        Err("this server sends no hints, so there is no latency to measure".into())
    }

    /// Removes the table.
    async fn remove(self) -> Result<(), Failure>;
}

/// Number of connections that send single rows.
pub(crate) const SENDERS: usize = 8;

/// Runs work in a task, because the thread outside the runtime is woken more slowly than its workers.
pub(crate) async fn in_a_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(work).await?
}
