//! Sends: chooses the route of each message and creates missing parts of it.

use std::collections::HashSet;

use postrider_broker::Stored;
use postrider_core::coalescer::{BatchFailure, SendRow};
use postrider_core::service::check_sendable;
use postrider_core::{Deadline, MessageId, MessagingError, QueueName, RowResults, Timestamp};

use crate::broker::RabbitmqBroker;
use crate::connection::{ANSWER_TIMEOUT, LiveConnection};
use crate::error::missing;
use crate::flags::{self, Flag};
use crate::publish::{self, Outgoing, Published};
use crate::topology::{Builder, check_name, delay_route, levels, partition_of, partition_queue, steps};
use crate::wire;

/// A message and its queue.
pub(crate) type Target = (QueueName, Stored);

impl RabbitmqBroker {
    /// Sends a batch.
    pub(crate) async fn send_rows(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        let now = Timestamp::now();
        let mut results: RowResults<MessageId> = Vec::with_capacity(rows.len());
        let (mut targets, mut indexes) = (Vec::new(), Vec::new());
        for (index, row) in rows.iter().enumerate() {
            match self.check(row) {
                Ok(()) => {
                    targets.push((row.queue.clone(), Stored::new(&row.message, now)));
                    indexes.push(index);
                    results.push(Ok(row.message.id));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        if targets.is_empty() {
            return Ok(results);
        }
        let live = self.connection().live(Deadline::after(ANSWER_TIMEOUT)).await.map_err(BatchFailure::NotDone)?;
        for (index, outcome) in indexes.into_iter().zip(self.put(&live, &targets).await) {
            let row = &rows[index];
            if let Err(error) = accepted("send", &row.queue, row.message.id, outcome) {
                results[index] = Err(error);
            }
        }
        Ok(results)
    }

    fn check(&self, row: &SendRow) -> Result<(), MessagingError> {
        check_sendable(self.known_capabilities(), &row.queue, &row.message)?;
        check_name(&row.queue)?;
        wire::check_headers(&row.message)?;
        let longest = self.options().longest_park();
        if row.message.ordering_key.is_some() && row.message.delay > longest {
            return Err(MessagingError::invalid(
                "delay",
                format!(
                    "a delayed message with a key stays unacknowledged at a worker, for at most {} s; shorten the delay or \
                     leave out the key",
                    longest.as_secs()
                ),
            ));
        }
        Ok(())
    }

    /// Stores messages, each in its queue. Creates missing queues and routes, if `create_queues` is set.
    pub(crate) async fn put(&self, live: &LiveConnection, targets: &[Target]) -> Vec<Published> {
        let mut outcomes = self.put_once(live, targets).await;
        if !self.options().create_queues {
            return outcomes;
        }
        let unroutable: Vec<_> =
            (0..outcomes.len()).filter(|index| matches!(outcomes[*index], Published::Unroutable)).collect();
        if unroutable.is_empty() {
            return outcomes;
        }
        let mut made: HashSet<&QueueName> = HashSet::new();
        for index in &unroutable {
            let queue = &targets[*index].0;
            live.known.forget(&queue.origin());
            if made.insert(queue)
                && let Err(error) = self.make(live, queue).await
            {
                for index in &unroutable {
                    outcomes[*index] = Published::NotSent(error.clone());
                }
                return outcomes;
            }
        }
        let again: Vec<_> = unroutable.iter().map(|index| targets[*index].clone()).collect();
        for (index, outcome) in unroutable.into_iter().zip(self.put_once(live, &again).await) {
            outcomes[index] = outcome;
        }
        outcomes
    }

    /// Stores copies that replace messages. Waits until each copy survives a crash of the broker, because the original is
    /// acknowledged afterwards.
    pub(crate) async fn put_copies(&self, live: &LiveConnection, targets: &[Target]) -> Vec<Published> {
        let mut outcomes = self.put(live, targets).await;
        for (outcome, (queue, _)) in outcomes.iter_mut().zip(targets) {
            // Almost always there is nothing to wait for.
            if let (Published::Stored, Err(error)) = (&*outcome, live.wait_until_crash_safe(queue).await) {
                *outcome = Published::Unknown(error);
            }
        }
        outcomes
    }

    /// Creates a queue, or the queue of its dead letters.
    pub(crate) async fn make(&self, live: &LiveConnection, queue: &QueueName) -> Result<(), MessagingError> {
        let builder = self.builder(live);
        match queue.holds_dead_letters() {
            true => builder.dead_letters(queue).await,
            false => builder.queue(queue).await,
        }
    }

    async fn put_once(&self, live: &LiveConnection, targets: &[Target]) -> Vec<Published> {
        let (mut messages, mut indexes) = (Vec::with_capacity(targets.len()), Vec::with_capacity(targets.len()));
        let mut outcomes = vec![Published::Unroutable; targets.len()];
        for (index, (queue, stored)) in targets.iter().enumerate() {
            if let Err(error) = wire::check_frame(stored) {
                outcomes[index] = Published::NotSent(error);
                continue;
            }
            match self.route(live, queue, stored).await {
                Ok(message) => messages.push(message),
                // Nothing was sent yet, so the outcome of every message is certain.
                Err(error) => return targets.iter().map(|_| Published::NotSent(error.clone())).collect(),
            }
            indexes.push(index);
        }
        for (index, outcome) in indexes.into_iter().zip(publish::publish(live, messages).await) {
            outcomes[index] = outcome;
        }
        outcomes
    }

    /// Chooses the route of a message: into its queue, into the partition of its key, or through the delay queues.
    async fn route(
        &self,
        live: &LiveConnection,
        queue: &QueueName,
        stored: &Stored,
    ) -> Result<Outgoing, MessagingError> {
        let is_dead = queue.holds_dead_letters();
        let (exchange, routing_key, properties) = match &stored.ordering_key {
            Some(key) if !is_dead => {
                self.prepare(live, queue, &[Flag::Keyed]).await?;
                let index = partition_of(key, self.options().partitions);
                (String::new(), partition_queue(queue, index), wire::properties(stored))
            }
            _ if stored.wait.is_zero() => {
                self.builder(live).note_queue(queue.as_str()).await?;
                (String::new(), queue.to_string(), wire::properties(stored))
            }
            _ => {
                let steps = steps(stored.wait);
                let flags: Vec<_> = levels(steps).map(Flag::Delay).collect();
                self.prepare(live, queue, &flags).await?;
                self.builder(live).delay(queue, steps).await?;
                let (exchange, key) = delay_route(queue, steps);
                // The delay is over when it arrives.
                let arriving = Stored { wait: std::time::Duration::ZERO, ..stored.clone() };
                (exchange, key, wire::properties(&arriving))
            }
        };
        Ok(Outgoing { exchange, routing_key, properties, body: stored.body.clone() })
    }

    /// Creates the parts of a queue that a route needs, the queue itself first, and sets their flags for other clients.
    async fn prepare(&self, live: &LiveConnection, queue: &QueueName, flags: &[Flag]) -> Result<(), MessagingError> {
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

    pub(crate) fn builder<'a>(&'a self, live: &'a LiveConnection) -> Builder<'a> {
        Builder { live, options: self.options() }
    }
}

/// Converts the outcome of a sent message into the caller's result.
pub(crate) fn accepted(
    operation: &'static str,
    queue: &QueueName,
    id: MessageId,
    outcome: Published,
) -> Result<(), MessagingError> {
    match outcome {
        Published::Stored => Ok(()),
        Published::Unroutable => Err(missing(queue)),
        Published::NotSent(error) => Err(error),
        Published::Unknown(error) => {
            Err(MessagingError::OutcomeUnknown { operation, ids: vec![id], source: Some(std::sync::Arc::new(error)) })
        }
        // The broker answers, so the store has not failed.
        Published::Refused => Err(MessagingError::busy(format!(
            "RabbitMQ refused a message for '{queue}': a length limit is reached, or the queue has no leader; send it again \
             later"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_busy_and_not_a_failure_of_the_store() {
        let queue = QueueName::new("orders").unwrap();
        let error = accepted("send", &queue, MessageId::generate(), Published::Refused).unwrap_err();
        assert!(matches!(error, MessagingError::Busy { .. }) && error.is_retryable(), "{error:?}");
        assert!(error.to_string().contains("'orders': a length limit"), "{error}");
    }
}
