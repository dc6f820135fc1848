//! Messages that are held for a moment, to be looked at or moved. Closing their channels puts them back.
//!
//! Of a partition only the first message is held. What comes back joins the tail of the broker's list of returned messages,
//! which is served before all others: if several were in it, the first of them would be overtaken when it is received
//! and comes back alone, at a retry or with its worker's end.

use std::collections::HashSet;
use std::sync::Arc;

use lapin::message::Delivery;
use postrider_broker::{Held, Hold, Stored};
use postrider_core::{MessagingError, QueueName, RowResults};

use crate::broker::RabbitmqBroker;
use crate::feed::{Feed, HAND_OVER, NoFeed, Sole, see_again};
use crate::link::Live;
use crate::send::accepted;
use crate::wire;

/// So many messages are taken with one consumer.
const MOST: usize = 1000;

/// So often messages that are ready are asked for.
const TRIES: usize = 3;

/// Messages of a queue that are held: those without a key, then the first of each of its partitions.
#[derive(Debug)]
pub struct RabbitmqHold {
    broker: RabbitmqBroker,
    live: Arc<Live>,
    queue: QueueName,
    /// The broker's queues that are still to be looked at, the next one last.
    sources: Vec<String>,
    feeds: Vec<Arc<Feed>>,
    /// The consumers of partitions: each ends with its channel, and not before.
    soles: Vec<Sole>,
    /// By their places: the channel, and the number on it.
    taken: Vec<(usize, u64)>,
    /// Those of them that are gone.
    removed: HashSet<(usize, u64)>,
}

impl RabbitmqHold {
    pub(crate) fn new(broker: RabbitmqBroker, live: Arc<Live>, queue: QueueName, mut sources: Vec<String>) -> Self {
        sources.reverse();
        Self {
            broker,
            live,
            queue,
            sources,
            feeds: Vec::new(),
            soles: Vec::new(),
            taken: Vec::new(),
            removed: HashSet::new(),
        }
    }

    /// The feed of the source that is looked at.
    async fn feed(&mut self, source: &str) -> Result<usize, MessagingError> {
        let known = self.feeds.iter().position(|feed| feed.queue() == source);
        if let Some(known) = known {
            return Ok(known);
        }
        self.feeds.push(Arc::new(Feed::new(source, self.live.channel("look").await?)));
        Ok(self.feeds.len() - 1)
    }

    async fn take_from(&mut self, source: &str, count: usize) -> Result<Vec<Held>, MessagingError> {
        let counts = self.live.counts(source).await?;
        let wanted = counts.map_or(0, |counts| counts.ready as usize).min(count);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        match source == self.queue.as_str() {
            true => self.take_plain(source, wanted.min(MOST)).await,
            false => self.take_head(source).await,
        }
    }

    async fn take_plain(&mut self, source: &str, wanted: usize) -> Result<Vec<Held>, MessagingError> {
        let index = self.feed(source).await?;
        let feed = self.feeds[index].clone();
        let allowance = u16::try_from(wanted).unwrap_or(u16::MAX);
        let mut subscription = match feed.subscribe(allowance).await {
            Ok(subscription) => subscription,
            Err(NoFeed::Missing) => return Ok(Vec::new()),
            Err(NoFeed::Failed(error)) => return Err(error),
        };
        let mut deliveries = subscription.up_to(wanted).await?;
        deliveries.extend(feed.finish(subscription).await?);
        Ok(self.note(index, deliveries))
    }

    async fn take_head(&mut self, source: &str) -> Result<Vec<Held>, MessagingError> {
        let is_held = self.feeds.iter().any(|feed| feed.queue() == source);
        if is_held {
            return Ok(Vec::new());
        }
        let mut sole = match Sole::subscribe(source, self.live.channel("look").await?, 1).await {
            Ok(sole) => sole,
            Err(NoFeed::Missing) => return Ok(Vec::new()),
            Err(NoFeed::Failed(error)) => return Err(error),
        };
        let Some(delivery) = sole.next_within(HAND_OVER).await else {
            // A worker is at it. Whatever is handed over when that one leaves must go back at once.
            return sole.feed().close().await.map(|()| Vec::new());
        };
        let delivery = delivery?;
        self.feeds.push(sole.feed().clone());
        self.soles.push(sole);
        Ok(self.note(self.feeds.len() - 1, vec![delivery]))
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
            for _ in 0..TRIES {
                let held = self.take_from(&source, count).await?;
                if !held.is_empty() {
                    return Ok(held);
                }
                // A partition that a worker is at hands over nothing.
                let is_own = source == self.queue.as_str();
                if !is_own || self.live.counts(&source).await?.is_none_or(|counts| counts.ready == 0) {
                    self.sources.pop();
                    break;
                }
            }
            if self.sources.last() == Some(&source) {
                return Err(MessagingError::busy(format!(
                    "RabbitMQ says that messages of '{source}' are ready, and handed over none in time; try again"
                )));
            }
        }
        Ok(Vec::new())
    }

    async fn remove(&mut self, places: &[u64]) -> Result<(), MessagingError> {
        for (index, feed) in self.feeds.iter().enumerate() {
            let taken = places.iter().filter_map(|place| self.taken.get(usize::try_from(*place).ok()?));
            let tags: Vec<_> = taken.filter(|(of, _)| *of == index).map(|(_, tag)| *tag).collect();
            if !tags.is_empty() {
                self.removed.extend(tags.iter().map(|tag| (index, *tag)));
                feed.ack(tags).await?;
                feed.catch_up().await?;
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
        let fates = self.broker.store(&self.live, &targets).await;
        let (mut rows, mut gone) = (Vec::with_capacity(places.len()), Vec::new());
        for ((place, fate), (queue, stored)) in places.into_iter().zip(fates).zip(&targets) {
            let row = accepted("move", queue, stored.id, fate);
            if row.is_ok() {
                gone.push(place);
            }
            rows.push(row);
        }
        self.remove(&gone).await?;
        Ok(rows)
    }

    async fn put_back(self) -> Result<(), MessagingError> {
        for (index, feed) in self.feeds.iter().enumerate() {
            let left =
                self.taken.iter().filter(|(of, tag)| *of == index && !self.removed.contains(&(*of, *tag))).count();
            // The others of a partition are ready all the time.
            let others = if feed.queue() == self.queue.as_str() { 0 } else { feed.catch_up().await? };
            feed.close().await?;
            let ready = || async {
                let counts = self.live.counts(feed.queue()).await?;
                Ok(counts.map(|counts| counts.ready.saturating_sub(others)))
            };
            see_again(left, ready).await?;
        }
        Ok(())
    }
}
