//! Messages on their way into queues: which way each takes, and that the way is there.

use std::collections::HashSet;

use postrider_broker::Stored;
use postrider_core::coalescer::{BatchFailure, SendRow};
use postrider_core::service::check_sendable;
use postrider_core::{Deadline, MessageId, MessagingError, QueueName, RowResults, Timestamp};

use crate::broker::RabbitmqBroker;
use crate::error::missing;
use crate::flags::{self, Flag};
use crate::link::{ANSWER, Live};
use crate::publish::{self, Outgoing, Published};
use crate::topology::{Builder, check_name, delay_route, levels, partition, partition_of, steps};
use crate::wire;

/// A message, and the queue that it is for.
pub(crate) type Target = (QueueName, Stored);

impl RabbitmqBroker {
    /// Sends messages.
    pub(crate) async fn send_rows(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        let now = Timestamp::now();
        let mut results: RowResults<MessageId> = Vec::with_capacity(rows.len());
        let (mut targets, mut places) = (Vec::new(), Vec::new());
        for (place, row) in rows.iter().enumerate() {
            match self.check(row) {
                Ok(()) => {
                    targets.push((row.queue.clone(), Stored::new(&row.message, now)));
                    places.push(place);
                    results.push(Ok(row.message.id));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        if targets.is_empty() {
            return Ok(results);
        }
        let live = self.link().live(Deadline::after(ANSWER)).await.map_err(BatchFailure::NotDone)?;
        for (place, fate) in places.into_iter().zip(self.put(&live, &targets).await) {
            let row = &rows[place];
            if let Err(error) = accepted("send", &row.queue, row.message.id, fate) {
                results[place] = Err(error);
            }
        }
        Ok(results)
    }

    fn check(&self, row: &SendRow) -> Result<(), MessagingError> {
        check_sendable(self.known_capabilities(), &row.queue, &row.message)?;
        check_name(&row.queue)?;
        wire::check_headers(&row.message)?;
        let longest = self.options().longest_wait_in_hand();
        if row.message.ordering_key.is_some() && row.message.delay > longest {
            return Err(MessagingError::invalid(
                "delay",
                format!(
                    "a message with a key waits in a worker's hand, for at most {} s here; leave out the key or the delay",
                    longest.as_secs()
                ),
            ));
        }
        Ok(())
    }

    /// Stores messages, each in its queue. What is missing on the way is made, if it may be.
    pub(crate) async fn put(&self, live: &Live, targets: &[Target]) -> Vec<Published> {
        let mut fates = self.put_once(live, targets).await;
        if !self.options().create_queues {
            return fates;
        }
        let lost: Vec<_> = (0..fates.len()).filter(|place| matches!(fates[*place], Published::Unroutable)).collect();
        if lost.is_empty() {
            return fates;
        }
        let mut made: HashSet<&QueueName> = HashSet::new();
        for place in &lost {
            let queue = &targets[*place].0;
            live.known.forget(&queue.origin());
            if made.insert(queue)
                && let Err(error) = self.make(live, queue).await
            {
                for place in &lost {
                    fates[*place] = Published::NotSent(error.clone());
                }
                return fates;
            }
        }
        let again: Vec<_> = lost.iter().map(|place| targets[*place].clone()).collect();
        for (place, fate) in lost.into_iter().zip(self.put_once(live, &again).await) {
            fates[place] = fate;
        }
        fates
    }

    /// The same for what takes the place of a message: until a copy outlasts a crash it is no reason to let go of that.
    pub(crate) async fn store(&self, live: &Live, targets: &[Target]) -> Vec<Published> {
        let mut fates = self.put(live, targets).await;
        for (fate, (queue, _)) in fates.iter_mut().zip(targets) {
            // Almost always there is nothing to wait for.
            if let (Published::Stored, Err(error)) = (&*fate, live.wait_until_lasting(queue).await) {
                *fate = Published::Unknown(error);
            }
        }
        fates
    }

    /// Makes a queue, or the place of its dead letters.
    pub(crate) async fn make(&self, live: &Live, queue: &QueueName) -> Result<(), MessagingError> {
        let builder = self.builder(live);
        match queue.holds_dead_letters() {
            true => builder.dead_letters(queue).await,
            false => builder.queue(queue).await,
        }
    }

    async fn put_once(&self, live: &Live, targets: &[Target]) -> Vec<Published> {
        let (mut messages, mut places) = (Vec::with_capacity(targets.len()), Vec::with_capacity(targets.len()));
        let mut fates = vec![Published::Unroutable; targets.len()];
        for (place, (queue, stored)) in targets.iter().enumerate() {
            if let Err(error) = wire::check_frame(stored) {
                fates[place] = Published::NotSent(error);
                continue;
            }
            match self.route(live, queue, stored).await {
                Ok(message) => messages.push(message),
                // Nothing has been sent yet; one way that cannot be made is no reason to guess about the others.
                Err(error) => return targets.iter().map(|_| Published::NotSent(error.clone())).collect(),
            }
            places.push(place);
        }
        for (place, fate) in places.into_iter().zip(publish::publish(live, messages).await) {
            fates[place] = fate;
        }
        fates
    }

    /// The way of a message: straight into its queue, into its key's partition, or through what makes it wait.
    async fn route(&self, live: &Live, queue: &QueueName, stored: &Stored) -> Result<Outgoing, MessagingError> {
        let is_dead = queue.holds_dead_letters();
        let (exchange, routing_key, properties) = match &stored.ordering_key {
            Some(key) if !is_dead => {
                self.prepare(live, queue, &[Flag::Keyed]).await?;
                let index = partition_of(key, self.options().partitions);
                (String::new(), partition(queue, index), wire::properties(stored))
            }
            _ if stored.wait.is_zero() => {
                self.builder(live).meet(queue.as_str()).await?;
                (String::new(), queue.to_string(), wire::properties(stored))
            }
            _ => {
                let steps = steps(stored.wait);
                let flags: Vec<_> = levels(steps).map(Flag::Waits).collect();
                self.prepare(live, queue, &flags).await?;
                self.builder(live).delay(queue, steps).await?;
                let (exchange, key) = delay_route(queue, steps);
                // The whole wait is over when it arrives.
                let arriving = Stored { wait: std::time::Duration::ZERO, ..stored.clone() };
                (exchange, key, wire::properties(&arriving))
            }
        };
        Ok(Outgoing { exchange, routing_key, properties, body: stored.body.clone() })
    }

    /// Makes the parts of a queue that a message's way needs, and says so for everybody. The queue itself comes first.
    async fn prepare(&self, live: &Live, queue: &QueueName, flags: &[Flag]) -> Result<(), MessagingError> {
        let new: Vec<_> = flags.iter().copied().filter(|flag| !live.known.has_part(queue, *flag)).collect();
        if new.is_empty() {
            return Ok(());
        }
        if live.counts(queue.as_str()).await?.is_none() {
            if !self.options().create_queues {
                return Err(missing(queue));
            }
            live.known.forget(&queue.origin());
            self.make(live, queue).await?;
        }
        for flag in new {
            if flag == Flag::Keyed {
                self.builder(live).partitions(queue).await?;
            }
            flags::set(live, queue, flag, true).await?;
            live.known.add_part(queue, flag);
        }
        Ok(())
    }

    pub(crate) fn builder<'a>(&'a self, live: &'a Live) -> Builder<'a> {
        Builder { live, options: self.options() }
    }
}

/// What a message's fate means for whoever asked for it.
pub(crate) fn accepted(
    operation: &'static str,
    queue: &QueueName,
    id: MessageId,
    fate: Published,
) -> Result<(), MessagingError> {
    match fate {
        Published::Stored => Ok(()),
        Published::Unroutable => Err(missing(queue)),
        Published::NotSent(error) => Err(error),
        Published::Unknown(error) => {
            Err(MessagingError::OutcomeUnknown { operation, ids: vec![id], source: Some(std::sync::Arc::new(error)) })
        }
        // The broker answers, so it is no failure of the store.
        Published::Refused => Err(MessagingError::busy(format!(
            "RabbitMQ refused a message for '{queue}': a length limit is reached, or the queue has no leader yet; send it \
             again later"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_busy_and_no_failure_of_the_store() {
        let queue = QueueName::new("orders").unwrap();
        let error = accepted("send", &queue, MessageId::generate(), Published::Refused).unwrap_err();
        assert!(matches!(error, MessagingError::Busy { .. }) && error.is_retryable(), "{error:?}");
        assert!(error.to_string().contains("'orders': a length limit"), "{error}");
    }
}
