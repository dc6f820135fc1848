//! Messages held for a moment, to be listed or moved. Closing their channels requeues them.
//!
//! Of a partition only the first message is held. A requeued message joins the tail of the broker's list of returned
//! messages, which is served before all others: if that list had several messages and the first of them were then received
//! and returned alone, after a retry or a worker's death, the others would overtake it.

use std::collections::HashSet;
use std::sync::Arc;

use lapin::message::Delivery;
use postrider_broker::{Held, Hold, Stored};
use postrider_core::{MessagingError, QueueName, RowResults};

use crate::broker::RabbitmqBroker;
use crate::connection::LiveConnection;
use crate::consumer_channel::{
    ConsumeError, ConsumerChannel, DELIVERY_TIMEOUT, SingleActiveConsumer, wait_until_ready,
};
use crate::send::accepted;
use crate::wire;

/// Largest prefetch count of one consumer.
const MAX_PREFETCH: usize = 1000;

/// Attempts to receive messages that the broker counts as ready.
const ATTEMPTS: usize = 3;

/// Held messages of a queue: those without a key, then the first of each of its partitions.
#[derive(Debug)]
pub struct RabbitmqHold {
    broker: RabbitmqBroker,
    live: Arc<LiveConnection>,
    queue: QueueName,
    /// The broker's queues that are not read yet, the next one last.
    sources: Vec<String>,
    channels: Vec<Arc<ConsumerChannel>>,
    /// The consumers of partitions, kept because each must end with its channel and not before.
    active_consumers: Vec<SingleActiveConsumer>,
    /// Index of the channel and delivery tag of each held message; the position is `Held::place`.
    taken: Vec<(usize, u64)>,
    /// The entries of `taken` that were acknowledged.
    removed: HashSet<(usize, u64)>,
}

impl RabbitmqHold {
    pub(crate) fn new(
        broker: RabbitmqBroker,
        live: Arc<LiveConnection>,
        queue: QueueName,
        mut sources: Vec<String>,
    ) -> Self {
        sources.reverse();
        Self {
            broker,
            live,
            queue,
            sources,
            channels: Vec::new(),
            active_consumers: Vec::new(),
            taken: Vec::new(),
            removed: HashSet::new(),
        }
    }

    /// Returns the index of the channel for `source`, and opens it if needed.
    async fn channel_index(&mut self, source: &str) -> Result<usize, MessagingError> {
        let known = self.channels.iter().position(|channel| channel.queue() == source);
        if let Some(known) = known {
            return Ok(known);
        }
        self.channels.push(Arc::new(ConsumerChannel::new(source, self.live.channel("look").await?)));
        Ok(self.channels.len() - 1)
    }

    async fn take_from(&mut self, source: &str, count: usize) -> Result<Vec<Held>, MessagingError> {
        let counts = self.live.counts(source).await?;
        let wanted = counts.map_or(0, |counts| counts.ready as usize).min(count);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        match source == self.queue.as_str() {
            true => self.take_plain(source, wanted.min(MAX_PREFETCH)).await,
            false => self.take_head(source).await,
        }
    }

    async fn take_plain(&mut self, source: &str, wanted: usize) -> Result<Vec<Held>, MessagingError> {
        let index = self.channel_index(source).await?;
        let channel = self.channels[index].clone();
        let prefetch_count = u16::try_from(wanted).unwrap_or(u16::MAX);
        let mut consumer = match channel.consume(prefetch_count).await {
            Ok(consumer) => consumer,
            Err(ConsumeError::Missing) => return Ok(Vec::new()),
            Err(ConsumeError::Failed(error)) => return Err(error),
        };
        let mut deliveries = consumer.up_to(wanted).await?;
        deliveries.extend(channel.cancel_and_drain(consumer).await?);
        Ok(self.note(index, deliveries))
    }

