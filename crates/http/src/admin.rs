//! What people and tools ask of queues.

use http::Method;
use postrider_core::{
    DeadLetterSelection, DeadLetters, Deadline, Feature, MessageAttempt, MessageId, MessagingError, PeekedMessage,
    QueueAdmin, QueueHealthReport, QueueName, QueueStats,
};
use serde::de::IgnoredAny;

use crate::failure::Odd;
use crate::provider::HttpProvider;
use crate::transport::{Ask, MOST_ROWS};
use crate::wire::message::{MessageAttempts, PeekedMessages};
use crate::wire::queue::{Paused, Purged, QueueNames, Stats, Verified, VerifyRequest};

/// The path of a queue, or of something of it.
pub(crate) fn path(queue: &QueueName, rest: &str) -> String {
    format!("/v1/queues/{queue}{rest}")
}

impl HttpProvider {
    /// The failure of an answer with a value in it that no store has.
    pub(crate) fn garbled(&self, operation: &'static str) -> impl Fn(MessagingError) -> MessagingError + Send + use<> {
        let place = self.transport().place().to_string();
        move |error| Odd::Garbled { place: place.clone(), cause: error.to_string() }.into_failure(operation)
    }
}

impl QueueAdmin for HttpProvider {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        let QueueNames { queues } = self.look("list queues", Ask::get("/v1/queue-names"), deadline).await?;
        Ok(queues)
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        let stats: Stats = self.look("stats", Ask::get(path(queue, "")), deadline).await?;
        Ok(stats.into())
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        const VERIFY: &str = "verify queues";
        self.begin(VERIFY, deadline)?;
        let mut report = QueueHealthReport::default();
        for queues in queues.chunks(MOST_ROWS) {
            let ask = Ask::post("/v1/queues/verify", &VerifyRequest { queues: queues.to_vec() })?;
            let verified: Verified = self.look(VERIFY, ask, deadline).await?;
            let part = QueueHealthReport::from(verified);
            report.healthy.extend(part.healthy);
            report.missing.extend(part.missing);
            report.errors.extend(part.errors);
        }
        Ok(report)
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        self.begin("peek", deadline)?;
        self.table().require(Feature::Peek)?;
        let limit = limit.min(MOST_ROWS);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let ask = Ask::get(path(queue, &format!("/messages?limit={limit}")));
        let PeekedMessages { messages } = self.look("peek", ask, deadline).await?;
        messages.into_iter().map(PeekedMessage::try_from).collect::<Result<_, _>>().map_err(self.garbled("peek"))
    }

    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.begin("attempts", deadline)?;
        self.table().require(Feature::AttemptHistory)?;
        let ask = Ask::get(path(queue, &format!("/messages/{id}/attempts")));
        let MessageAttempts { attempts } = self.look("attempts", ask, deadline).await?;
        Ok(attempts.into_iter().map(MessageAttempt::from).collect())
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        if queue.holds_dead_letters() {
            return self.purge_dead_letters(queue, &DeadLetterSelection::All, deadline).await;
        }
        let ask = Ask::bare(Method::POST, path(queue, "/purge"));
        let Purged { purged } = self.change("purge", Vec::new(), ask, deadline).await?;
        Ok(purged)
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("pause", deadline)?;
        self.table().require(Feature::Pause)?;
        let Paused { .. } = self.look("pause", Ask::bare(Method::POST, path(queue, "/pause")), deadline).await?;
        Ok(())
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("resume", deadline)?;
        self.table().require(Feature::Pause)?;
        let Paused { .. } = self.look("resume", Ask::bare(Method::POST, path(queue, "/resume")), deadline).await?;
        Ok(())
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        // Not repeated: a queue of that name that somebody makes meanwhile is another one.
        let ask = Ask::bare(Method::DELETE, path(queue, ""));
        let IgnoredAny = self.change("delete queue", Vec::new(), ask, deadline).await?;
        Ok(())
    }
}
