//! Messages with keys: partitions, of each of which one consumer at a time is served.
//!
//! A worker that takes a message of a partition becomes its consumer, on a channel of its own, and stays it until the
//! message is settled: nobody gets the next one before. When it is acknowledged the broker hands over the next one, asked
//! for or not; it waits in hand for a moment and goes back when nobody wants it, charged with a delivery that was none. To
//! leave the partition first would spare that, and would give the next message to somebody else although the
//! acknowledgement may never arrive. Everything else that ends a lease closes the channel, and the broker puts the message
//! back to the head.
//!
//! A failed message that is to be retried later waits in the worker's hand, unsettled, and so does a delayed one: its key
//! is held. When its time has come it goes back to the head, and whoever looks next gets it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_broker::Stored;
use postrider_core::{MessageId, MessagingError, QueueName};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::feed::{HAND_OVER, NoFeed, Sole};
use crate::link::{Live, lock};
use crate::topology::partition;
use crate::wire::{self, Arrived};

/// How long the broker may take to hand over the next message of a partition.
const NEXT: Duration = Duration::from_millis(50);

/// How long a message is kept past its time for somebody to take it.
const UNWANTED: Duration = Duration::from_secs(1);

/// What this connection does with the partitions of queues.
#[derive(Debug, Default)]
pub(crate) struct AllKeyed(Mutex<HashMap<QueueName, Arc<Keyed>>>);

impl AllKeyed {
    /// The partitions of a queue.
    pub(crate) fn of(&self, queue: &QueueName, partitions: u32) -> Arc<Keyed> {
        let mut all = lock(&self.0);
        let keyed = all.entry(queue.clone()).or_insert_with(|| {
            Arc::new(Keyed {
                queue: queue.clone(),
                taken: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
                news: Notify::new(),
                in_hand: Mutex::default(),
                waited: Mutex::default(),
            })
        });
        keyed.clone()
    }

    /// Tells those who wait for a queue, if anybody does.
    pub(crate) fn tell(&self, queue: &QueueName) {
        if let Some(keyed) = lock(&self.0).get(queue) {
            keyed.news.notify_waiters();
        }
    }
}

/// The partitions of a queue, as this connection uses them.
#[derive(Debug)]
pub(crate) struct Keyed {
    queue: QueueName,
    /// Whether this connection is at a partition.
    taken: Vec<AtomicBool>,
    /// A partition may have something now.
    pub(crate) news: Notify,
    /// Delayed messages that wait here, each with the time at which it is due.
    in_hand: Mutex<Vec<(Instant, Head)>>,
    /// Delayed messages that have waited here.
    waited: Mutex<HashSet<MessageId>>,
}

/// A partition that this connection is the consumer of. However it is left, the message goes back to the head if it was not
/// acknowledged.
#[derive(Debug)]
pub(crate) struct Place {
    consumer: Sole,
    tag: u64,
    entered: Entered,
}

/// A message of a partition, and the partition.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) stored: Stored,
    pub(crate) place: Place,
    pub(crate) since: Instant,
}

