//! Messages with ordering keys: partitions, each read by a single active consumer.
//!
//! A worker that receives a message of a partition becomes its active consumer, on a channel of its own, and stays it until
//! the message is settled: no other worker gets the next message before. After an acknowledgement the broker delivers the
//! next message, requested or not; it stays parked here for a moment. If no caller receives it, it is requeued, and the
//! broker counts a delivery that no handler saw. Leaving the partition first would avoid that count, but would deliver the
//! next message to another worker although the acknowledgement may never arrive. Every other end of a lease closes the channel, and the
//! broker requeues the message at the head.
//!
//! A failed message to be retried later, and a delayed one, are parked: held by this worker, unacknowledged and without a
//! lease, so that their key is blocked. When it is due, the message is requeued at the head for the next receiver.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::message::Delivery;
use postrider_broker::Stored;
use postrider_core::{MessageId, MessagingError, QueueName, spawn};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;

use crate::connection::{LiveConnection, lock};
use crate::consumer_channel::{ConsumeError, DELIVERY_TIMEOUT, SingleActiveConsumer};
use crate::topology::partition_queue;
use crate::wire::{self, Received};

/// Time limit for the broker to deliver the next message of a partition.
const NEXT_TIMEOUT: Duration = Duration::from_millis(50);

/// Time for which a due message stays parked before it is requeued.
const PARK_GRACE: Duration = Duration::from_secs(1);

/// Maximum number of messages received from a partition in a row while other partitions may have some. A smaller value makes
/// more messages park in vain when a worker is slow.
const MAX_IN_A_ROW: u32 = 8;

/// The partitions of all queues, as this connection uses them.
#[derive(Debug, Default)]
pub(crate) struct AllPartitions(Mutex<HashMap<QueueName, Arc<QueuePartitions>>>);

impl AllPartitions {
    /// Returns the partitions of a queue.
    pub(crate) fn of(&self, queue: &QueueName, partitions: u32) -> Arc<QueuePartitions> {
        let mut all = lock(&self.0);
        let keyed = all.entry(queue.clone()).or_insert_with(|| {
            Arc::new(QueuePartitions {
                queue: queue.clone(),
                partitions: (0..partitions).map(|_| Partition::default()).collect(),
                // Random, so that workers that start together begin with different partitions.
                next: AtomicUsize::new(rand::random_range(0..partitions.max(1)) as usize),
                changed: Notify::new(),
            })
        });
        keyed.clone()
    }

    /// Wakes the receivers that wait for a queue.
    pub(crate) fn notify(&self, queue: &QueueName) {
        if let Some(keyed) = lock(&self.0).get(queue) {
            keyed.changed.notify_waiters();
        }
    }
}

/// The partitions of a queue, as this connection uses them.
#[derive(Debug)]
pub(crate) struct QueuePartitions {
    queue: QueueName,
    partitions: Vec<Partition>,
    /// Index of the partition to try first.
    next: AtomicUsize,
    /// Notified when a partition may have a message.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct Partition {
    /// Whether a task of this connection uses it.
    is_reserved: AtomicBool,
    /// Locked while the broker delivers the next message: a receiver waits for it.
    arriving: Arc<AsyncMutex<()>>,
    parked: Mutex<Parked>,
}

/// What this connection holds of a partition without a lease.
#[derive(Debug, Default)]
struct Parked {
    /// The first message, and when it is due.
    head: Option<(Instant, PartitionHead)>,
    /// The last delayed message that was parked until it was due. It stays the first until it is settled, so one id is
    /// enough.
    last_delayed: Option<MessageId>,
}

/// A partition that this connection is the active consumer of. When it is dropped, the broker requeues the message at the
/// head unless it was acknowledged.
#[derive(Debug)]
pub(crate) struct ActivePartition {
    consumer: SingleActiveConsumer,
    tag: u64,
    /// Messages received in a row from this partition.
    in_a_row: u32,
    guard: PartitionGuard,
}

/// The first message of a partition, with the partition.
#[derive(Debug)]
pub(crate) struct PartitionHead {
    pub(crate) stored: Stored,
    pub(crate) partition: ActivePartition,
    /// When the broker delivered it: its `consumer_timeout` counts from then.
    pub(crate) since: Instant,
    has_waited: bool,
}

impl PartitionHead {
    fn new(stored: Stored, partition: ActivePartition) -> Self {
        Self { stored, partition, since: Instant::now(), has_waited: false }
    }

