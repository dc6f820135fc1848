//! How many messages a queue has.
//!
//! AMQP tells how many are ready, at once and exactly, and nothing of those that are held. The management interface tells
//! of those too, some seconds late. What neither tells is said to be unknown.

use postrider_core::{Deadline, Measured, MessagingError, QueueName, QueueStats};

use crate::broker::RabbitmqBroker;
use crate::flags::{self, Flag};
use crate::link::Live;

impl RabbitmqBroker {
    /// Counts the messages of a queue.
    pub(crate) async fn count(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        let live = self.link().live(deadline).await?;
        let sources = self.sources(&live, queue).await?;
        let ready = total(&live, &sources).await?;
        let delayed = total(&live, &self.waiting(&live, queue).await?).await?;
        let dead = match queue.holds_dead_letters() {
            true => 0,
            false => total(&live, &[queue.dead_letters().to_string()]).await?,
        };
        let leased_dead = self.leases().of(&queue.dead_letters()).len() as u64;
        let paused = flags::are_set(&live, queue, &[Flag::Paused]).await?[0];
        let in_flight = match self.management().unsettled(&sources, deadline).await {
            Ok(unsettled) => Measured::Approximate(unsettled),
            // It is not there, or not for us: then nobody knows.
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

    /// Whether something may be received.
    pub(crate) async fn has_ready(&self, queue: &QueueName) -> Result<bool, MessagingError> {
        let live = self.link().live(Deadline::default()).await?;
        for source in self.sources(&live, queue).await? {
            if live.counts(&source).await?.is_some_and(|counts| counts.ready > 0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

async fn total(live: &Live, names: &[String]) -> Result<u64, MessagingError> {
    let mut total = 0;
    for name in names {
        total += live.counts(name).await?.map_or(0, |counts| u64::from(counts.ready));
    }
    Ok(total)
}
