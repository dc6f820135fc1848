//! How messages are received: where a message is claimed.

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
use crate::error::missing;
use crate::feed::{Feed, HAND_OVER, NoFeed, SLOWEST_HAND_OVER, Subscription};
use crate::flags::{self, Flag};
use crate::keyed::Head;
use crate::leases::{At, Lease};
use crate::link::Live;
use crate::send::accepted;
use crate::wire::{self, Arrived};

/// How often a waiting receiver looks whether its queue was paused, or has got messages with keys.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How often a waiting receiver looks at partitions, which do not tell it of new messages.
const LOOK_AT_PARTITIONS: Duration = Duration::from_millis(100);

/// So often a look goes on after it found only what had to die.
const MOST_ROUNDS: usize = 100;

impl RabbitmqBroker {
    /// Leases messages, and waits for the first of them as long as there is patience.
    pub(crate) async fn claim(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
        mut patience: Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        loop {
            match self.look(queue, options, deadline, &mut patience).await {
                Ok(claimed) if !claimed.is_empty() || patience.is_over() => return Ok(claimed),
                Ok(_) => {}
                // The connection is opened again meanwhile.
                Err(MessagingError::Connection { .. }) if !patience.is_over() => {
                    patience.unless_over(tokio::time::sleep(LOOK_AT_PARTITIONS)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One look, which may wait a little.
    async fn look(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
        patience: &mut Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let live = self.link().live(deadline).await?;
        let set = flags::are_set(&live, queue, &[Flag::Paused, Flag::Keyed]).await?;
        let (is_paused, is_keyed) = (set[0], set[1]);
        if is_paused {
            patience.unless_over(tokio::time::sleep(LOOK_AT_PARTITIONS)).await;
            return Ok(Vec::new());
        }
        if !is_keyed {
            return self.take_plain(&live, queue, options, options.max, Some(patience), false).await;
        }
        // Registered before the look, so that nothing arrives unseen between the look and the wait.
        let keyed = self.keyed().of(queue, self.options().partitions);
        let news = keyed.news.notified();
        tokio::pin!(news);
        news.as_mut().enable();
        // By turns, so that neither kind is always served last.
        let mut claimed = Vec::new();
        let keyed_first: bool = rand::random();
        for is_turn_of_keyed in [keyed_first, !keyed_first] {
            let wanted = options.max - claimed.len().min(options.max);
            if wanted == 0 {
                break;
            }
            let more = match is_turn_of_keyed {
                true => self.take_keyed(&live, queue, options, wanted).await,
                false => self.take_plain(&live, queue, options, wanted, None, true).await,
            };
            match more {
                Ok(more) => claimed.extend(more),
                // What was leased before the failure must be told.
                Err(_) if !claimed.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if claimed.is_empty() && !patience.is_over() {
            let waiting = async {
                tokio::select! {
                    () = news => {}
                    () = tokio::time::sleep(LOOK_AT_PARTITIONS) => {}
                }
            };
            patience.unless_over(waiting).await;
        }
        Ok(claimed)
    }

    /// Messages without keys.
    async fn take_plain(
        &self,
        live: &Live,
        queue: &QueueName,
        options: &ReceiveOptions,
        wanted: usize,
        mut patience: Option<&mut Patience>,
        is_look_only: bool,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let most = wanted.min(usize::from(self.options().prefetch_count));
        for _ in 0..MOST_ROUNDS {
            let is_waiting = !is_look_only && patience.as_ref().is_some_and(|patience| !patience.is_over());
            if !is_waiting && live.counts(queue.as_str()).await?.is_none_or(|counts| counts.ready == 0) {
                return Ok(Vec::new());
            }
            let feed = live.feed(queue.as_str()).await?;
            let subscription = feed.subscribe(u16::try_from(most).unwrap_or(u16::MAX)).await;
            let mut subscription = match subscription {
                Ok(subscription) => subscription,
                Err(NoFeed::Missing) => {
                    if let Some(patience) = &mut patience {
                        patience.unless_over(tokio::time::sleep(LOOK_AGAIN)).await;
                    }
                    return Ok(Vec::new());
                }
                Err(NoFeed::Failed(error)) => return Err(error),
            };
            let since = Instant::now();
            let first = match patience.as_mut().filter(|_| is_waiting) {
                Some(patience) => patience.unless_over(wait_on(live, queue, &mut subscription)).await.flatten(),
                None => next_ready(live, queue, &mut subscription).await,
            };
            let mut deliveries = Vec::new();
            match first {
                // Ended by the broker.
                Some(None) => return self.recover(live, queue).await.map(|()| Vec::new()),
                Some(Some(first)) => deliveries.push(first?),
                None => {}
            }
            while deliveries.len() < most
                && let Some(next) = subscription.next_now()
            {
                deliveries.push(next?);
            }
            match deliveries.len() == most {
                true => feed.end(subscription).await?,
                false => deliveries.extend(feed.finish(subscription).await?),
            }
            if deliveries.is_empty() {
                return self.see_why(live, queue).await.map(|()| Vec::new());
            }
            let claimed = self.sort(live, &feed, queue, options, deliveries, since).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
        }
        Ok(Vec::new())
    }

    /// Nothing came, for a while. If the queue was deleted and made again meanwhile, the broker may have handed its messages
    /// to a consumer that it has lost sight of: they come back when that channel ends. So the next look has another one,
    /// and this one ends with the last lease on it.
    async fn see_why(&self, live: &Live, queue: &QueueName) -> Result<(), MessagingError> {
        live.leave_feed(queue.as_str()).await;
        match live.counts(queue.as_str()).await? {
            Some(_) => Ok(()),
            None => self.recover(live, queue).await,
        }
    }

    /// A queue that went away under its consumer is made again, or told of.
    async fn recover(&self, live: &Live, queue: &QueueName) -> Result<(), MessagingError> {
        live.known.forget(&queue.origin());
        if !live.is_up() || live.counts(queue.as_str()).await?.is_some() {
            return Ok(());
        }
        match self.options().create_queues {
            true => {
                tracing::warn!(%queue, "the queue was deleted; making it again");
                self.make(live, queue).await
            }
            false => Err(missing(queue)),
        }
    }

    /// Buries what must die, and leases the rest.
    async fn sort(
        &self,
        live: &Live,
        feed: &Arc<Feed>,
        queue: &QueueName,
        options: &ReceiveOptions,
        deliveries: Vec<Delivery>,
        since: Instant,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let (mut dead, mut alive) = (Vec::new(), Vec::new());
        for delivery in deliveries {
            let Arrived { stored, tag } = wire::read(queue, delivery);
            match doom(&stored, queue, options) {
                Some(reason) => dead.push((wire::fitted(stored.buried(&reason, None, Timestamp::now())), tag)),
                None => alive.push((stored, tag)),
            }
        }
        let claimed = alive
            .into_iter()
            .map(|(stored, tag)| self.lease(queue, options, stored, At::Feed { feed: feed.clone(), tag }, since))
            .collect::<Vec<_>>();
        if !dead.is_empty() {
            let buried = self.bury(live, feed, queue, dead).await;
            if claimed.is_empty() {
                buried?;
            }
        }
        Ok(claimed)
    }

    async fn bury(
        &self,
        live: &Live,
        feed: &Feed,
        queue: &QueueName,
        dead: Vec<(Stored, u64)>,
    ) -> Result<(), MessagingError> {
        let (letters, tags): (Vec<_>, Vec<_>) =
            dead.into_iter().map(|(stored, tag)| ((queue.dead_letters(), stored), tag)).unzip();
        let (mut gone, mut kept, mut failure) = (Vec::new(), Vec::new(), None);
        for ((tag, fate), (place, stored)) in tags.into_iter().zip(self.store(live, &letters).await).zip(&letters) {
            match accepted("dead-letter", place, stored.id, fate) {
                Ok(()) => gone.push(tag),
                Err(error) => {
                    kept.push(tag);
                    failure = Some(error);
                }
            }
        }
        feed.ack(gone).await?;
        feed.give_back(kept).await?;
        failure.map_or(Ok(()), Err)
    }

    /// Messages with keys: the first of each partition that nobody is at.
    async fn take_keyed(
        &self,
        live: &Live,
        queue: &QueueName,
        options: &ReceiveOptions,
        wanted: usize,
    ) -> Result<Vec<Claimed>, MessagingError> {
        let keyed = self.keyed().of(queue, self.options().partitions);
        let mut claimed = Vec::new();
        for _ in 0..MOST_ROUNDS {
            let heads = match keyed.take(live, wanted - claimed.len()).await {
                Err(error) if claimed.is_empty() => return Err(error),
                heads => heads.unwrap_or_default(),
            };
            let (mut has_dead, mut failure) = (false, None);
            for head in heads {
                if let Some(reason) = doom(&head.stored, queue, options) {
                    has_dead = true;
                    failure = self.bury_head(live, queue, head, &reason).await.err().or(failure);
                } else if head.must_wait() {
                    keyed.keep_in_hand(head);
                } else {
                    let Head { stored, place, since, .. } = head;
                    let options = self.until_taken_back(options, since);
                    claimed.push(self.lease(queue, &options, stored, At::Partition(place), since));
                }
            }
            match failure {
                // What was leased must be told, and the next look meets the failure again.
                Some(error) if claimed.is_empty() => return Err(error),
                None if has_dead && claimed.len() < wanted => {}
                _ => break,
            }
        }
        Ok(claimed)
    }

    /// A lease must end before the broker takes the message back, which may have waited in hand since. The longest wait
    /// leaves enough of that time.
    fn until_taken_back(&self, options: &ReceiveOptions, since: Instant) -> ReceiveOptions {
        let (longest, waiting) = (self.options().longest_hold(), self.options().longest_wait_in_hand());
        let left = longest.saturating_sub(since.elapsed()).max(longest.saturating_sub(waiting));
        options.clone().visibility(options.visibility.min(left))
    }

    async fn bury_head(
        &self,
        live: &Live,
        queue: &QueueName,
        head: Head,
        reason: &DeadLetterReason,
    ) -> Result<(), MessagingError> {
        let letter = wire::fitted(head.stored.buried(reason, None, Timestamp::now()));
        let (id, target) = (letter.id, queue.dead_letters());
        for fate in self.store(live, &[(target.clone(), letter)]).await {
            accepted("dead-letter", &target, id, fate)?;
        }
        head.place.ack().await
    }

    fn lease(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        mut stored: Stored,
        at: At,
        since: Instant,
    ) -> Claimed {
        let (now, token) = (Timestamp::now(), LeaseToken::generate());
        stored.delivered(now);
        let envelope = stored.envelope(queue, now.saturating_add(options.visibility));
        let native = NativeRef::Row(self.instance());
        let receipt = ReceiptHandle::new(PROVIDER, queue.clone(), stored.id, token, native);
        let body = stored.body.clone();
        let ends = Instant::now() + options.visibility;
        self.leases().add(token, Lease { queue: queue.clone(), stored, at, since, ends });
        Claimed { body, envelope, receipt }
    }
}

/// Waits for a consumer's first message. `None` when none came and there is a reason not to wait on: the queue is gone,
/// paused or has messages with keys now, or the broker does not hand over what is ready.
///
/// The consumer stays meanwhile: a message that the broker hands to a consumer that is being cancelled goes back to the
/// queue and is charged with a delivery.
async fn wait_on(
    live: &Live,
    queue: &QueueName,
    subscription: &mut Subscription,
) -> Option<Option<Result<Delivery, MessagingError>>> {
    loop {
        if let Ok(first) = tokio::time::timeout(LOOK_AGAIN, subscription.next()).await {
            return Some(first);
        }
        let set = flags::are_set(live, queue, &[Flag::Paused, Flag::Keyed]).await.ok()?;
        let counts = live.counts(queue.as_str()).await.ok().flatten()?;
        if set.contains(&true) {
            return None;
        }
        if counts.ready > 0 {
            return next_ready(live, queue, subscription).await;
        }
    }
}

/// The first of the messages that are ready, as long as some are: a broker with a busy disk may need seconds to hand one
/// over, and charges a consumer that leaves sooner with a delivery.
async fn next_ready(
    live: &Live,
    queue: &QueueName,
    subscription: &mut Subscription,
) -> Option<Option<Result<Delivery, MessagingError>>> {
    let end = Instant::now() + SLOWEST_HAND_OVER;
    loop {
        if let Ok(first) = tokio::time::timeout(HAND_OVER, subscription.next()).await {
            return Some(first);
        }
        let counts = live.counts(queue.as_str()).await.ok().flatten()?;
        // Without a consumer: the queue was made again, and does not know this one.
        if counts.ready == 0 || counts.consumers == 0 || Instant::now() >= end {
            return None;
        }
    }
}

/// Why a message must die before anybody sees it. Dead letters have no limit.
fn doom(stored: &Stored, queue: &QueueName, options: &ReceiveOptions) -> Option<DeadLetterReason> {
    if queue.holds_dead_letters() {
        return None;
    }
    if stored.is_expired(Timestamp::now()) {
        return Some(DeadLetterReason::EXPIRED);
    }
    (stored.deliveries >= options.max_receive_count).then_some(DeadLetterReason::MAX_RECEIVE_COUNT)
}