    /// Whether its delay must still be waited for: this connection has not parked it until it was due.
    pub(crate) fn must_wait(&self) -> bool {
        !self.stored.wait.is_zero() && !self.has_waited
    }
}

impl QueuePartitions {
    /// Takes the first messages of up to `wanted` free partitions.
    ///
    /// Parked messages go first, because requeueing them would count a delivery; but after [`MAX_IN_A_ROW`] messages in a row they
    /// wait for their partition's turn.
    pub(crate) async fn take(
        self: &Arc<Self>,
        live: &LiveConnection,
        wanted: usize,
        patient_until: Instant,
    ) -> Result<Vec<PartitionHead>, MessagingError> {
        let count = self.partitions.len();
        let first = self.next.load(Ordering::Relaxed) % count.max(1);
        let in_order = || (first..count).chain(0..first);
        let has_turn = |head: &PartitionHead| head.partition.in_a_row <= MAX_IN_A_ROW;
        let mut heads: Vec<_> = in_order().filter_map(|index| self.take_due(index, has_turn)).take(wanted).collect();
        for index in in_order() {
            if heads.len() == wanted {
                break;
            }
            // With a message in hand, a slow partition is not waited for.
            let patient_until = if heads.is_empty() { patient_until } else { Instant::now() };
            match self.take_from(live, index, patient_until).await {
                Ok(Some(head)) => {
                    self.next.store(index + 1, Ordering::Relaxed);
                    heads.push(head);
                }
                Ok(None) => {}
                // Messages taken already are returned.
                Err(_) if !heads.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(heads)
    }

    /// Takes the first message of a partition if it is parked here, or if the partition has no consumer.
    async fn take_from(
        self: &Arc<Self>,
        live: &LiveConnection,
        index: usize,
        patient_until: Instant,
    ) -> Result<Option<PartitionHead>, MessagingError> {
        drop(self.partitions[index].arriving.lock().await);
        if let Some(mut head) = self.take_due(index, |_| true) {
            head.partition.in_a_row = 1;
            return Ok(Some(head));
        }
        let Some(guard) = self.try_reserve(index) else { return Ok(None) };
        let name = partition_queue(&self.queue, u32::try_from(index).unwrap_or(0));
        match live.counts(&name).await? {
            // With a consumer it is in use elsewhere, although its messages behind the first count as ready.
            Some(counts) if counts.ready > 0 && counts.consumers == 0 => {
                self.take_head(live, &name, guard, patient_until).await
            }
            _ => Ok(None),
        }
    }

    fn try_reserve(self: &Arc<Self>, index: usize) -> Option<PartitionGuard> {
        let was_reserved = self.partitions[index].is_reserved.swap(true, Ordering::AcqRel);
        (!was_reserved).then(|| PartitionGuard { keyed: self.clone(), index, had_message: false })
    }

    async fn take_head(
        self: &Arc<Self>,
        live: &LiveConnection,
        name: &str,
        mut guard: PartitionGuard,
        patient_until: Instant,
    ) -> Result<Option<PartitionHead>, MessagingError> {
        let mut consumer = match SingleActiveConsumer::consume(name, live.channel("receive").await?, 1).await {
            Ok(consumer) => consumer,
            Err(ConsumeError::Missing) => return Ok(None),
            Err(ConsumeError::Failed(error)) => return Err(error),
        };
        let Some(delivery) = Self::first_of(live, name, &mut consumer, patient_until).await? else {
            // Another worker consumes it now.
            consumer.channel().close().await?;
            return Ok(None);
        };
        let Received { stored, tag } = wire::read(&self.queue, delivery?);
        guard.had_message = true;
        let has_waited = lock(&self.partitions[guard.index].parked).last_delayed == Some(stored.id);
        let partition = ActivePartition { consumer, tag, in_a_row: 1, guard };
        Ok(Some(PartitionHead { has_waited, ..PartitionHead::new(stored, partition) }))
    }

    /// First message of a partition. `None` when another consumer is active, or nothing comes.
    ///
    /// A broker with a busy disk may need seconds to serve a new consumer: one that leaves earlier is never served. Of several
    /// that wait for the same partition, each leaves at random, until one is alone.
    async fn first_of(
        live: &LiveConnection,
        name: &str,
        consumer: &mut SingleActiveConsumer,
        patient_until: Instant,
    ) -> Result<Option<Result<Delivery, MessagingError>>, MessagingError> {
        loop {
            if let Some(delivery) = consumer.next_within(DELIVERY_TIMEOUT).await {
                return Ok(Some(delivery));
            }
            let counts = live.counts(name).await?;
            let may_come =
                counts.is_some_and(|counts| counts.ready > 0 && (counts.consumers <= 1 || rand::random::<bool>()));
            if !may_come || Instant::now() >= patient_until {
                // A message may have come during the request.
                return Ok(consumer.next_within(Duration::ZERO).await);
            }
        }
    }

    /// Parks a message and its partition until it is due. A receiver takes it from here; if none does, it is requeued.
    pub(crate) fn park(self: &Arc<Self>, head: PartitionHead) {
        let (index, due) = (head.partition.guard.index, Instant::now() + head.stored.wait);
        lock(&self.partitions[index].parked).head = Some((due, head));
        let keyed = self.clone();
        spawn(async move {
            tokio::time::sleep_until(due).await;
            keyed.changed.notify_waiters();
            tokio::time::sleep(PARK_GRACE).await;
            let unwanted = {
                let mut parked = lock(&keyed.partitions[index].parked);
                // Another message may be parked by now.
                parked.take_if(|(parked_until, _)| *parked_until == due)
            };
            if let Some(head) = unwanted {
                head.partition.requeue_after(Duration::ZERO);
            }
        });
    }

    /// Takes the parked message of a partition if it is due and `is_wanted`.
    fn take_due(&self, index: usize, is_wanted: impl Fn(&PartitionHead) -> bool) -> Option<PartitionHead> {
        let now = Instant::now();
        // A message lost with its connection is dropped at once: the broker has requeued it.
        let is_over =
            |(due, head): &mut (Instant, PartitionHead)| !head.partition.is_open() || *due <= now && is_wanted(head);
        let head = lock(&self.partitions[index].parked).take_if(is_over)?;
        head.partition.is_open().then_some(head)
    }
}

impl Parked {
    fn take_if(&mut self, is_over: impl FnOnce(&mut (Instant, PartitionHead)) -> bool) -> Option<PartitionHead> {
        let (due, mut head) = self.head.take_if(is_over)?;
        if due <= Instant::now() && head.must_wait() {
            self.last_delayed = Some(head.stored.id);
            head.has_waited = true;
        }
        Some(head)
    }
}

/// Exclusive use of a partition within this connection, until it is dropped.
#[derive(Debug)]
struct PartitionGuard {
    keyed: Arc<QueuePartitions>,
    index: usize,
    /// Whether it had a message: then other receivers may find one when this is dropped.
    had_message: bool,
}

impl Drop for PartitionGuard {
    fn drop(&mut self) {
        self.keyed.partitions[self.index].is_reserved.store(false, Ordering::Release);
        if self.had_message {
            self.keyed.changed.notify_waiters();
        }
    }
}

impl ActivePartition {
    pub(crate) fn is_open(&self) -> bool {
        self.consumer.channel().is_open()
    }

    fn keyed(&self) -> &Arc<QueuePartitions> {
        &self.guard.keyed
    }

    /// Acknowledges the message. The broker then delivers the next one, which is parked for the next receiver.
    pub(crate) async fn ack(self) -> Result<(), MessagingError> {
        self.consumer.channel().ack(vec![self.tag]).await?;
        self.consumer.channel().catch_up().await?;
        let arriving = self.keyed().partitions[self.guard.index].arriving.clone().lock_owned().await;
        spawn(async move {
            self.park_next().await;
            drop(arriving);
        });
        Ok(())
    }

    /// Parks the next message of the partition, or leaves the partition when there is none.
    async fn park_next(mut self) {
        match self.consumer.next_within(NEXT_TIMEOUT).await {
            Some(Ok(delivery)) => {
                let keyed = self.keyed().clone();
                let Received { stored, tag } = wire::read(&keyed.queue, delivery);
                self.tag = tag;
                self.in_a_row += 1;
                keyed.park(PartitionHead::new(stored, self));
            }
            Some(Err(_)) | None => {
                if let Err(error) = self.requeue().await {
                    tracing::debug!(?error, "a channel was not closed; the broker closes it when the connection ends");
                }
            }
        }
    }

    /// Requeues the message at the head and leaves the partition.
    pub(crate) async fn requeue(self) -> Result<(), MessagingError> {
        self.consumer.channel().close().await
    }

    /// Keeps the message unacknowledged, and its key blocked, for `after`; then requeues it.
    pub(crate) fn requeue_after(self, after: Duration) {
        spawn(async move {
            tokio::time::sleep(after).await;
            if let Err(error) = self.requeue().await {
                tracing::debug!(?error, "a message was not requeued; the broker requeues it when the connection ends");
            }
        });
    }
}
