//! PGMQ by its own functions.

use std::time::{Duration, Instant};

use postrider_pgmq::tokio_postgres::{self, Client, NoTls};

use crate::Failure;

/// A temporary queue.
pub(crate) struct Raw {
    queue: String,
    client: Client,
}

impl Raw {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let (client, connection) = tokio_postgres::connect(url.strip_prefix("pgmq+").unwrap_or(url), NoTls).await?;
        // The connection must be polled for the client to progress.
        tokio::spawn(connection);
        let queue = format!("raw_{:08x}", rand::random::<u32>());
        client.execute("select pgmq.create($1)", &[&queue]).await?;
        Ok(Self { queue, client })
    }

    /// Sends messages, `batch` in a transaction. A body is JSON of the length of the provider's.
    pub(crate) async fn send_batches(&self, messages: usize, batch: usize, size: usize) -> Result<Duration, Failure> {
        let statement = self.client.prepare("select count(*) from pgmq.send_batch($1, $2::text[]::jsonb[])").await?;
        let body = format!("{{\"text\":\"{}\"}}", "x".repeat(size));
        let start = Instant::now();
        let mut sent = 0;
        while sent < messages {
            let bodies = vec![&body; batch.min(messages - sent)];
            self.client.query(&statement, &[&self.queue, &bodies]).await?;
            sent += bodies.len();
        }
        Ok(start.elapsed())
    }

    /// Reads and deletes until the queue is empty, in two transactions a batch.
    pub(crate) async fn drain(&self, messages: usize, batch: usize) -> Result<Duration, Failure> {
        let read = self.client.prepare("select msg_id, message::text from pgmq.read($1, 30, $2)").await?;
        let delete = self.client.prepare("select count(*) from pgmq.delete($1, $2::bigint[])").await?;
        let (start, limit) = (Instant::now(), i32::try_from(batch)?);
        let mut drained = 0;
        loop {
            let rows = self.client.query(&read, &[&self.queue, &limit]).await?;
            if rows.is_empty() {
                break;
            }
            // The body is read, as a handler would.
            let bodies: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            drop(bodies);
            drained += self.client.query_one(&delete, &[&self.queue, &ids]).await?.get::<_, i64>(0);
        }
        let elapsed = start.elapsed();
        if drained != i64::try_from(messages)? {
            return Err(format!("PGMQ drained {drained} of {messages} messages").into());
        }
        Ok(elapsed)
    }

    pub(crate) async fn remove(self) -> Result<(), Failure> {
        self.client.execute("select pgmq.drop_queue($1)", &[&self.queue]).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sent_messages_are_drained() {
        let raw = Raw::open(&Server::Pgmq.url().unwrap()).await.unwrap();
        raw.send_batches(250, 100, 10).await.unwrap();
        raw.drain(250, 100).await.unwrap();
        assert!(raw.drain(1, 100).await.is_err(), "nothing is left");
        raw.remove().await.unwrap();
    }
}
