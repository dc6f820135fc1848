//! What people and tools ask of queues.

use postrider_core::{
    DeadLetterSelection, DeadLetters, Deadline, Feature, MessageAttempt, MessageId, MessagingError, MessagingService,
    PeekedMessage, QueueAdmin, QueueHealthReport, QueueName, QueueStats, Timestamp,
};

use crate::broker::{Broker, Hold};
use crate::provider::BrokerProvider;

impl<B: Broker> BrokerProvider<B> {
    async fn set_paused(
        &self,
        operation: &'static str,
        queue: &QueueName,
        is_paused: bool,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.begin(operation, deadline)?;
        self.capabilities().require(Feature::Pause)?;
        let queue = queue.clone();
        let set = move |broker: B| {
            let queue = queue.clone();
            async move { broker.set_paused(&queue, is_paused, deadline).await }
        };
        self.repeat(operation, deadline, set).await
    }
}

impl<B: Broker> QueueAdmin for BrokerProvider<B> {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        self.repeat("list queues", deadline, move |broker| async move { broker.list_queues(deadline).await }).await
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        let queue = queue.clone();
        let count = move |broker: B| {
            let queue = queue.clone();
            async move { broker.stats(&queue, deadline).await }
        };
        self.repeat("stats", deadline, count).await
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        let queues = queues.to_vec();
        let verify = move |broker: B| {
            let queues = queues.clone();
            async move {
                let mut report = QueueHealthReport::default();
                for queue in queues {
                    match broker.is_usable(&queue, deadline).await? {
                        None => report.missing.push(queue),
                        Some(Ok(())) => report.healthy.push(queue),
                        Some(Err(why)) => report.errors.push((queue, why)),
                    }
                }
                Ok(report)
            }
        };
        self.repeat("verify queues", deadline, verify).await
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        self.begin("peek", deadline)?;
        self.capabilities().require(Feature::Peek)?;
        let queue = queue.clone();
        let look = move |broker: B| {
            let queue = queue.clone();
            async move { look(&broker, &queue, limit, deadline).await }
        };
        self.repeat("peek", deadline, look).await
    }

    async fn message_attempts(
        &self,
        _: &QueueName,
        _: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.begin("read attempts", deadline)?;
        // A broker has nowhere to keep them; one that says otherwise has none to tell of.
        self.capabilities().require(Feature::AttemptHistory)?;
        Ok(Vec::new())
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        if queue.holds_dead_letters() {
            return self.purge_dead_letters(queue, &DeadLetterSelection::All, deadline).await;
        }
        let (broker, queue) = (self.broker().clone(), queue.clone());
        self.carry_out("purge", Vec::new(), deadline, async move { broker.purge(&queue, deadline).await }).await
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.set_paused("pause", queue, true, deadline).await
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.set_paused("resume", queue, false, deadline).await
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        if queue.holds_dead_letters() {
            return Err(MessagingError::invalid(
                "queue name",
                format!("'{queue}' belongs to '{}' and goes with it; purge the dead letters instead", queue.origin()),
            ));
        }
        let queue = queue.clone();
        let delete = move |broker: B| {
            let queue = queue.clone();
            async move { broker.delete_queue(&queue, deadline).await }
        };
        self.repeat("delete queue", deadline, delete).await
    }
}

async fn look<B: Broker>(
    broker: &B,
    queue: &QueueName,
    limit: usize,
    deadline: Deadline,
) -> Result<Vec<PeekedMessage>, MessagingError> {
    let mut hold = broker.hold(queue, deadline).await?;
    let (mut seen, now) = (Vec::new(), Timestamp::now());
    while seen.len() < limit {
        match hold.take(limit - seen.len()).await {
            Ok(more) if more.is_empty() => break,
            Ok(more) => seen.extend(more.into_iter().map(|held| held.stored.into_peeked(now))),
            Err(error) => {
                // What was taken before must not stay hidden; the first failure tells more than a second one would.
                let _ = hold.put_back().await;
                return Err(error);
            }
        }
    }
    hold.put_back().await?;
    Ok(seen)
}
