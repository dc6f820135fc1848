//! A channel on which messages of one queue are consumed and settled.
//!
//! The broker pushes; the contract pulls. So every receive is a consumer of its own whose prefetch count is the number of
//! messages requested, and which is cancelled when they have arrived: the broker delivers only messages
//! that were requested, and counts no others as delivered.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use postrider_core::MessagingError;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::connection::await_answer;
use crate::error::{NOT_FOUND, code, failed};

/// Time limit for the broker to deliver a ready message, or to count a requeued one as ready.
pub(crate) const DELIVERY_TIMEOUT: Duration = Duration::from_millis(500);

/// The same while the broker counts messages as ready: its disk may be busy.
pub(crate) const MAX_DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Additional time for each requeued message.
const PER_MESSAGE: Duration = Duration::from_millis(1);

/// A channel that consumes one queue.
#[derive(Debug)]
pub(crate) struct ConsumerChannel {
    queue: String,
    channel: Channel,
    /// The last prefetch count, or zero when it is unknown. Locked while a consumer is created: a prefetch count applies to
    /// the next consumer of the channel.
    prefetch_count: Mutex<u16>,
    /// Locked while settlements are written: see [`Settled`].
    settled: Mutex<Settled>,
    consumers: AtomicU64,
}

/// A consumer that was not cancelled.
#[derive(Debug)]
pub(crate) struct QueueConsumer {
    deliveries: Consumer,
    tag: String,
}

/// The consumer of a partition, on a channel of its own.
///
/// When a consumer is cancelled while it holds messages, the broker delivers the following ones to the next consumer. So
/// the channel is closed first in every case: then all messages are requeued in order.
#[derive(Debug)]
pub(crate) struct SingleActiveConsumer {
    channel: Arc<ConsumerChannel>,
    /// `None` only before it consumes, and in `drop`.
    consumer: Option<Box<QueueConsumer>>,
}

impl Drop for SingleActiveConsumer {
    fn drop(&mut self) {
        let (channel, consumer) = (self.channel.clone(), self.consumer.take());
        // Without a runtime nothing can be written, and the connection closes with all its channels.
        if channel.is_open()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                if let Err(error) = channel.close().await {
                    tracing::debug!(?error, "a channel was not closed; the broker closes it when the connection ends");
                }
                drop(consumer);
            });
        }
    }
}

impl SingleActiveConsumer {
    /// Registers a consumer with the prefetch count `count`.
    pub(crate) async fn consume(queue: &str, channel: Channel, count: u16) -> Result<Self, ConsumeError> {
        let mut active = Self { channel: Arc::new(ConsumerChannel::new(queue, channel)), consumer: None };
        active.consumer = Some(Box::new(active.channel.consume(count).await?));
        Ok(active)
    }

    pub(crate) fn channel(&self) -> &Arc<ConsumerChannel> {
        &self.channel
    }

    /// Returns the next message if it arrives in time.
    pub(crate) async fn next_within(&mut self, time: Duration) -> Option<Result<Delivery, MessagingError>> {
        self.consumer.as_mut()?.next_within(time).await
    }
}

/// Why a consumer cannot be created.
pub(crate) enum ConsumeError {
    /// The queue does not exist.
    Missing,
    Failed(MessagingError),
}

impl From<MessagingError> for ConsumeError {
    fn from(error: MessagingError) -> Self {
        Self::Failed(error)
    }
}

impl ConsumerChannel {
    pub(crate) fn new(queue: &str, channel: Channel) -> Self {
        Self {
            queue: queue.to_owned(),
            channel,
            prefetch_count: Mutex::new(0),
            settled: Mutex::default(),
            consumers: AtomicU64::new(0),
        }
    }

    /// The queue's name on the broker.
    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    pub(crate) fn is_open(&self) -> bool {
        self.channel.status().connected()
    }

