//! Counts the messages of a queue.
//!
//! AMQP reports how many are ready, exactly and at once, and nothing about unacknowledged ones. The management interface
//! reports those, some seconds late. A count that neither reports is unknown.

use postrider_core::{Deadline, Measured, MessagingError, QueueName, QueueStats};

use crate::broker::RabbitmqBroker;
use crate::connection::LiveConnection;
use crate::flags::{self, Flag};

impl RabbitmqBroker {
    /// Returns the counts of a queue.
    pub(crate) async fn count(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        let live = self.connection().live(deadline).await?;
        let sources = self.sources(&live, queue).await?;
        let ready = total(&live, &sources).await?;
        let delayed = total(&live, &self.delay_queues(&live, queue).await?).await?;
        let dead = match queue.holds_dead_letters() {
            true => 0,
            false => total(&live, &[queue.dead_letters().to_string()]).await?,
        };
        let leased_dead = self.leases().of(&queue.dead_letters()).len() as u64;
        let paused = flags::are_set(&live, queue, &[Flag::Paused]).await?[0];
        let in_flight = match self.management().unacknowledged(&sources, deadline).await {
            Ok(unacknowledged) => Measured::Approximate(unacknowledged),
            // The management interface is missing or not permitted.
            Err(_) => Measured::Unknown,
        };
        Ok(QueueStats {
            queue: queue.clone(),
            ready: Measured::Exact(ready),
            in_flight,
            delayed: Measured::Approximate(delayed),
            dead: Measured::Approximate(dead + leased_dead),
            oldest_age: Measured::Unknown,
            paused,
        })
    }

    /// Whether a queue has ready messages.
    pub(crate) async fn has_ready(&self, queue: &QueueName) -> Result<bool, MessagingError> {
        let live = self.connection().live(Deadline::default()).await?;
        for source in self.sources(&live, queue).await? {
            if live.counts(&source).await?.is_some_and(|counts| counts.ready > 0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

async fn total(live: &LiveConnection, names: &[String]) -> Result<u64, MessagingError> {
    let mut total = 0;
    for name in names {
        total += live.counts(name).await?.map_or(0, |counts| u64::from(counts.ready));
    }
    Ok(total)
}
