//! The reaper: ends attempts with lost leases, and tasks whose deadline has passed.

use std::time::Duration;

use postrider_core::task::{DeadReason, Finish, LostLease, TaskId, TaskInfo, TaskOutcome, TaskStore};
use postrider_core::{Deadline, MessagingError};

use crate::decide::{self, Attempt};
use crate::keeper::{Chore, Pause};
use crate::observer::log_failure;

/// Retries tasks whose worker was lost, or makes them dead after their last attempt; makes tasks dead whose deadline
/// has passed.
#[derive(Debug)]
pub(crate) struct Reap<S> {
    pub(crate) store: S,
    pub(crate) batch: usize,
    pub(crate) every: Duration,
}

impl<S: TaskStore> Chore for Reap<S> {
    const NAME: &'static str = "reap lost tasks";

    async fn run(&mut self) -> Result<Pause, MessagingError> {
        // Both run even if one of them fails.
        let (reaped, overdue) = (self.reap().await, self.expire().await);
        let is_full = reaped? >= self.batch || overdue? >= self.batch;
        Ok(if is_full { Pause::None } else { Pause::For(self.every) })
    }
}

impl<S: TaskStore> Reap<S> {
    /// Reaps expired leases, and returns how many were found.
    async fn reap(&self) -> Result<usize, MessagingError> {
        let lost = self.store.lost_leases(self.batch, Deadline::default()).await?;
        if lost.is_empty() {
            return Ok(0);
        }
        let ends: Vec<_> = lost.iter().map(|lost| Finish { lease: lost.lease, outcome: outcome(lost) }).collect();
        let reaped = self.store.reap(ends.clone(), Deadline::default()).await?;
        for ((lost, end), standing) in lost.iter().zip(&ends).zip(&reaped) {
            if standing.is_held() {
                let id = lost.lease.id;
                tracing::warn!(task = %id, worker = %lost.worker, "a worker was lost");
                let info = self.info(id).await;
                log_failure(info.as_ref().map(|info| &info.task_type), id, lost.attempt_count, &end.outcome);
            }
        }
        Ok(lost.len())
    }

    /// Ends tasks whose deadline has passed, and returns how many.
    async fn expire(&self) -> Result<usize, MessagingError> {
        let overdue = self.store.expire_overdue(self.batch, Deadline::default()).await?;
        for id in &overdue {
            let info = self.info(*id).await;
            let attempt = info.as_ref().map_or(0, |info| info.attempt_count);
            let error = "the deadline passed before it was done".to_owned();
            let outcome = TaskOutcome::Dead { reason: DeadReason::Deadline, error };
            log_failure(info.as_ref().map(|info| &info.task_type), *id, attempt, &outcome);
        }
        Ok(overdue.len())
    }

    /// A task's information for the log; `None` if the store does not answer now.
    async fn info(&self, id: TaskId) -> Option<TaskInfo> {
        Some(self.store.get(id, Deadline::default()).await.ok()??.info)
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

/// Removes tasks that ended long ago.
#[derive(Debug)]
pub(crate) struct Forget<S> {
    pub(crate) store: S,
    pub(crate) retention: Duration,
}

impl<S: TaskStore> Chore for Forget<S> {
    const NAME: &'static str = "remove finished tasks";

    async fn run(&mut self) -> Result<Pause, MessagingError> {
        self.store.forget_finished(self.retention, Deadline::after(Duration::from_secs(60))).await?;
        // With a short retention, old tasks are removed more often.
        Ok(Pause::For(self.retention.clamp(Duration::from_secs(1), Duration::from_secs(600))))
    }
}
