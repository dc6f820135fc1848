//! Short forms of the daily calls: one queue of one provider, default options and deadlines.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{FromBytes, Json};
use crate::deadline::Deadline;
use crate::disposition::Nack;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::queued_message::QueuedMessage;
use crate::receipt::ReceiptHandle;
use crate::receive_options::ReceiveOptions;
use crate::service::Provider;
use crate::stats::QueueStats;
use crate::typed::TypedMessaging;

/// A queue of a provider. Every call has the default deadline; the provider's own calls take any.
///
/// ```
/// # use postrider_core::{MemoryStore, Nack, Queue};
/// # #[derive(serde::Serialize)] struct Order { id: u64 }
/// # #[derive(serde::Deserialize)] struct OrderId { id: u64 }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), postrider_core::MessagingError> {
/// let orders = Queue::new(MemoryStore::new().open(), "orders")?;
/// orders.send_json(&Order { id: 7 }).await?;
/// for order in orders.receive_json::<OrderId>(10).await? {
///     assert_eq!(order.message.id, 7);
///     orders.ack(order).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Queue<P> {
    provider: P,
    name: QueueName,
}

impl<P: Provider> Queue<P> {
    /// A queue by its name. The first send creates it, if the provider creates queues.
    pub fn new(provider: P, name: impl AsRef<str>) -> Result<Self, MessagingError> {
        Ok(Self { provider, name: QueueName::new(name.as_ref())? })
    }

    /// The queue's name.
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// The provider.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// The queue's dead letters, as a queue.
    #[must_use]
    pub fn dead_letters(self) -> Self {
        Self { name: self.name.dead_letters(), ..self }
    }

    /// Sends a message; the answer is its id, once it is durable.
    pub async fn send(&self, message: Message) -> Result<MessageId, MessagingError> {
        self.provider.send_message(&self.name, message, Deadline::default()).await
    }

    /// Sends a value as JSON.
    pub async fn send_json<T: Serialize + ?Sized>(&self, value: &T) -> Result<MessageId, MessagingError> {
        let message = Message::json(value);
        self.send(message?).await
    }

    /// Leases up to `max` messages that are due, for 30 seconds.
    pub async fn receive(&self, max: usize) -> Result<Vec<QueuedMessage>, MessagingError> {
        self.receive_with(&ReceiveOptions::batch(max)).await
    }

    /// Leases up to `max` messages of JSON; one that cannot be decoded is dead-lettered.
    pub async fn receive_json<T: DeserializeOwned + Send + 'static>(
        &self,
        max: usize,
    ) -> Result<Vec<QueuedMessage<T>>, MessagingError> {
        let received: Vec<QueuedMessage<Json<T>>> = self.receive_with(&ReceiveOptions::batch(max)).await?;
        let value = |message: QueuedMessage<Json<T>>| {
            let (Json(value), envelope, lease) = message.into_leased_parts();
            QueuedMessage::from_leased_parts(value, envelope, lease)
        };
        Ok(received.into_iter().map(value).collect())
    }

    /// Leases messages with these options: how many, for how long, how long to wait for the first.
    pub async fn receive_with<T: FromBytes>(
        &self,
        options: &ReceiveOptions,
    ) -> Result<Vec<QueuedMessage<T>>, MessagingError> {
        self.provider.receive_typed(&self.name, options, Deadline::default()).await
    }

    /// Settles a message as done.
    pub async fn ack(&self, message: impl Into<ReceiptHandle>) -> Result<(), MessagingError> {
        self.provider.ack_message(&self.name, message.into(), Deadline::default()).await
    }

    /// Settles a message as not done: to be retried, released or dead-lettered.
    pub async fn nack(&self, message: impl Into<ReceiptHandle>, nack: Nack) -> Result<(), MessagingError> {
        self.provider.nack_message(&self.name, message.into(), nack, Deadline::default()).await
    }

    /// Sets the end of a message's lease to `extension` from now. The message settles by a new receipt if the store
    /// needs one.
    pub async fn extend<T>(&self, message: &mut QueuedMessage<T>, extension: Duration) -> Result<(), MessagingError> {
        let deadline = Deadline::default();
        let receipt = self.provider.extend_visibility(&self.name, message.receipt(), extension, deadline).await?;
        message.goes_on_by(receipt);
        Ok(())
    }

    /// Counts the queue's messages.
    pub async fn stats(&self) -> Result<QueueStats, MessagingError> {
        self.provider.queue_stats(&self.name, Deadline::default()).await
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::memory::MemoryStore;

    #[derive(Serialize)]
    struct Sent {
        id: u64,
    }

    /// Only read: it cannot be encoded.
    #[derive(Deserialize)]
    struct Read {
        id: u64,
    }

    #[tokio::test]
    async fn the_short_forms_send_receive_and_settle() {
        let orders = Queue::new(MemoryStore::new().open(), "orders").unwrap();
        for id in 1..=3 {
            orders.send_json(&Sent { id }).await.unwrap();
        }
        orders.send(Message::new("no JSON")).await.unwrap();
        let mut received = orders.receive_json::<Read>(10).await.unwrap().into_iter();
        let (first, second, mut third) = (received.next().unwrap(), received.next().unwrap(), received.next().unwrap());
        assert_eq!([&first, &second, &third].map(|read| read.message.id), [1, 2, 3]);
        assert!(received.next().is_none());
        orders.extend(&mut third, Duration::from_secs(90)).await.unwrap();
        orders.ack(first).await.unwrap();
        orders.nack(second, Nack::retry_after(Duration::from_secs(60))).await.unwrap();
        orders.ack(third).await.unwrap();
        let stats = orders.stats().await.unwrap();
        assert_eq!((stats.message_count(), stats.dead.value()), (Some(1), Some(1)));
        assert_eq!(&*orders.dead_letters().receive(10).await.unwrap()[0].message, b"no JSON");
    }

    #[test]
    fn a_queue_has_a_name_that_a_queue_can_have() {
        assert!(Queue::new(MemoryStore::new().open(), "no queue").is_err());
    }
}
