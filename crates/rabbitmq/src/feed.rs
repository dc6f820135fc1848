//! A channel on which messages of one queue are received, and settled.
//!
//! The broker pushes; the law pulls. So every receive is a consumer of its own that is allowed as many messages as were
//! asked for, and that is cancelled when they have come: the broker never hands over what nobody wants, and so charges
//! no message for a delivery that was none.

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

use crate::error::{NOT_FOUND, code, failed};
use crate::link::answered;

/// How long the broker may take to hand over a message that is there, or to show one that was given back.
pub(crate) const HAND_OVER: Duration = Duration::from_millis(500);

/// The same while the broker says that messages are ready: its disk may be busy.
pub(crate) const SLOWEST_HAND_OVER: Duration = Duration::from_secs(10);

/// How much longer it may take for each of many messages that were given back.
const PER_MESSAGE: Duration = Duration::from_millis(1);

/// A channel for one queue.
#[derive(Debug)]
pub(crate) struct Feed {
    queue: String,
    channel: Channel,
    /// Held while a consumer is made: the allowance is set for whichever consumer comes next. Keeps the last allowance;
    /// zero, which nobody asks for, when it is not known.
    subscribing: Mutex<u16>,
    /// Held while settlements are written: see [`Settled`].
    settled: Mutex<Settled>,
    consumers: AtomicU64,
}

/// A consumer, as long as it is served.
#[derive(Debug)]
pub(crate) struct Subscription {
    consumer: Consumer,
    tag: String,
}

/// The consumer of a queue that serves one at a time, on a channel of its own.
///
/// A consumer that is cancelled while it holds messages hands over the ones behind them to somebody else. So the channel
/// is closed first, whatever ends this: then everything goes back in order.
#[derive(Debug)]
pub(crate) struct Sole {
    feed: Arc<Feed>,
    /// None only when it was never served, or at the end.
    consumer: Option<Box<Subscription>>,
}

impl Drop for Sole {
    fn drop(&mut self) {
        let (feed, consumer) = (self.feed.clone(), self.consumer.take());
        // Without a runtime nothing is written any more, and the connection ends with everything on it.
        if feed.is_open()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                if let Err(error) = feed.close().await {
                    tracing::debug!(?error, "a channel was not closed; the broker does it when the connection ends");
                }
                drop(consumer);
            });
        }
    }
}

impl Sole {
    /// Waits to be served with up to `count` messages.
    pub(crate) async fn subscribe(queue: &str, channel: Channel, count: u16) -> Result<Self, NoFeed> {
        let mut sole = Self { feed: Arc::new(Feed::new(queue, channel)), consumer: None };
        sole.consumer = Some(Box::new(sole.feed.subscribe(count).await?));
        Ok(sole)
    }

    pub(crate) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// The next message if it comes in time.
    pub(crate) async fn next_within(&mut self, time: Duration) -> Option<Result<Delivery, MessagingError>> {
        self.consumer.as_mut()?.next_within(time).await
    }
}

/// Why nothing can be received.
pub(crate) enum NoFeed {
    /// The queue is not there.
    Missing,
    Failed(MessagingError),
}

impl From<MessagingError> for NoFeed {
    fn from(error: MessagingError) -> Self {
        Self::Failed(error)
    }
}

impl Feed {
    pub(crate) fn new(queue: &str, channel: Channel) -> Self {
        Self {
            queue: queue.to_owned(),
            channel,
            subscribing: Mutex::new(0),
            settled: Mutex::default(),
            consumers: AtomicU64::new(0),
        }
    }

    /// The broker's name of the queue.
    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    pub(crate) fn is_open(&self) -> bool {
        self.channel.status().connected()
    }

    /// Asks for up to `count` messages.
    pub(crate) async fn subscribe(&self, count: u16) -> Result<Subscription, NoFeed> {
        let tag = format!("c{}", self.consumers.fetch_add(1, Ordering::Relaxed));
        let mut allowed = self.subscribing.lock().await;
        if *allowed != count {
            // Unknown until the broker answers: what is not answered in time may still be done.
            *allowed = 0;
            answered("receive", self.channel.basic_qos(count, BasicQosOptions::default())).await?;
            *allowed = count;
        }
        let (queue, options) = (self.queue.as_str().into(), BasicConsumeOptions::default());
        let consume = self.channel.basic_consume(queue, tag.as_str().into(), options, FieldTable::default());
        match tokio::time::timeout(crate::link::ANSWER, consume).await {
            Ok(Ok(consumer)) => Ok(Subscription { consumer, tag }),
            Ok(Err(error)) if code(&error) == Some(NOT_FOUND) => Err(NoFeed::Missing),
            Ok(Err(error)) => Err(failed("receive", error).into()),
            Err(_) => Err(crate::error::silent("receive").into()),
        }
    }

    /// Ends a consumer that has all that it is allowed: nothing more can come.
    pub(crate) async fn end(&self, subscription: Subscription) -> Result<(), MessagingError> {
        let options = BasicCancelOptions { nowait: true };
        answered("receive", self.channel.basic_cancel(subscription.tag.into(), options)).await
    }

    /// Ends a consumer, and answers what came before the end.
    pub(crate) async fn finish(&self, mut subscription: Subscription) -> Result<Vec<Delivery>, MessagingError> {
        let cancel = self.channel.basic_cancel(subscription.tag.clone().into(), BasicCancelOptions::default());
        answered("receive", cancel).await?;
        let mut last = Vec::new();
        while let Some(delivery) = subscription.consumer.next().await {
            last.push(delivery.map_err(|error| failed("receive", error))?);
        }
        Ok(last)
    }

