//! Counts the messages of a queue.

use aws_sdk_sqs::types::QueueAttributeName;
use postrider_core::{Measured, MessagingError, QueueName, QueueStats};

use crate::names::Side;
use crate::store::Shared;

impl Shared {
    /// Returns the counts of both sides of a queue, which are SQS's approximate ones.
    pub(crate) async fn stats(&self, queue: &QueueName) -> Result<QueueStats, MessagingError> {
        let (mut ready, mut in_flight, mut delayed) = (0, 0, 0);
        for (side, url) in self.sides(queue).await? {
            let attributes = match self.attributes(queue, &url).await {
                Ok(attributes) => attributes,
                Err(MessagingError::QueueNotFound { .. }) => {
                    self.urls.forget_deleted(queue, side);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let count = |name| attributes.get(&name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            ready += count(QueueAttributeName::ApproximateNumberOfMessages);
            in_flight += count(QueueAttributeName::ApproximateNumberOfMessagesNotVisible);
            delayed += count(QueueAttributeName::ApproximateNumberOfMessagesDelayed);
        }
        let dead = match queue.holds_dead_letters() {
            true => ready + in_flight,
            false => self.dead(queue).await?,
        };
        Ok(QueueStats {
            queue: queue.clone(),
            ready: Measured::Approximate(ready),
            in_flight: Measured::Approximate(in_flight),
            delayed: Measured::Approximate(delayed),
            dead: Measured::Approximate(dead),
            // Only CloudWatch reports it.
            oldest_age: Measured::Unknown,
            paused: self.read_paused(&queue.origin()).await?,
        })
    }

    async fn dead(&self, queue: &QueueName) -> Result<u64, MessagingError> {
        let dead = queue.dead_letters();
        let Some(url) = self.url(&dead, Side::Standard).await? else { return Ok(0) };
        let attributes = match self.attributes(&dead, &url).await {
            Ok(attributes) => attributes,
            Err(MessagingError::QueueNotFound { .. }) => {
                self.urls.forget_deleted(&dead, Side::Standard);
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        let names = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ];
        Ok(names.iter().filter_map(|name| attributes.get(name)?.parse::<u64>().ok()).sum())
    }
}