impl Keyed {
    /// Takes the first messages of up to `wanted` partitions that nobody is at.
    pub(crate) async fn take(self: &Arc<Self>, live: &Live, wanted: usize) -> Result<Vec<Head>, MessagingError> {
        let mut heads = self.take_due(wanted);
        let count = self.taken.len();
        let first = rand::random_range(0..count.max(1));
        for index in (first..count).chain(0..first) {
            if heads.len() == wanted {
                break;
            }
            match self.look_at(live, index).await {
                Ok(head) => heads.extend(head),
                // What is here already need not go back.
                Err(_) if !heads.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(heads)
    }

    /// Takes the first message of a partition if nobody is at it.
    async fn look_at(self: &Arc<Self>, live: &Live, index: usize) -> Result<Option<Head>, MessagingError> {
        let Some(free) = self.try_enter(index) else { return Ok(None) };
        let name = partition(&self.queue, u32::try_from(index).unwrap_or(0));
        match live.counts(&name).await? {
            // Somebody else's: their messages that are not leased count as ready too.
            Some(counts) if counts.ready > 0 && counts.consumers == 0 => self.take_head(live, &name, free).await,
            _ => Ok(None),
        }
    }

    fn try_enter(self: &Arc<Self>, index: usize) -> Option<Entered> {
        let was_taken = self.taken[index].swap(true, Ordering::AcqRel);
        (!was_taken).then(|| Entered { keyed: self.clone(), index, is_served: false })
    }

    async fn take_head(
        self: &Arc<Self>,
        live: &Live,
        name: &str,
        mut entered: Entered,
    ) -> Result<Option<Head>, MessagingError> {
        let mut consumer = match Sole::subscribe(name, live.channel("receive").await?, 1).await {
            Ok(consumer) => consumer,
            Err(NoFeed::Missing) => return Ok(None),
            Err(NoFeed::Failed(error)) => return Err(error),
        };
        let Some(delivery) = consumer.next_within(HAND_OVER).await else {
            // Another worker was faster.
            consumer.feed().close().await?;
            return Ok(None);
        };
        let Arrived { stored, tag } = wire::read(&self.queue, delivery?);
        entered.is_served = true;
        let place = Place { consumer, tag, entered };
        Ok(Some(Head { stored, place, since: Instant::now() }))
    }

    /// Whether a delayed message has waited, as far as this connection knows.
    pub(crate) fn has_waited(&self, id: MessageId) -> bool {
        lock(&self.waited).contains(&id)
    }

    /// Keeps a message until it is due, and its partition with it. It is handed out from here, and goes back when
    /// nobody wants it then.
    pub(crate) fn keep_in_hand(self: &Arc<Self>, head: Head) {
        let (id, wait) = (head.stored.id, head.stored.wait);
        lock(&self.in_hand).push((Instant::now() + wait, head));
        let keyed = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            lock(&keyed.waited).insert(id);
            keyed.news.notify_waiters();
            tokio::time::sleep(UNWANTED).await;
            let unwanted = {
                let mut in_hand = lock(&keyed.in_hand);
                in_hand.iter().position(|(_, head)| head.stored.id == id).map(|index| in_hand.swap_remove(index))
            };
            if let Some((_, head)) = unwanted {
                head.place.give_back_after(Duration::ZERO);
            }
        });
    }

    /// Takes out of the hand what is due.
    fn take_due(&self, wanted: usize) -> Vec<Head> {
        let (mut in_hand, now) = (lock(&self.in_hand), Instant::now());
        let (due, waiting) = in_hand.drain(..).partition::<Vec<_>, _>(|(due, _)| *due <= now);
        let mut heads: Vec<_> = due.into_iter().filter(|(_, head)| head.place.is_open()).collect();
        let rest = heads.split_off(wanted.min(heads.len()));
        in_hand.extend(waiting.into_iter().chain(rest));
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// A message is gone.
    pub(crate) fn forget(&self, id: MessageId) {
        lock(&self.waited).remove(&id);
    }
}

/// A partition that this connection is at: nobody else of it is, until this is dropped.
#[derive(Debug)]
struct Entered {
    keyed: Arc<Keyed>,
    index: usize,
    /// Whether there was a message: then others may find one when this ends.
    is_served: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.keyed.taken[self.index].store(false, Ordering::Release);
        if self.is_served {
            self.keyed.news.notify_waiters();
        }
    }
}

impl Place {
    pub(crate) fn is_open(&self) -> bool {
        self.consumer.feed().is_open()
    }

    pub(crate) fn keyed(&self) -> &Arc<Keyed> {
        &self.entered.keyed
    }

    /// Acknowledges the message. The broker hands over the next one then, which waits here for somebody who wants it.
    pub(crate) async fn ack(self) -> Result<(), MessagingError> {
        self.consumer.feed().ack(vec![self.tag]).await?;
        self.consumer.feed().catch_up().await?;
        tokio::spawn(self.go_on());
        Ok(())
    }

    /// Waits for the next message of the partition, and leaves it when there is none.
    async fn go_on(mut self) {
        match self.consumer.next_within(NEXT).await {
            Some(Ok(delivery)) => {
                let keyed = self.keyed().clone();
                let Arrived { stored, tag } = wire::read(&keyed.queue, delivery);
                self.tag = tag;
                keyed.keep_in_hand(Head { stored, place: self, since: Instant::now() });
            }
            Some(Err(_)) | None => self.give_back_after(Duration::ZERO),
        }
    }

    /// Puts the message back to the head and leaves the partition.
    pub(crate) async fn give_back(self) -> Result<(), MessagingError> {
        self.consumer.feed().close().await
    }

    /// Keeps the message in hand for so long, and its key with it, then puts it back.
    pub(crate) fn give_back_after(self, after: Duration) {
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            if let Err(error) = self.give_back().await {
                tracing::debug!(?error, "a message was not put back; the broker does it when the connection ends");
            }
        });
    }
}