    /// Creates a consumer with the prefetch count `count`.
    pub(crate) async fn consume(&self, count: u16) -> Result<QueueConsumer, ConsumeError> {
        let tag = format!("c{}", self.consumers.fetch_add(1, Ordering::Relaxed));
        let mut prefetch_count = self.prefetch_count.lock().await;
        if *prefetch_count != count {
            // Unknown until the broker answers: a request without an answer may still have taken effect.
            *prefetch_count = 0;
            await_answer("receive", self.channel.basic_qos(count, BasicQosOptions::default())).await?;
            *prefetch_count = count;
        }
        let (queue, options) = (self.queue.as_str().into(), BasicConsumeOptions::default());
        let request = self.channel.basic_consume(queue, tag.as_str().into(), options, FieldTable::default());
        match tokio::time::timeout(crate::connection::ANSWER_TIMEOUT, request).await {
            Ok(Ok(deliveries)) => Ok(QueueConsumer { deliveries, tag }),
            Ok(Err(error)) if code(&error) == Some(NOT_FOUND) => Err(ConsumeError::Missing),
            Ok(Err(error)) => Err(failed("receive", error).into()),
            Err(_) => Err(crate::error::no_answer("receive").into()),
        }
    }

    /// Cancels a consumer whose prefetch count is used up: no more messages can arrive.
    pub(crate) async fn cancel(&self, consumer: QueueConsumer) -> Result<(), MessagingError> {
        let options = BasicCancelOptions { nowait: true };
        await_answer("receive", self.channel.basic_cancel(consumer.tag.into(), options)).await
    }

    /// Cancels a consumer and returns the messages that arrived before.
    pub(crate) async fn cancel_and_drain(&self, mut consumer: QueueConsumer) -> Result<Vec<Delivery>, MessagingError> {
        let cancel = self.channel.basic_cancel(consumer.tag.clone().into(), BasicCancelOptions::default());
        await_answer("receive", cancel).await?;
        let mut last = Vec::new();
        while let Some(delivery) = consumer.deliveries.next().await {
            last.push(delivery.map_err(|error| failed("receive", error))?);
        }
        Ok(last)
    }

    /// Acknowledges messages, with one `multiple` acknowledgement where every earlier delivery is settled too.
    pub(crate) async fn ack(&self, tags: Vec<u64>) -> Result<(), MessagingError> {
        let mut settled = self.settled.lock().await;
        let Acks { until, single } = settled.add(tags);
        if let Some(until) = until {
            let options = BasicAckOptions { multiple: true };
            await_answer("settle", self.channel.basic_ack(until, options)).await?;
        }
        let one = |tag| self.channel.basic_ack(tag, BasicAckOptions::default());
        await_answer("settle", futures_util::future::try_join_all(single.into_iter().map(one))).await.map(drop)
    }

    /// Requeues messages. In ascending order, because that is the order in which they are delivered again.
    pub(crate) async fn requeue(&self, mut tags: Vec<u64>) -> Result<(), MessagingError> {
        tags.sort_unstable();
        let mut settled = self.settled.lock().await;
        for tag in tags {
            settled.note(tag);
            // `basic.reject` and not `basic.nack`: newer brokers count only rejected deliveries.
            let options = BasicRejectOptions { requeue: true };
            await_answer("settle", self.channel.basic_reject(tag, options)).await?;
        }
        Ok(())
    }

    /// Waits until the broker has processed all frames written before, and returns how many messages are ready. The broker
    /// answers neither acknowledgements nor rejections, but it processes a channel in order.
    pub(crate) async fn catch_up(&self) -> Result<u32, MessagingError> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let look = self.channel.queue_declare(self.queue.as_str().into(), passive, FieldTable::default());
        await_answer("settle", look).await.map(|queue| queue.message_count())
    }

    /// Closes the channel: all its unacknowledged messages are requeued.
    pub(crate) async fn close(&self) -> Result<(), MessagingError> {
        match self.is_open() {
            true => await_answer("receive", self.channel.close(200, "done".into())).await,
            false => Ok(()),
        }
    }
}

