//! What ends attempts that nobody else will: the reaper of lost leases, and of tasks that are too late.

use std::time::Duration;

use postrider_core::task::{Finish, LostLease, TaskOutcome, TaskStanding, TaskStore};
use postrider_core::{Deadline, MessagingError};

use crate::decide::{self, Attempt};
use crate::keeper::{Rest, Round};

/// Tasks whose worker was lost are tried again, or are dead when it was their last attempt; tasks whose deadline has
/// passed are dead.
#[derive(Debug)]
pub(crate) struct Reap<S> {
    pub(crate) store: S,
    pub(crate) batch: usize,
    pub(crate) every: Duration,
}

impl<S: TaskStore> Round for Reap<S> {
    const NAME: &'static str = "reap lost tasks";

    async fn round(&mut self) -> Result<Rest, MessagingError> {
        // Each is done although the other failed.
        let (reaped, overdue) = (self.reap().await, self.store.expire_overdue(self.batch, Deadline::default()).await);
        let is_full = reaped? >= self.batch || overdue?.len() >= self.batch;
        Ok(if is_full { Rest::None } else { Rest::For(self.every) })
    }
}

impl<S: TaskStore> Reap<S> {
    /// Sees to leases that have run out, and answers how many were found.
    async fn reap(&self) -> Result<usize, MessagingError> {
        let lost = self.store.lost_leases(self.batch, Deadline::default()).await?;
        if lost.is_empty() {
            return Ok(0);
        }
        let ends = lost.iter().map(|lost| Finish { lease: lost.lease, outcome: outcome(lost) }).collect();
        let reaped = self.store.reap(ends, Deadline::default()).await?;
        for (lost, standing) in lost.iter().zip(&reaped) {
            if *standing == TaskStanding::Held {
                tracing::warn!(task = %lost.lease.id, worker = %lost.worker, "a worker was lost");
            }
        }
        Ok(lost.len())
    }
}

fn outcome(lost: &LostLease) -> TaskOutcome {
    let attempt = Attempt {
        attempt_count: lost.attempt_count,
        max_attempts: lost.max_attempts,
        strategy: lost.retry_strategy.as_ref(),
        since_first_attempt: lost.since_first_attempt,
        random: rand::random(),
    };
    decide::lost(&attempt, &lost.worker)
}

/// Removes tasks that have been over for long.
#[derive(Debug)]
pub(crate) struct Forget<S> {
    pub(crate) store: S,
    pub(crate) retention: Duration,
}

impl<S: TaskStore> Round for Forget<S> {
    const NAME: &'static str = "remove finished tasks";

    async fn round(&mut self) -> Result<Rest, MessagingError> {
        self.store.forget_finished(self.retention, Deadline::after(Duration::from_secs(60))).await?;
        // What is kept for a short time is looked for more often.
        Ok(Rest::For(self.retention.clamp(Duration::from_secs(1), Duration::from_secs(600))))
    }
}