    async fn take_head(&mut self, source: &str) -> Result<Vec<Held>, MessagingError> {
        let is_held = self.channels.iter().any(|channel| channel.queue() == source);
        if is_held {
            return Ok(Vec::new());
        }
        let mut active = match SingleActiveConsumer::consume(source, self.live.channel("look").await?, 1).await {
            Ok(active) => active,
            Err(ConsumeError::Missing) => return Ok(Vec::new()),
            Err(ConsumeError::Failed(error)) => return Err(error),
        };
        let Some(delivery) = active.next_within(DELIVERY_TIMEOUT).await else {
            // A worker consumes this partition. A message delivered when that worker leaves must be requeued at once.
            return active.channel().close().await.map(|()| Vec::new());
        };
        let delivery = delivery?;
        self.channels.push(active.channel().clone());
        self.active_consumers.push(active);
        Ok(self.note(self.channels.len() - 1, vec![delivery]))
    }

    fn note(&mut self, index: usize, deliveries: Vec<Delivery>) -> Vec<Held> {
        let mut held = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let arrived = wire::read(&self.queue, delivery);
            held.push(Held { stored: arrived.stored, place: self.taken.len() as u64 });
            self.taken.push((index, arrived.tag));
        }
        held
    }
}

impl Hold for RabbitmqHold {
    async fn take(&mut self, count: usize) -> Result<Vec<Held>, MessagingError> {
        while let Some(source) = self.sources.last().cloned() {
            for _ in 0..ATTEMPTS {
                let held = self.take_from(&source, count).await?;
                if !held.is_empty() {
                    return Ok(held);
                }
                // A partition that a worker consumes delivers nothing here.
                let is_own = source == self.queue.as_str();
                if !is_own || self.live.counts(&source).await?.is_none_or(|counts| counts.ready == 0) {
                    self.sources.pop();
                    break;
                }
            }
            if self.sources.last() == Some(&source) {
                return Err(MessagingError::busy(format!(
                    "RabbitMQ counts ready messages in '{source}' and delivered none in time; try again"
                )));
            }
        }
        Ok(Vec::new())
    }

    async fn remove(&mut self, places: &[u64]) -> Result<(), MessagingError> {
        for (index, channel) in self.channels.iter().enumerate() {
            let taken = places.iter().filter_map(|place| self.taken.get(usize::try_from(*place).ok()?));
            let tags: Vec<_> = taken.filter(|(of, _)| *of == index).map(|(_, tag)| *tag).collect();
            if !tags.is_empty() {
                self.removed.extend(tags.iter().map(|tag| (index, *tag)));
                channel.ack(tags).await?;
                channel.catch_up().await?;
            }
        }
        Ok(())
    }

    async fn move_to(
        &mut self,
        queue: &QueueName,
        moved: Vec<(u64, Stored)>,
    ) -> Result<RowResults<()>, MessagingError> {
        let (places, targets): (Vec<_>, Vec<_>) =
            moved.into_iter().map(|(place, stored)| (place, (queue.clone(), stored))).unzip();
        let outcomes = self.broker.put_copies(&self.live, &targets).await;
        let (mut rows, mut gone) = (Vec::with_capacity(places.len()), Vec::new());
        for ((place, outcome), (queue, stored)) in places.into_iter().zip(outcomes).zip(&targets) {
            let row = accepted("move", queue, stored.id, outcome);
            if row.is_ok() {
                gone.push(place);
            }
            rows.push(row);
        }
        self.remove(&gone).await?;
        Ok(rows)
    }

    async fn put_back(self) -> Result<(), MessagingError> {
        for (index, channel) in self.channels.iter().enumerate() {
            let left =
                self.taken.iter().filter(|(of, tag)| *of == index && !self.removed.contains(&(*of, *tag))).count();
            // The other messages of a partition were ready all the time.
            let others = if channel.queue() == self.queue.as_str() { 0 } else { channel.catch_up().await? };
            channel.close().await?;
            let ready = || async {
                let counts = self.live.counts(channel.queue()).await?;
                Ok(counts.map(|counts| counts.ready.saturating_sub(others)))
            };
            wait_until_ready(left, ready).await?;
        }
        Ok(())
    }
}
