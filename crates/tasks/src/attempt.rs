//! One attempt, from its claim to the outcome of the task.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use postrider_core::task::{
    ClaimedTask, DeadReason, Finish, TaskLease, TaskMode, TaskOutcome, TaskStanding, TaskState, TaskType,
};
use postrider_core::{Disposition, Moment, Nack};
use postrider_subscriber::{CancellationToken, HandlerError};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::context::TaskContext;
use crate::decide::{self, Attempt};
use crate::handlers::{Answer, Handlers};
use crate::running::{Attempts, Running, StopReason};

/// Runs the attempts of a worker.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) handlers: Handlers,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) worker: Arc<str>,
    /// Time limit of an attempt.
    pub(crate) timeout: Option<Duration>,
    /// Time for a handler to end after it was cancelled.
    pub(crate) cancel_timeout: Duration,
    pub(crate) max_result_bytes: usize,
    /// Cancelled when a stop is requested, so that tasks that wait for a permit are released.
    pub(crate) stopping: Arc<CancellationToken>,
}

/// An attempt that has ended.
#[derive(Debug)]
pub(crate) struct EndedAttempt {
    pub(crate) lease: TaskLease,
    pub(crate) task_type: TaskType,
    pub(crate) attempt_count: u32,
    pub(crate) took: Duration,
    /// `None` if the task is no longer this worker's: there is nothing to report.
    pub(crate) outcome: Option<TaskOutcome>,
    /// Whether the answer to an earlier report was lost.
    pub(crate) may_be_kept: bool,
}

impl EndedAttempt {
    /// The outcome that the store has recorded; `None` if the task was no longer this worker's. A repeated
    /// report after a lost answer finds the state that the first one wrote.
    pub(crate) fn kept(&self, standing: TaskStanding, mode: TaskMode) -> Option<TaskOutcome> {
        let outcome = self.outcome.as_ref()?;
        let was_last = match standing {
            TaskStanding::Spent => true,
            // The lost answer was `Spent`.
            TaskStanding::Lost(Some(TaskState::Dead)) => self.may_be_kept,
            TaskStanding::Held | TaskStanding::Lost(_) => false,
        };
        match (standing, outcome) {
            (_, TaskOutcome::Retry { error, .. }) if was_last => {
                Some(TaskOutcome::Dead { reason: DeadReason::MaxAttempts, error: error.clone() })
            }
            (TaskStanding::Held | TaskStanding::Spent, _) => Some(outcome.clone()),
            (TaskStanding::Lost(state), _) => {
                let is_left = self.may_be_kept && state == Some(left_in(outcome, mode));
                is_left.then(|| outcome.clone())
            }
        }
    }

    /// The report for the store.
    pub(crate) fn finish(&self) -> Option<Finish> {
        self.outcome.clone().map(|outcome| Finish { lease: self.lease, outcome })
    }
}

/// The state in which the end of an attempt leaves a task.
fn left_in(outcome: &TaskOutcome, mode: TaskMode) -> TaskState {
    match (outcome, mode) {
        (TaskOutcome::Succeeded { .. }, _) => TaskState::Succeeded,
        (TaskOutcome::Dead { .. }, _) => TaskState::Dead,
        (TaskOutcome::Retry { .. }, _) | (TaskOutcome::Released, TaskMode::Queue) => TaskState::Enqueued,
        (TaskOutcome::Released, TaskMode::Polling) => TaskState::Pending,
    }
}

