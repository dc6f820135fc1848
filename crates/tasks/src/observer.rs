//! Observers of attempts, and their counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider_core::Timestamp;
use postrider_core::task::{TaskId, TaskOutcome, TaskType};

/// An attempt whose end the store has recorded, or whose task was lost.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TaskEnded {
    /// The task.
    pub id: TaskId,
    /// Its type.
    pub task_type: TaskType,
    /// The number of the attempt.
    pub attempt: u32,
    /// How it ended; `None` if the worker lost the task: it was canceled or overdue, or its lease was lost.
    pub outcome: Option<TaskOutcome>,
    /// Run time of the handler.
    pub took: Duration,
}

/// Logs a failed attempt: a warning when another follows, an error when its task is dead.
pub(crate) fn log_failure(task_type: Option<&TaskType>, id: TaskId, attempt: u32, outcome: &TaskOutcome) {
    let task_type = task_type.map(TaskType::as_str);
    match outcome {
        TaskOutcome::Retry { after, error } => {
            let next_attempt_at = Timestamp::now().saturating_add(*after);
            tracing::warn!(task_type, %id, attempt, error, %next_attempt_at, "a task failed and is tried again");
        }
        TaskOutcome::Dead { reason, error } => {
            tracing::error!(task_type, %id, attempt, error, %reason, "a task is dead");
        }
        TaskOutcome::Succeeded { .. } | TaskOutcome::Released => {}
    }
}

/// Called for each attempt, by the worker's loops: it must not block.
pub trait TaskObserver: Send + Sync + 'static {
    /// An attempt has ended, and the store has answered its report.
    fn ended(&self, attempt: &TaskEnded);

    /// The store or the queue did not answer. The call will be retried.
    fn trouble(&self, error: &postrider_core::MessagingError) {
        let _ = error;
    }
}

/// The attempts of a worker by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TaskCounts {
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed and are retried.
    pub retried: u64,
    /// Attempts after which their task was dead.
    pub dead: u64,
    /// Attempts whose task was lost: it was canceled or overdue, or its lease was lost.
    pub lost: u64,
    /// Deliveries with nothing to do: their task has ended, is with another worker, or does not exist.
    pub idle_deliveries: u64,
}

impl fmt::Display for TaskCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { succeeded, retried, dead, lost, .. } = self;
        write!(f, "{succeeded} succeeded, {retried} to be tried again, {dead} dead, {lost} lost")
    }
}

/// The current counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    succeeded: AtomicU64,
    retried: AtomicU64,
    dead: AtomicU64,
    lost: AtomicU64,
    idle_deliveries: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, outcome: Option<&TaskOutcome>) {
        let counter = match outcome {
            Some(TaskOutcome::Succeeded { .. }) => &self.succeeded,
            Some(TaskOutcome::Retry { .. }) => &self.retried,
            Some(TaskOutcome::Dead { .. }) => &self.dead,
            Some(TaskOutcome::Released) => &self.idle_deliveries,
            None => &self.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_idle_delivery(&self) {
        self.idle_deliveries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> TaskCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TaskCounts {
            succeeded: read(&self.succeeded),
            retried: read(&self.retried),
            dead: read(&self.dead),
            lost: read(&self.lost),
            idle_deliveries: read(&self.idle_deliveries),
        }
    }
}
