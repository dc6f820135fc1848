//! Claims: leases messages, or dead-letters them on reading.

use std::sync::Arc;
use std::time::Duration;

use lapin::message::Delivery;
use postrider_broker::Stored;
use postrider_core::{
    DeadLetterReason, Deadline, LeaseToken, MessagingError, NativeRef, QueueName, ReceiptHandle, ReceiveOptions,
    Timestamp,
};
use postrider_provider::{Claimed, Patience};
use tokio::time::Instant;

use crate::PROVIDER;
use crate::broker::RabbitmqBroker;
use crate::connection::LiveConnection;
use crate::consumer_channel::{ConsumeError, ConsumerChannel, DELIVERY_TIMEOUT, MAX_DELIVERY_TIMEOUT, QueueConsumer};
use crate::error::missing;
use crate::flags::{self, Flag};
use crate::leases::{Lease, Location};
use crate::partitions::PartitionHead;
use crate::send::accepted;
use crate::wire::{self, Received};

/// Interval at which a waiting receiver reads its queue's flags: paused, or with partitions.
const FLAGS_INTERVAL: Duration = Duration::from_secs(1);

/// Longest use of one consumer without a message.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// Polling interval of a waiting receiver for partitions, which do not push new messages to it.
const PARTITIONS_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of claims in a row that find only messages to dead-letter.
const MAX_ROUNDS: usize = 100;