impl Runner {
    /// Runs an attempt to its end. `asked` is the time of the claim; `must_stop` is cancelled when the time limit of
    /// the worker's stop has ended.
    pub(crate) async fn run(&self, task: ClaimedTask, asked: Moment, must_stop: &CancellationToken) -> EndedAttempt {
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
            // Its id was delivered by the queue of another type.
            return ended(Some(TaskOutcome::Released));
        };
        let place = self.attempts.begin(task.lease, asked);
        let running = &*place.running;
        if !running.control.is_leased() {
            // The process was suspended, or the store was slow: another worker may have it by now. If none has, it is
            // released.
            return ended(Some(TaskOutcome::Released));
        }
        let context = TaskContext::new(task.clone(), self.worker.clone(), place.running.clone());
        let delivery = context.into_delivery(handler.queue.clone(), self.attempts.lease).with_stopping(&self.stopping);
        // Called inside the future, because a handler may also panic before its first await.
        let work = AssertUnwindSafe(async { handler.service.clone().oneshot(delivery).await }).catch_unwind();
        let work = work.map(|ended| ended.unwrap_or_else(|panic| Err(HandlerError::panicked(&*panic))));
        let answer = self.supervise(work, &task, running, must_stop).await;
        let stopped = running.stop_reason();
        let (by_hand, answer) = match (stopped, running.control.decided()) {
            // A layer releases what never began; an attempt that has used up its time counts all the same.
            (Some(StopReason::TimedOut), Some(Disposition::Nack(Nack::Release))) => {
                (None, Err(HandlerError::timed_out(self.timeout.unwrap_or_default())))
            }
            (_, by_hand) => (by_hand, answer),
        };
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
            _ => Some(decide::answered(&attempt, by_hand, answer, self.max_result_bytes)),
        })
    }

    /// Waits for the end of the work; when it must stop, cancels it and waits a while longer.
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
            () = running.control.cancellation().cancelled() => {}
            reason = too_late => running.stop(reason),
            () = must_stop.cancelled() => running.stop(StopReason::WorkerStopped),
        }
        if let Ok(answer) = tokio::time::timeout(self.cancel_timeout, work).await {
            return answer;
        }
        Err(match running.stop_reason() {
            Some(StopReason::TimedOut) => HandlerError::timed_out(self.timeout.unwrap_or_default()),
            None => HandlerError::retryable("its handler or a layer cancelled it before it was done"),
            Some(_) => HandlerError::retryable("the worker was stopped before it was done"),
        })
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::Deadline;
    use postrider_core::task::{ClaimAnswer, ClaimTasks, NewTask, TaskRoutes, TaskStore};
    use postrider_sqlite::{SqliteOptions, SqliteStore, SqliteTasks};

    use super::*;

    #[tokio::test]
    async fn a_repeated_report_after_a_lost_answer_is_recognized_by_the_state_it_left() {
        let folder = tempfile::tempdir().unwrap();
        let soon = Deadline::default;
        let file = SqliteStore::open(folder.path().join("tasks.db"), SqliteOptions::default()).await.unwrap();
        let task_type = TaskType::new("work").unwrap();
        for mode in [TaskMode::Polling, TaskMode::Queue] {
            let routes = TaskRoutes { mode, ..TaskRoutes::default() };
            let store = SqliteTasks::new(file.connect().await.unwrap(), routes).unwrap();
            let error = || "no".to_owned();
            for outcome in [
                TaskOutcome::Succeeded { result: None },
                TaskOutcome::Dead { reason: DeadReason::Permanent, error: error() },
                TaskOutcome::Retry { after: Duration::from_secs(3600), error: error() },
                TaskOutcome::Released,
            ] {
                let task = NewTask::of(task_type.clone(), "{}");
                let id = store.create(vec![task], soon()).await.unwrap().remove(0).unwrap().id;
                let lease = Duration::from_secs(60);
                let claim = ClaimTasks { types: vec![task_type.clone()], max: 10, lease, worker: "w".into() };
                let claimed = match mode {
                    TaskMode::Polling => store.claim(claim, soon()).await.unwrap().claimed,
                    TaskMode::Queue => {
                        let answers = store.claim_by_id(&[id], lease, "w", soon()).await.unwrap();
                        let claimed = answers.into_iter().filter_map(|answer| match answer {
                            ClaimAnswer::Claimed(task) => Some(*task),
                            _ => None,
                        });
                        claimed.collect()
                    }
                };
                let lease = claimed.iter().map(|task| task.lease).find(|lease| lease.id == id).unwrap();
                let ended = EndedAttempt {
                    lease,
                    task_type: task_type.clone(),
                    attempt_count: 1,
                    took: Duration::ZERO,
                    outcome: Some(outcome.clone()),
                    may_be_kept: true,
                };
                let tell = async || store.finish(vec![ended.finish().unwrap()], soon()).await.unwrap().remove(0);
                assert_eq!(ended.kept(tell().await, mode), Some(outcome.clone()));
                let again = tell().await;
                assert!(matches!(again, TaskStanding::Lost(_)), "{mode}: {outcome:?}: {again:?}");
                assert_eq!(ended.kept(again, mode), Some(outcome.clone()), "{mode}: {again:?}");
                // If no answer was lost, another worker has ended the task.
                let certain = EndedAttempt { may_be_kept: false, ..ended };
                assert_eq!(certain.kept(again, mode), None);
                if outcome == TaskOutcome::Released {
                    drop(store.cancel(&[id], soon()).await.unwrap());
                }
            }
        }
    }

    #[tokio::test]
    async fn a_repeated_retry_of_the_last_attempt_is_a_death() {
        let folder = tempfile::tempdir().unwrap();
        let soon = Deadline::default;
        let file = SqliteStore::open(folder.path().join("tasks.db"), SqliteOptions::default()).await.unwrap();
        let store = SqliteTasks::new(file.connect().await.unwrap(), TaskRoutes::default()).unwrap();
        let task_type = TaskType::new("work").unwrap();
        let task = NewTask::of(task_type.clone(), "{}").max_attempts(1);
        drop(store.create(vec![task], soon()).await.unwrap());
        let lease = Duration::from_secs(60);
        let claim = ClaimTasks { types: vec![task_type.clone()], max: 1, lease, worker: "w".into() };
        let lease = store.claim(claim, soon()).await.unwrap().claimed[0].lease;
        let retry = TaskOutcome::Retry { after: Duration::ZERO, error: "no".into() };
        let took = Duration::ZERO;
        let ended = EndedAttempt { lease, task_type, attempt_count: 1, took, outcome: Some(retry), may_be_kept: true };
        let dead = TaskOutcome::Dead { reason: DeadReason::MaxAttempts, error: "no".into() };
        for standing in [TaskStanding::Spent, TaskStanding::Lost(Some(TaskState::Dead))] {
            let told = store.finish(vec![ended.finish().unwrap()], soon()).await.unwrap().remove(0);
            assert_eq!(told, standing);
            assert_eq!(ended.kept(told, TaskMode::Polling), Some(dead.clone()), "{told:?}");
        }
        let certain = EndedAttempt { may_be_kept: false, ..ended };
        assert_eq!(certain.kept(TaskStanding::Lost(Some(TaskState::Dead)), TaskMode::Polling), None);
    }

    #[test]
    fn a_retry_of_the_last_attempt_is_a_death() {
        let retry = TaskOutcome::Retry { after: Duration::ZERO, error: "no".into() };
        let ended = EndedAttempt {
            lease: TaskLease { id: postrider_core::TaskId::generate(), token: 1 },
            task_type: TaskType::new("work").unwrap(),
            attempt_count: 3,
            took: Duration::ZERO,
            outcome: Some(retry),
            may_be_kept: false,
        };
        let dead = TaskOutcome::Dead { reason: DeadReason::MaxAttempts, error: "no".into() };
        assert_eq!(ended.kept(TaskStanding::Spent, TaskMode::Polling), Some(dead));
    }
}
