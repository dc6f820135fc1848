//! One attempt, from its claim to what it means for the task.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use postrider_core::task::{
    ClaimedTask, DeadReason, Finish, TaskLease, TaskOutcome, TaskStanding, TaskState, TaskType,
};
use postrider_subscriber::{CancellationToken, HandlerError};
use tokio::time::Instant;

use crate::decide::{self, Attempt};
use crate::handler::{Handlers, TaskContext};
use crate::running::{Attempts, Running, StopReason};

/// What runs the attempts of a worker.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) handlers: Handlers,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) worker: Arc<str>,
    /// How long an attempt may take.
    pub(crate) timeout: Option<Duration>,
    /// How long a handler may go on after it was told to stop.
    pub(crate) cancel_timeout: Duration,
    pub(crate) max_result_bytes: usize,
}

/// An attempt that has ended.
#[derive(Debug)]
pub(crate) struct EndedAttempt {
    pub(crate) lease: TaskLease,
    pub(crate) task_type: TaskType,
    pub(crate) attempt_count: u32,
    pub(crate) took: Duration,
    /// `None` when the task was taken from it: there is nothing to say any more.
    pub(crate) outcome: Option<TaskOutcome>,
    /// Whether the store was told before and its answer was lost.
    pub(crate) may_be_kept: bool,
}

impl EndedAttempt {
    /// Whether the store has kept what it was told. Told again after a lost answer, it finds the task as it was told.
    pub(crate) fn is_kept(&self, standing: TaskStanding) -> bool {
        let left_in = self.outcome.as_ref().map(|outcome| match outcome {
            TaskOutcome::Succeeded { .. } => TaskState::Succeeded,
            TaskOutcome::Dead { .. } => TaskState::Dead,
            TaskOutcome::Retry { .. } | TaskOutcome::Released => TaskState::Enqueued,
        });
        match standing {
            TaskStanding::Held => left_in.is_some(),
            TaskStanding::Lost(state) => self.may_be_kept && left_in.is_some() && state == left_in,
        }
    }

    /// What the store is told.
    pub(crate) fn finish(&self) -> Option<Finish> {
        self.outcome.clone().map(|outcome| Finish { lease: self.lease, outcome })
    }
}

type Answer = Result<Option<Bytes>, HandlerError>;

impl Runner {
    /// Runs an attempt to its end. `must_stop` is cancelled when the worker cannot wait any longer.
    pub(crate) async fn run(&self, task: ClaimedTask, must_stop: &CancellationToken) -> EndedAttempt {
        let began = Instant::now();
        let task = Arc::new(task);
        let ended = |outcome| EndedAttempt {
            lease: task.lease,
            task_type: task.task_type.clone(),
            attempt_count: task.attempt_count,
            took: began.elapsed(),
            outcome,
            may_be_kept: false,
        };
        let Some(handler) = self.handlers.get(&task.task_type) else {
            // Its id came by the queue of another type.
            return ended(Some(TaskOutcome::Released));
        };
        let place = self.attempts.begin(task.lease);
        let running = &*place.running;
        let context = TaskContext::new(task.clone(), self.worker.clone(), place.running.clone());
        // Called inside, because a handler may also panic before its first await.
        let work = AssertUnwindSafe(async { handler(context).await }).catch_unwind();
        let work = work.map(|ended| ended.unwrap_or_else(|panic| Err(HandlerError::panicked(&*panic))));
        let answer = self.supervise(work, &task, running, must_stop).await;
        let (stopped, is_released) = (running.stop_reason(), running.is_released());
        drop(place);
        let attempt = Attempt {
            attempt_count: task.attempt_count,
            max_attempts: task.max_attempts,
            strategy: task.retry_strategy.as_ref(),
            since_first_attempt: task.since_first_attempt.saturating_add(began.elapsed()),
            random: rand::random(),
        };
        ended(match stopped {
            Some(StopReason::Canceled | StopReason::LeaseLost) => None,
            Some(StopReason::DeadlinePassed) => {
                let error = "the deadline passed before it was done".to_owned();
                Some(TaskOutcome::Dead { reason: DeadReason::Deadline, error })
            }
            _ if is_released => Some(TaskOutcome::Released),
            _ => Some(decide::answered(&attempt, answer, self.max_result_bytes)),
        })
    }

    /// Waits for the end of the work, or until it is told to stop and has had some time to do so.
    async fn supervise(
        &self,
        work: impl Future<Output = Answer>,
        task: &ClaimedTask,
        running: &Running,
        must_stop: &CancellationToken,
    ) -> Answer {
        let mut work = std::pin::pin!(work);
        let timed_out = self.timeout.map(|timeout| (timeout, StopReason::TimedOut));
        let overdue = task.time_left.map(|left| (left, StopReason::DeadlinePassed));
        let limit = [timed_out, overdue].into_iter().flatten().min_by_key(|(time, _)| *time);
        let too_late = async {
            match limit {
                Some((time, reason)) => {
                    tokio::time::sleep(time).await;
                    reason
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = &mut work => return answer,
            () = running.cancel.cancelled() => {}
            reason = too_late => running.stop(reason),
            () = must_stop.cancelled() => running.stop(StopReason::WorkerStopped),
        }
        if let Ok(answer) = tokio::time::timeout(self.cancel_timeout, work).await {
            return answer;
        }
        Err(match running.stop_reason() {
            Some(StopReason::TimedOut) => HandlerError::timed_out(self.timeout.unwrap_or_default()),
            _ => HandlerError::retryable("the worker was stopped before it was done"),
        })
    }
}
