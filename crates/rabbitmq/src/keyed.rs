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

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::message::Delivery;
use postrider_broker::Stored;
use postrider_core::{MessageId, MessagingError, QueueName, spawn};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;

use crate::feed::{HAND_OVER, NoFeed, SLOWEST_HAND_OVER, Sole};
use crate::link::{Live, lock};
use crate::topology::partition;
use crate::wire::{self, Arrived};

/// How long the broker may take to hand over the next message of a partition.
const NEXT: Duration = Duration::from_millis(50);

/// How long a message is kept past its time for somebody to take it.
const UNWANTED: Duration = Duration::from_secs(1);

/// So many messages of a partition are handed out in a row while others may have some. With fewer, more of them would wait in
/// hand for a slow worker, in vain.
const TURN: u32 = 8;

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
                partitions: (0..partitions).map(|_| Partition::default()).collect(),
                // Workers that start together do not all go to the same partition.
                next: AtomicUsize::new(rand::random_range(0..partitions.max(1)) as usize),
                news: Notify::new(),
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
    partitions: Vec<Partition>,
    /// The partition whose turn it is.
    next: AtomicUsize,
    /// A partition may have something now.
    pub(crate) news: Notify,
}

#[derive(Debug, Default)]
struct Partition {
    /// Whether this connection is at it.
    is_taken: AtomicBool,
    /// Held while the next message is on its way here: who looks meanwhile waits, for it is there.
    coming: Arc<AsyncMutex<()>>,
    /// Held for a few moves.
    hand: Mutex<Hand>,
}

/// What this connection has of a partition that nobody has leased.
#[derive(Debug, Default)]
struct Hand {
    /// The first message, and the time at which it is due.
    kept: Option<(Instant, Head)>,
    /// The last delayed message that has waited here. It stays the first until it is gone, so no other needs to be known.
    waited: Option<MessageId>,
}

/// A partition that this connection is the consumer of. However it is left, the message goes back to the head if it was not
/// acknowledged.
#[derive(Debug)]
pub(crate) struct Place {
    consumer: Sole,
    tag: u64,
    /// How many messages were handed over since it was this partition's turn.
    in_a_row: u32,
    entered: Entered,
}

/// A message of a partition, and the partition.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) stored: Stored,
    pub(crate) place: Place,
    /// When the broker handed it over: it takes back what it waits for too long.
    pub(crate) since: Instant,
    has_waited: bool,
}

impl Head {
    fn new(stored: Stored, place: Place) -> Self {
        Self { stored, place, since: Instant::now(), has_waited: false }
    }

    /// Whether its delay is not over yet, as far as this connection knows.
    pub(crate) fn must_wait(&self) -> bool {
        !self.stored.wait.is_zero() && !self.has_waited
    }
}