/// Waits until `count` requeued messages are ready, which takes the broker a moment. Other consumers may have taken them, so
/// the wait is short. `ready` returns how many are ready, or `None` when the queue no longer exists.
pub(crate) async fn wait_until_ready<F>(count: usize, ready: impl Fn() -> F) -> Result<(), MessagingError>
where
    F: Future<Output = Result<Option<u32>, MessagingError>>,
{
    let end = Instant::now() + DELIVERY_TIMEOUT + PER_MESSAGE.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    while ready().await?.is_some_and(|ready| (ready as usize) < count) {
        if Instant::now() >= end {
            tracing::debug!(count, "not all requeued messages are ready; other consumers may have taken some");
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

impl QueueConsumer {
    /// Returns the next message. `None` means that the broker has cancelled the consumer: its queue was deleted.
    pub(crate) async fn next(&mut self) -> Option<Result<Delivery, MessagingError>> {
        self.deliveries.next().await.map(|delivery| delivery.map_err(|error| failed("receive", error)))
    }

    /// Returns the next message if it has arrived already.
    pub(crate) fn next_now(&mut self) -> Option<Result<Delivery, MessagingError>> {
        self.next().now_or_never().flatten()
    }

    /// Returns the next message if it arrives in time.
    pub(crate) async fn next_within(&mut self, time: Duration) -> Option<Result<Delivery, MessagingError>> {
        tokio::time::timeout(time, self.next()).await.ok().flatten()
    }

    /// Returns up to `count` messages, as long as each arrives in time.
    pub(crate) async fn up_to(&mut self, count: usize) -> Result<Vec<Delivery>, MessagingError> {
        let mut deliveries = Vec::new();
        while deliveries.len() < count
            && let Some(delivery) = self.next_within(DELIVERY_TIMEOUT).await
        {
            deliveries.push(delivery?);
        }
        Ok(deliveries)
    }
}

/// The settled deliveries of a channel. The broker numbers deliveries from one, without gaps.
///
/// A `multiple` acknowledgement settles every delivery up to a tag. It must not settle a delivery that is still leased, or
/// one that has arrived and was not read yet. So it is used only where every tag up to that one is known to be settled.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Every tag up to this one is settled.
    until: u64,
    /// Settled tags above `until`.
    beyond: BTreeSet<u64>,
}

/// The acknowledgements to write.
#[derive(Debug, PartialEq, Eq)]
struct Acks {
    /// One `multiple` acknowledgement up to this tag.
    until: Option<u64>,
    /// Acknowledgements of single tags.
    single: Vec<u64>,
}

impl Settled {
    fn add(&mut self, mut tags: Vec<u64>) -> Acks {
        tags.sort_unstable();
        let new: BTreeSet<u64> = tags.iter().copied().collect();
        let before = self.until;
        while self.beyond.remove(&(self.until + 1)) || new.contains(&(self.until + 1)) {
            self.until += 1;
        }
        let (in_order, single): (Vec<_>, Vec<_>) = tags.into_iter().partition(|tag| *tag <= self.until);
        self.beyond.extend(&single);
        match in_order.as_slice() {
            [] => Acks { until: None, single },
            // The tag itself may be settled already, and the broker closes a channel that settles a tag twice.
            [.., last] if self.until > before => Acks { until: Some(*last), single },
            _ => Acks { until: None, single: [in_order, single].concat() },
        }
    }

    /// Records a tag that was settled on its own.
    fn note(&mut self, tag: u64) {
        self.beyond.insert(tag);
        while self.beyond.remove(&(self.until + 1)) {
            self.until += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(until: impl Into<Option<u64>>, single: &[u64]) -> Acks {
        Acks { until: until.into(), single: single.to_vec() }
    }

    #[test]
    fn a_multiple_acknowledgement_covers_settled_tags_only() {
        let mut settled = Settled::default();
        assert_eq!(settled.add(vec![3, 1, 2]), run(3, &[]));
        // Tag 4 is still leased.
        assert_eq!(settled.add(vec![5, 6]), run(None, &[5, 6]));
        assert_eq!(settled.add(vec![8]), run(None, &[8]));
        // Now it is settled, and 5 and 6 were settled before: the acknowledgement goes up to 4 only.
        assert_eq!(settled.add(vec![4]), run(4, &[]));
        assert_eq!(settled.add(vec![7, 9, 11]), run(9, &[11]));
        settled.note(10);
        assert_eq!(settled.add(vec![12]), run(12, &[]));
        assert_eq!((settled.until, settled.beyond.len()), (12, 0));
    }
}
