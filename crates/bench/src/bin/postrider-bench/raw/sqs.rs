//! SQS by its SDK, in calls of ten messages, with the concurrency of the provider.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use postrider_sqs::aws_sdk_sqs::Client;
use postrider_sqs::aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, SendMessageBatchRequestEntry};
use tokio::task::JoinSet;

use crate::Failure;
use crate::raw::{RawServer, SENDERS};

/// Upper bound of the rows of one call.
const ROWS: usize = 10;

/// A temporary queue.
pub(crate) struct Raw {
    client: Client,
    queue: String,
}

impl Raw {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let client = postrider_sqs::client(url, Duration::from_secs(10)).await?;
        let name = format!("raw_{:08x}", rand::random::<u32>());
        let created = client.create_queue().queue_name(name).send().await?;
        Ok(Self { client, queue: created.queue_url.ok_or("the queue has no URL")? })
    }

    async fn send(&self, rows: usize, size: usize) -> Result<(), Failure> {
        let entry = |row: usize| {
            SendMessageBatchRequestEntry::builder().id(row.to_string()).message_body("x".repeat(size)).build()
        };
        let entries = (0..rows).map(entry).collect::<Result<Vec<_>, _>>()?;
        let sent = self.client.send_message_batch().queue_url(&self.queue).set_entries(Some(entries)).send().await?;
        if sent.successful.len() != rows {
            return Err(format!("SQS took {} of {rows} rows", sent.successful.len()).into());
        }
        Ok(())
    }

    /// Receives and deletes up to ten messages; returns their number.
    async fn receive(&self) -> Result<usize, Failure> {
        let receive = self.client.receive_message().queue_url(&self.queue).max_number_of_messages(10);
        let messages = receive.visibility_timeout(300).send().await?.messages.unwrap_or_default();
        if messages.is_empty() {
            return Ok(0);
        }
        let entry = |(row, receipt): (usize, Option<String>)| {
            DeleteMessageBatchRequestEntry::builder().id(row.to_string()).set_receipt_handle(receipt).build()
        };
        let receipts = messages.into_iter().map(|message| message.receipt_handle).enumerate();
        let entries = receipts.map(entry).collect::<Result<Vec<_>, _>>()?;
        let deleted =
            self.client.delete_message_batch().queue_url(&self.queue).set_entries(Some(entries)).send().await?;
        Ok(deleted.successful.len())
    }
}

impl RawServer for Raw {
    async fn send_one(&self, messages: usize, size: usize) -> Result<Duration, Failure> {
        let mut sending = JoinSet::new();
        let start = Instant::now();
        for number in 0..SENDERS {
            let count = messages / SENDERS + usize::from(number < messages % SENDERS);
            let (client, queue, body) = (self.client.clone(), self.queue.clone(), "x".repeat(size));
            sending.spawn(async move {
                for _ in 0..count {
                    client.send_message().queue_url(&queue).message_body(&body).send().await?;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        Ok(start.elapsed())
    }

    async fn send_batches(&self, messages: usize, batch: usize, size: usize) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut sent = 0;
        while sent < messages {
            let rows = batch.min(messages - sent);
            let calls = (0..rows.div_ceil(ROWS)).map(|call| self.send(ROWS.min(rows - call * ROWS), size));
            try_join_all(calls).await?;
            sent += rows;
        }
        Ok(start.elapsed())
    }

    async fn drain(&self, messages: usize, batch: usize) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut drained = 0;
        loop {
            let calls = (0..batch.div_ceil(ROWS)).map(|_| self.receive());
            let deleted: usize = try_join_all(calls).await?.into_iter().sum();
            if deleted == 0 {
                break;
            }
            drained += deleted;
        }
        let elapsed = start.elapsed();
        if drained != messages {
            return Err(format!("SQS drained {drained} of {messages} messages").into());
        }
        Ok(elapsed)
    }

    async fn remove(self) -> Result<(), Failure> {
        self.client.delete_queue().queue_url(&self.queue).send().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sent_messages_are_drained() {
        let raw = Raw::open(&Server::Sqs.url().unwrap()).await.unwrap();
        raw.send_batches(25, 20, 10).await.unwrap();
        raw.send_one(5, 10).await.unwrap();
        raw.drain(30, 20).await.unwrap();
        assert!(raw.drain(1, 20).await.is_err(), "nothing is left");
        raw.remove().await.unwrap();
    }
}