impl Keyed {
    /// Takes the first messages of up to `wanted` partitions that nobody is at.
    ///
    /// What is in hand already goes first, because it would go back charged; but only for a while, and then it waits for
    /// its partition's turn.
    pub(crate) async fn take(self: &Arc<Self>, live: &Live, wanted: usize) -> Result<Vec<Head>, MessagingError> {
        let count = self.partitions.len();
        let first = self.next.load(Ordering::Relaxed) % count.max(1);
        let in_order = || (first..count).chain(0..first);
        let has_turn = |head: &Head| head.place.in_a_row <= TURN;
        let mut heads: Vec<_> = in_order().filter_map(|index| self.take_due(index, has_turn)).take(wanted).collect();
        for index in in_order() {
            if heads.len() == wanted {
                break;
            }
            match self.look_at(live, index).await {
                Ok(Some(head)) => {
                    self.next.store(index + 1, Ordering::Relaxed);
                    heads.push(head);
                }
                Ok(None) => {}
                // What is here already need not go back.
                Err(_) if !heads.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(heads)
    }

    /// Takes the first message of a partition if it is in hand, or nobody is at it.
    async fn look_at(self: &Arc<Self>, live: &Live, index: usize) -> Result<Option<Head>, MessagingError> {
        drop(self.partitions[index].coming.lock().await);
        if let Some(mut head) = self.take_due(index, |_| true) {
            head.place.in_a_row = 1;
            return Ok(Some(head));
        }
        let Some(free) = self.try_enter(index) else { return Ok(None) };
        let name = partition(&self.queue, u32::try_from(index).unwrap_or(0));
        match live.counts(&name).await? {
            // Somebody else's: their messages that are not leased count as ready too.
            Some(counts) if counts.ready > 0 && counts.consumers == 0 => self.take_head(live, &name, free).await,
            _ => Ok(None),
        }
    }

    fn try_enter(self: &Arc<Self>, index: usize) -> Option<Entered> {
        let was_taken = self.partitions[index].is_taken.swap(true, Ordering::AcqRel);
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
        let Some(delivery) = Self::head_of(live, name, &mut consumer).await? else {
            // Another worker was faster.
            consumer.feed().close().await?;
            return Ok(None);
        };
        let Arrived { stored, tag } = wire::read(&self.queue, delivery?);
        entered.is_served = true;
        let has_waited = lock(&self.partitions[entered.index].hand).waited == Some(stored.id);
        let place = Place { consumer, tag, in_a_row: 1, entered };
        Ok(Some(Head { has_waited, ..Head::new(stored, place) }))
    }

    /// Waits for the first message of a partition. `None` when another consumer is served, or nothing comes.
    ///
    /// A broker with a busy disk may need seconds to serve a new consumer: one that leaves sooner is never served.
    async fn head_of(
        live: &Live,
        name: &str,
        consumer: &mut Sole,
    ) -> Result<Option<Result<Delivery, MessagingError>>, MessagingError> {
        let end = Instant::now() + SLOWEST_HAND_OVER;
        loop {
            if let Some(delivery) = consumer.next_within(HAND_OVER).await {
                return Ok(Some(delivery));
            }
            let counts = live.counts(name).await?;
            let is_alone = counts.is_some_and(|counts| counts.ready > 0 && counts.consumers <= 1);
            if !is_alone || Instant::now() >= end {
                // What came while the broker was asked.
                return Ok(consumer.next_within(Duration::ZERO).await);
            }
        }
    }

    /// Keeps a message until it is due, and its partition with it. It is handed out from here, and goes back when
    /// nobody wants it then.
    pub(crate) fn keep_in_hand(self: &Arc<Self>, head: Head) {
        let (index, due) = (head.place.entered.index, Instant::now() + head.stored.wait);
        lock(&self.partitions[index].hand).kept = Some((due, head));
        let keyed = self.clone();
        spawn(async move {
            tokio::time::sleep_until(due).await;
            keyed.news.notify_waiters();
            tokio::time::sleep(UNWANTED).await;
            let unwanted = {
                let mut hand = lock(&keyed.partitions[index].hand);
                // Another one may be there by now.
                hand.take_if(|(kept_until, _)| *kept_until == due)
            };
            if let Some(head) = unwanted {
                head.place.give_back_after(Duration::ZERO);
            }
        });
    }

    /// Takes out of the hand what is due and wanted.
    fn take_due(&self, index: usize, is_wanted: impl Fn(&Head) -> bool) -> Option<Head> {
        let now = Instant::now();
        // What was lost with its connection is out of the way at once: the broker has it.
        let is_over = |(due, head): &mut (Instant, Head)| !head.place.is_open() || *due <= now && is_wanted(head);
        let head = lock(&self.partitions[index].hand).take_if(is_over)?;
        head.place.is_open().then_some(head)
    }
}

impl Hand {
    fn take_if(&mut self, is_over: impl FnOnce(&mut (Instant, Head)) -> bool) -> Option<Head> {
        let (due, mut head) = self.kept.take_if(is_over)?;
        if due <= Instant::now() && head.must_wait() {
            self.waited = Some(head.stored.id);
            head.has_waited = true;
        }
        Some(head)
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
        self.keyed.partitions[self.index].is_taken.store(false, Ordering::Release);
        if self.is_served {
            self.keyed.news.notify_waiters();
        }
    }
}

impl Place {
    pub(crate) fn is_open(&self) -> bool {
        self.consumer.feed().is_open()
    }

    fn keyed(&self) -> &Arc<Keyed> {
        &self.entered.keyed
    }

    /// Acknowledges the message. The broker hands over the next one then, which waits here for somebody who wants it.
    pub(crate) async fn ack(self) -> Result<(), MessagingError> {
        self.consumer.feed().ack(vec![self.tag]).await?;
        self.consumer.feed().catch_up().await?;
        let coming = self.keyed().partitions[self.entered.index].coming.clone().lock_owned().await;
        spawn(async move {
            self.go_on().await;
            drop(coming);
        });
        Ok(())
    }

    /// Waits for the next message of the partition, and leaves it when there is none.
    async fn go_on(mut self) {
        match self.consumer.next_within(NEXT).await {
            Some(Ok(delivery)) => {
                let keyed = self.keyed().clone();
                let Arrived { stored, tag } = wire::read(&keyed.queue, delivery);
                self.tag = tag;
                self.in_a_row += 1;
                keyed.keep_in_hand(Head::new(stored, self));
            }
            Some(Err(_)) | None => {
                if let Err(error) = self.give_back().await {
                    tracing::debug!(?error, "a partition was not left; the broker does it when the connection ends");
                }
            }
        }
    }

    /// Puts the message back to the head and leaves the partition.
    pub(crate) async fn give_back(self) -> Result<(), MessagingError> {
        self.consumer.feed().close().await
    }

    /// Keeps the message in hand for so long, and its key with it, then puts it back.
    pub(crate) fn give_back_after(self, after: Duration) {
        spawn(async move {
            tokio::time::sleep(after).await;
            if let Err(error) = self.give_back().await {
                tracing::debug!(?error, "a message was not put back; the broker does it when the connection ends");
            }
        });
    }
}