impl RabbitmqBroker {
    /// Leases messages, and waits for the first one until `patience` is over.
    pub(crate) async fn claim(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
        mut patience: Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        loop {
            match self.claim_once(queue, options, deadline, &mut patience).await {
                Ok(claimed) if !claimed.is_empty() || patience.is_over() => return Ok(claimed),
                Ok(_) => {}
                // The connection is reopened meanwhile.
                Err(MessagingError::Connection { .. }) if !patience.is_over() => {
                    patience.unless_over(tokio::time::sleep(PARTITIONS_INTERVAL)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Claims once, with a bounded wait.
    async fn claim_once(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
        patience: &mut Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let live = self.connection().live(deadline).await?;
        let set = flags::are_set(&live, queue, &[Flag::Paused, Flag::Keyed]).await?;
        let (is_paused, is_keyed) = (set[0], set[1]);
        if is_paused {
            patience.unless_over(tokio::time::sleep(PARTITIONS_INTERVAL)).await;
            return Ok(Vec::new());
        }
        if !is_keyed {
            return self.take_plain(&live, queue, options, options.max, Some(patience), patient_until(deadline)).await;
        }
        // Registered before the claim, so that no notification is missed between the claim and the wait.
        let keyed = self.keyed().of(queue, self.options().partitions);
        let changed = keyed.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // In random order, so that neither kind is always claimed last.
        let mut claimed = Vec::new();
        let keyed_first: bool = rand::random();
        let patient_until = patient_until(deadline);
        for is_turn_of_keyed in [keyed_first, !keyed_first] {
            let wanted = options.max - claimed.len().min(options.max);
            if wanted == 0 {
                break;
            }
            let more = match is_turn_of_keyed {
                true => self.take_keyed(&live, queue, options, wanted, patient_until).await,
                false => self.take_plain(&live, queue, options, wanted, None, patient_until).await,
            };
            match more {
                Ok(more) => claimed.extend(more),
                // Messages leased before the failure must be returned.
                Err(_) if !claimed.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if claimed.is_empty() && !patience.is_over() {
            let waiting = async {
                tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep(PARTITIONS_INTERVAL) => {}
                }
            };
            patience.unless_over(waiting).await;
        }
        Ok(claimed)
    }

    /// Claims messages without keys.
    async fn take_plain(
        &self,
        live: &LiveConnection,
        queue: &QueueName,
        options: &ReceiveOptions,
        wanted: usize,
        mut patience: Option<&mut Patience>,
        patient_until: Instant,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let most = wanted.min(usize::from(self.options().prefetch_count));
        for _ in 0..MAX_ROUNDS {
            let is_waiting = patience.as_ref().is_some_and(|patience| !patience.is_over());
            if !is_waiting && live.counts(queue.as_str()).await?.is_none_or(|counts| counts.ready == 0) {
                return Ok(Vec::new());
            }
            let channel = live.consumer_channel(queue.as_str()).await?;
            let consumer = channel.consume(u16::try_from(most).unwrap_or(u16::MAX)).await;
            let mut consumer = match consumer {
                Ok(consumer) => consumer,
                Err(ConsumeError::Missing) => {
                    if let Some(patience) = &mut patience {
                        patience.unless_over(tokio::time::sleep(FLAGS_INTERVAL)).await;
                    }
                    return Ok(Vec::new());
                }
                Err(ConsumeError::Failed(error)) => return Err(error),
            };
            let since = Instant::now();
            let first = match patience.as_mut().filter(|_| is_waiting) {
                Some(patience) => {
                    patience.unless_over(first_of_idle(live, queue, &mut consumer, patient_until)).await.flatten()
                }
                None => first_of_ready(live, queue, &mut consumer, patient_until).await,
            };
            let mut deliveries = Vec::new();
            match first {
                // Cancelled by the broker.
                Some(None) => {
                    live.known.forget(&queue.origin());
                    return self.after_no_delivery(live, queue).await.map(|()| Vec::new());
                }
                Some(Some(first)) => deliveries.push(first?),
                None => {}
            }
            while deliveries.len() < most
                && let Some(next) = consumer.next_now()
            {
                deliveries.push(next?);
            }
            match deliveries.len() == most {
                true => channel.cancel(consumer).await?,
                false => deliveries.extend(channel.cancel_and_drain(consumer).await?),
            }
            if deliveries.is_empty() {
                return self.after_no_delivery(live, queue).await.map(|()| Vec::new());
            }
            let claimed = self.lease_or_dead_letter(live, &channel, queue, options, deliveries, since).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
        }
        Ok(Vec::new())
    }

    /// Opens another channel for the next claim after nothing arrived, and recreates a deleted queue. If the queue was
    /// deleted and recreated meanwhile, the broker may have delivered its messages to a consumer that no longer exists: they
    /// are requeued when that channel closes, which is with the last lease on it.
    async fn after_no_delivery(&self, live: &LiveConnection, queue: &QueueName) -> Result<(), MessagingError> {
        live.drop_consumer_channel(queue.as_str()).await;
        match live.counts(queue.as_str()).await? {
            Some(_) => Ok(()),
            None => self.recover(live, queue).await,
        }
    }

    /// Recreates a queue that was deleted under its consumer, or reports it missing.
    async fn recover(&self, live: &LiveConnection, queue: &QueueName) -> Result<(), MessagingError> {
        live.known.forget(&queue.origin());
        if !live.is_up() || live.counts(queue.as_str()).await?.is_some() {
            return Ok(());
        }
        match self.options().create_queues {
            true => {
                tracing::warn!(%queue, "the queue was deleted; creating it again");
                self.make(live, queue).await
            }
            false => Err(missing(queue)),
        }
    }

    /// Dead-letters the messages that are expired or over their delivery limit, and leases the others.
    async fn lease_or_dead_letter(
        &self,
        live: &LiveConnection,
        channel: &Arc<ConsumerChannel>,
        queue: &QueueName,
        options: &ReceiveOptions,
        deliveries: Vec<Delivery>,
        since: Instant,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let (mut dead, mut alive) = (Vec::new(), Vec::new());
        for delivery in deliveries {
            let Received { stored, tag } = wire::read(queue, delivery);
            match dead_letter_reason(&stored, queue, options) {
                Some(reason) => dead.push((wire::fit_into_frame(stored.buried(&reason, None, Timestamp::now())), tag)),
                None => alive.push((stored, tag)),
            }
        }
        let claimed = alive
            .into_iter()
            .map(|(stored, tag)| {
                self.lease(queue, options, stored, Location::Channel { channel: channel.clone(), tag }, since)
            })
            .collect::<Vec<_>>();
        if !dead.is_empty() {
            let written = self.dead_letter(live, channel, queue, dead).await;
            if claimed.is_empty() {
                written?;
            }
        }
        Ok(claimed)
    }

    async fn dead_letter(
        &self,
        live: &LiveConnection,
        channel: &ConsumerChannel,
        queue: &QueueName,
        dead: Vec<(Stored, u64)>,
    ) -> Result<(), MessagingError> {
        let (letters, tags): (Vec<_>, Vec<_>) =
            dead.into_iter().map(|(stored, tag)| ((queue.dead_letters(), stored), tag)).unzip();
        let (mut gone, mut kept, mut failure) = (Vec::new(), Vec::new(), None);
        for ((tag, outcome), (target, stored)) in
            tags.into_iter().zip(self.put_copies(live, &letters).await).zip(&letters)
        {
            match accepted("dead-letter", target, stored.id, outcome) {
                Ok(()) => gone.push(tag),
                Err(error) => {
                    kept.push(tag);
                    failure = Some(error);
                }
            }
        }
        channel.ack(gone).await?;
        channel.requeue(kept).await?;
        failure.map_or(Ok(()), Err)
    }

    /// Claims messages with keys: the first one of each free partition.
    async fn take_keyed(
        &self,
        live: &LiveConnection,
        queue: &QueueName,
        options: &ReceiveOptions,
        wanted: usize,
        patient_until: Instant,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let keyed = self.keyed().of(queue, self.options().partitions);
        let mut claimed = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let heads = match keyed.take(live, wanted - claimed.len(), patient_until).await {
                Err(error) if claimed.is_empty() => return Err(error),
                heads => heads.unwrap_or_default(),
            };
            let (mut has_dead, mut failure) = (false, None);
            for head in heads {
                if let Some(reason) = dead_letter_reason(&head.stored, queue, options) {
                    has_dead = true;
                    failure = self.dead_letter_head(live, queue, head, &reason).await.err().or(failure);
                } else if head.must_wait() {
                    keyed.park(head);
                } else {
                    let PartitionHead { stored, partition, since, .. } = head;
                    let options = self.until_taken_back(options, since);
                    claimed.push(self.lease(queue, &options, stored, Location::Partition(partition), since));
                }
            }
            match failure {
                // Leased messages must be returned; the next claim meets the failure again.
                Some(error) if claimed.is_empty() => return Err(error),
                None if has_dead && claimed.len() < wanted => {}
                _ => break,
            }
        }
        Ok(claimed)
    }

    /// Limits the visibility so that the lease ends before the broker's `consumer_timeout`, which counts from the delivery
    /// and so includes the time that the message was parked. The longest park leaves enough of it.
    fn until_taken_back(&self, options: &ReceiveOptions, since: Instant) -> ReceiveOptions {
        let (longest, waiting) = (self.options().longest_hold(), self.options().longest_park());
        let left = longest.saturating_sub(since.elapsed()).max(longest.saturating_sub(waiting));
        options.clone().visibility(options.visibility.min(left))
    }

    async fn dead_letter_head(
        &self,
        live: &LiveConnection,
        queue: &QueueName,
        head: PartitionHead,
        reason: &DeadLetterReason,
    ) -> Result<(), MessagingError> {
        let letter = wire::fit_into_frame(head.stored.buried(reason, None, Timestamp::now()));
        let (id, target) = (letter.id, queue.dead_letters());
        for outcome in self.put_copies(live, &[(target.clone(), letter)]).await {
            accepted("dead-letter", &target, id, outcome)?;
        }
        head.partition.ack().await
    }

    fn lease(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        mut stored: Stored,
        location: Location,
        since: Instant,
    ) -> Claimed {
        let (now, token) = (Timestamp::now(), LeaseToken::generate());
        stored.delivered(now);
        let envelope = stored.envelope(queue, now.saturating_add(options.visibility));
        let native = NativeRef::Row(self.instance());
        let receipt = ReceiptHandle::new(PROVIDER, queue.clone(), stored.id, token, native);
        let body = stored.body.clone();
        let ends = Instant::now() + options.visibility;
        self.leases().add(token, Lease { queue: queue.clone(), stored, location, since, ends });
        Claimed { body, envelope, receipt }
    }
}

/// First message of an idle consumer. `None` when there is a reason to stop waiting: the queue is gone, is paused or has
/// messages with keys, the broker does not deliver ready messages, or the consumer is old. The broker may have lost an old
/// one when the queue was deleted and recreated.
///
/// The consumer is not cancelled meanwhile: a message that the broker delivers to a consumer that is being cancelled
/// returns to the queue and is charged with a delivery.
async fn first_of_idle(
    live: &LiveConnection,
    queue: &QueueName,
    consumer: &mut QueueConsumer,
    patient_until: Instant,
) -> Option<Option<Result<Delivery, MessagingError>>> {
    let end = Instant::now() + MAX_IDLE;
    while Instant::now() < end {
        if let Ok(first) = tokio::time::timeout(FLAGS_INTERVAL, consumer.next()).await {
            return Some(first);
        }
        let set = flags::are_set(live, queue, &[Flag::Paused, Flag::Keyed]).await.ok()?;
        let counts = live.counts(queue.as_str()).await.ok().flatten()?;
        if set.contains(&true) || counts.consumers == 0 {
            return None;
        }
        if counts.ready > 0 {
            return first_of_ready(live, queue, consumer, patient_until).await;
        }
    }
    None
}

/// First ready message. Waits as long as the broker counts some as ready: with a busy disk it may need seconds to deliver
/// one, and charges a consumer that is cancelled earlier with a delivery.
async fn first_of_ready(
    live: &LiveConnection,
    queue: &QueueName,
    consumer: &mut QueueConsumer,
    patient_until: Instant,
) -> Option<Option<Result<Delivery, MessagingError>>> {
    loop {
        if let Ok(first) = tokio::time::timeout(DELIVERY_TIMEOUT, consumer.next()).await {
            return Some(first);
        }
        let counts = live.counts(queue.as_str()).await.ok().flatten()?;
        // Without a consumer the queue was deleted and made again, and does not know this one.
        if counts.ready == 0 || counts.consumers == 0 || Instant::now() >= patient_until {
            return None;
        }
    }
}

/// How long a claim waits for a broker that counts messages as ready and delivers none: not to the end of the deadline.
fn patient_until(deadline: Deadline) -> Instant {
    let left = deadline.remaining().map_or(MAX_DELIVERY_TIMEOUT, |left| left / 2);
    Instant::now() + left.min(MAX_DELIVERY_TIMEOUT)
}

/// Why a message must be dead-lettered unread, if it must. Dead letters have no delivery limit.
fn dead_letter_reason(stored: &Stored, queue: &QueueName, options: &ReceiveOptions) -> Option<DeadLetterReason> {
    if queue.holds_dead_letters() {
        return None;
    }
    if stored.is_expired(Timestamp::now()) {
        return Some(DeadLetterReason::EXPIRED);
    }
    (stored.deliveries >= options.max_receive_count).then_some(DeadLetterReason::MAX_RECEIVE_COUNT)
}
