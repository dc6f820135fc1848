//! RabbitMQ directly on lapin: one quorum queue, as the provider declares it, and confirms.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use postrider_rabbitmq::lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use postrider_rabbitmq::lapin::types::{AMQPValue, FieldTable};
use postrider_rabbitmq::lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, PublisherConfirm,
};
use tokio::task::JoinSet;

use crate::Failure;
use crate::raw::in_a_task;

/// Upper bound of unconfirmed sends, and of unacknowledged deliveries.
pub(crate) const WINDOW: usize = 200;

const PERSISTENT: u8 = 2;

/// A temporary queue.
pub(crate) struct Raw {
    connection: Connection,
    queue: String,
}

impl Raw {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let raw = Self { connection, queue: format!("raw_{:08x}", rand::random::<u32>()) };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let channel = raw.connection.create_channel().await?;
        channel.queue_declare(raw.queue.as_str().into(), durable, arguments).await?;
        channel.close(200, "done".into()).await?;
        Ok(raw)
    }

    async fn publisher(&self) -> Result<Publisher, Failure> {
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Publisher { channel, queue: self.queue.clone() })
    }

    async fn consumer(&self) -> Result<Consumer, Failure> {
        let channel = self.connection.create_channel().await?;
        channel.basic_qos(u16::try_from(WINDOW)?, BasicQosOptions::default()).await?;
        let (queue, tag) = (self.queue.as_str().into(), "".into());
        Ok(channel.basic_consume(queue, tag, BasicConsumeOptions::default(), FieldTable::default()).await?)
    }

    /// Sends messages by callers that each wait for a confirm before the next send. The callers share a channel.
    pub(crate) async fn send_one(&self, messages: usize, callers: usize, size: usize) -> Result<Duration, Failure> {
        let publisher = Arc::new(self.publisher().await?);
        let mut sending = JoinSet::new();
        let start = Instant::now();
        for caller in 0..callers {
            let publisher = publisher.clone();
            let count = messages / callers + usize::from(caller < messages % callers);
            sending.spawn(async move {
                let body = vec![b'x'; size];
                for _ in 0..count {
                    confirmed(publisher.publish(&body).await?).await?;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(caller) = sending.join_next().await {
            caller??;
        }
        Ok(start.elapsed())
    }

    /// Sends messages with a window of outstanding confirms.
    pub(crate) async fn send(&self, messages: usize, size: usize) -> Result<Duration, Failure> {
        let publisher = self.publisher().await?;
        in_a_task(async move {
            let body = vec![b'x'; size];
            let mut open = VecDeque::with_capacity(WINDOW);
            let start = Instant::now();
            for _ in 0..messages {
                if open.len() == WINDOW
                    && let Some(oldest) = open.pop_front()
                {
                    confirmed(oldest).await?;
                }
                open.push_back(publisher.publish(&body).await?);
            }
            for confirm in open {
                confirmed(confirm).await?;
            }
            Ok(start.elapsed())
        })
        .await
    }

    /// Consumes and acknowledges one by one.
    pub(crate) async fn drain(&self, messages: usize) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut consumer = self.consumer().await?;
        in_a_task(async move {
            for _ in 0..messages {
                let delivery = consumer.next().await.ok_or("the consumer has ended")??;
                delivery.ack(BasicAckOptions::default()).await?;
            }
            Ok(start.elapsed())
        })
        .await
    }

    /// Sends at a steady rate to a consumer; returns the time of each message from send to delivery.
    pub(crate) async fn latency(&self, messages: usize, pace: usize, size: usize) -> Result<Vec<Duration>, Failure> {
        let mut consumer = self.consumer().await?;
        let origin = Instant::now();
        let receiving = tokio::spawn(async move {
            let mut times = Vec::with_capacity(messages);
            while times.len() < messages {
                let delivery = consumer.next().await.ok_or("the consumer has ended")??;
                let now = origin.elapsed();
                let sent_at: [u8; 16] =
                    delivery.data.get(..16).and_then(|start| start.try_into().ok()).ok_or("no time")?;
                times.push(now.saturating_sub(Duration::from_nanos_u128(u128::from_le_bytes(sent_at))));
                delivery.ack(BasicAckOptions::default()).await?;
            }
            Ok::<_, Failure>(times)
        });
        let publisher = Arc::new(self.publisher().await?);
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(pace)?);
        let mut sending = JoinSet::new();
        for _ in 0..messages {
            ticks.tick().await;
            let publisher = publisher.clone();
            sending.spawn(async move {
                let mut body = vec![b'x'; size.max(16)];
                body[..16].copy_from_slice(&origin.elapsed().as_nanos().to_le_bytes());
                confirmed(publisher.publish(&body).await?).await
            });
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        receiving.await?
    }

    pub(crate) async fn remove(self) -> Result<(), Failure> {
        let channel = self.connection.create_channel().await?;
        channel.queue_delete(self.queue.as_str().into(), QueueDeleteOptions::default()).await?;
        // Fails if dropped channels are still closing.
        let _ = self.connection.close(200, "done".into()).await;
        Ok(())
    }
}

struct Publisher {
    channel: Channel,
    queue: String,
}

impl Publisher {
    async fn publish(&self, body: &[u8]) -> Result<PublisherConfirm, Failure> {
        let (queue, properties) =
            (self.queue.as_str().into(), BasicProperties::default().with_delivery_mode(PERSISTENT));
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        Ok(self.channel.basic_publish("".into(), queue, options, body, properties).await?)
    }
}

async fn confirmed(confirm: PublisherConfirm) -> Result<(), Failure> {
    match confirm.await? {
        Confirmation::Ack(None) => Ok(()),
        other => Err(format!("the broker did not confirm a message: {other:?}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sent_messages_are_drained() {
        let raw = Raw::open(&Server::Rabbitmq.url().unwrap()).await.unwrap();
        raw.send_one(20, 8, 10).await.unwrap();
        raw.send(500, 200).await.unwrap();
        raw.drain(520).await.unwrap();
        assert_eq!(raw.latency(5, 1000, 10).await.unwrap().len(), 5);
        raw.remove().await.unwrap();
    }
}