    /// Acknowledges messages: all of a run with one word where every earlier one is settled too.
    pub(crate) async fn ack(&self, tags: Vec<u64>) -> Result<(), MessagingError> {
        let mut settled = self.settled.lock().await;
        let Run { until, alone } = settled.add(tags);
        if let Some(until) = until {
            let options = BasicAckOptions { multiple: true };
            answered("settle", self.channel.basic_ack(until, options)).await?;
        }
        let one = |tag| self.channel.basic_ack(tag, BasicAckOptions::default());
        answered("settle", futures_util::future::try_join_all(alone.into_iter().map(one))).await.map(drop)
    }

    /// Gives messages back to the queue. In ascending order, because that is the order in which they come again.
    pub(crate) async fn give_back(&self, mut tags: Vec<u64>) -> Result<(), MessagingError> {
        tags.sort_unstable();
        let mut settled = self.settled.lock().await;
        for tag in tags {
            settled.note(tag);
            // Rejected and not "nacked": newer brokers count only what is rejected.
            let options = BasicRejectOptions { requeue: true };
            answered("settle", self.channel.basic_reject(tag, options)).await?;
        }
        Ok(())
    }

    /// Waits until the broker has come to all that was written before, and answers how many messages are ready. It
    /// answers neither acknowledgements nor rejections, but it works through a channel in order.
    pub(crate) async fn catch_up(&self) -> Result<u32, MessagingError> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let look = self.channel.queue_declare(self.queue.as_str().into(), passive, FieldTable::default());
        answered("settle", look).await.map(|queue| queue.message_count())
    }

    /// Gives everything back that is held on this channel.
    pub(crate) async fn close(&self) -> Result<(), MessagingError> {
        match self.is_open() {
            true => answered("receive", self.channel.close(200, "done".into())).await,
            false => Ok(()),
        }
    }
}

/// Waits until so many messages that were given back can be seen by everybody: the broker takes a moment for it. Others
/// may have taken them, so it does not wait for long. `ready` answers how many can be seen, or none when the queue is gone.
pub(crate) async fn see_again<F>(count: usize, ready: impl Fn() -> F) -> Result<(), MessagingError>
where
    F: Future<Output = Result<Option<u32>, MessagingError>>,
{
    let end = Instant::now() + HAND_OVER + PER_MESSAGE.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    while ready().await?.is_some_and(|ready| (ready as usize) < count) {
        if Instant::now() >= end {
            tracing::debug!(count, "not all messages that were given back are seen yet; others may have taken some");
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

impl Subscription {
    /// The next message. `None` means that the broker has ended the consumer: its queue is gone.
    pub(crate) async fn next(&mut self) -> Option<Result<Delivery, MessagingError>> {
        self.consumer.next().await.map(|delivery| delivery.map_err(|error| failed("receive", error)))
    }

    /// The next message if it has come already.
    pub(crate) fn next_now(&mut self) -> Option<Result<Delivery, MessagingError>> {
        self.next().now_or_never().flatten()
    }

    /// The next message if it comes in time.
    pub(crate) async fn next_within(&mut self, time: Duration) -> Option<Result<Delivery, MessagingError>> {
        tokio::time::timeout(time, self.next()).await.ok().flatten()
    }

    /// Up to `count` messages, as long as they come in time.
    pub(crate) async fn up_to(&mut self, count: usize) -> Result<Vec<Delivery>, MessagingError> {
        let mut deliveries = Vec::new();
        while deliveries.len() < count
            && let Some(delivery) = self.next_within(HAND_OVER).await
        {
            deliveries.push(delivery?);
        }
        Ok(deliveries)
    }
}

/// Which deliveries of a channel are settled. The broker numbers them from one, without gaps.
///
/// One word can settle everything up to a number, and must not settle what somebody still holds, or what has come and
/// nobody has seen yet. So it is used only where every number up to there is known to be settled.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Everything up to here.
    until: u64,
    /// And these.
    beyond: BTreeSet<u64>,
}

/// What has to be written.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    /// Everything up to this number.
    until: Option<u64>,
    /// And these.
    alone: Vec<u64>,
}

impl Settled {
    fn add(&mut self, mut tags: Vec<u64>) -> Run {
        tags.sort_unstable();
        let new: BTreeSet<u64> = tags.iter().copied().collect();
        let before = self.until;
        while self.beyond.remove(&(self.until + 1)) || new.contains(&(self.until + 1)) {
            self.until += 1;
        }
        let (in_run, alone): (Vec<_>, Vec<_>) = tags.into_iter().partition(|tag| *tag <= self.until);
        self.beyond.extend(&alone);
        match in_run.as_slice() {
            [] => Run { until: None, alone },
            // The number itself may have been settled before, and a second word about it would cost the channel.
            [.., last] if self.until > before => Run { until: Some(*last), alone },
            _ => Run { until: None, alone: [in_run, alone].concat() },
        }
    }

    /// Something was settled by a word of its own.
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

    fn run(until: impl Into<Option<u64>>, alone: &[u64]) -> Run {
        Run { until: until.into(), alone: alone.to_vec() }
    }

    #[test]
    fn a_run_is_settled_by_one_word_and_never_more_than_it() {
        let mut settled = Settled::default();
        assert_eq!(settled.add(vec![3, 1, 2]), run(3, &[]));
        // Number four is held by somebody.
        assert_eq!(settled.add(vec![5, 6]), run(None, &[5, 6]));
        assert_eq!(settled.add(vec![8]), run(None, &[8]));
        // Now it is not, and five and six have been settled before: the word goes up to four only.
        assert_eq!(settled.add(vec![4]), run(4, &[]));
        assert_eq!(settled.add(vec![7, 9, 11]), run(9, &[11]));
        settled.note(10);
        assert_eq!(settled.add(vec![12]), run(12, &[]));
        assert_eq!((settled.until, settled.beyond.len()), (12, 0));
    }
}
