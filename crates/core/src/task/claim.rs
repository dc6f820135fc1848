//! Claims of tasks, and their results.

use std::time::Duration;

use bytes::Bytes;

use super::names::{TaskId, TaskType};
use crate::clock::Timestamp;
use crate::error::MessagingError;
use crate::message::{Key, MAX_DURATION, Priority, check_duration};
use crate::retry::RetryStrategy;

/// A claim of due tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTasks {
    /// The task types.
    pub types: Vec<TaskType>,
    /// Upper bound of the tasks.
    pub max: usize,
    /// Lease duration.
    pub lease: Duration,
    /// The worker that claims.
    pub worker: String,
}

impl ClaimTasks {
    /// Checks the claim.
    pub fn check(&self) -> Result<(), MessagingError> {
        check_lease(self.lease)
    }
}

/// Refuses a lease of zero length. A store calls it before anything else.
pub fn check_lease(lease: Duration) -> Result<(), MessagingError> {
    if lease.is_zero() {
        return Err(MessagingError::invalid("task lease", "it is 0; use a longer one"));
    }
    check_duration("task lease", lease, MAX_DURATION)
}

/// The right to finish an attempt: the task and the token of its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskLease {
    /// The task.
    pub id: TaskId,
    /// Unique for each claim.
    pub token: i64,
}

/// A claimed task.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedTask {
    /// The lease of the attempt.
    pub lease: TaskLease,
    /// The task type.
    pub task_type: TaskType,
    /// The payload.
    pub payload: Bytes,
    /// The number of this attempt, from 1.
    pub attempt_count: u32,
    /// Upper bound of the attempts.
    pub max_attempts: u32,
    /// The retry strategy; `None` is the default.
    pub retry_strategy: Option<RetryStrategy>,
    /// The priority.
    pub priority: Priority,
    /// The ordering key.
    pub ordering_key: Option<Key>,
    /// The tags.
    pub tags: Vec<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was due.
    pub scheduled_for: Timestamp,
    /// The time since the first attempt began, by the store's clock.
    pub since_first_attempt: Duration,
    /// The time until the deadline, by the store's clock.
    pub time_left: Option<Duration>,
}

/// The result of a claim by id.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimAnswer {
    /// The task was claimed.
    Claimed(Box<ClaimedTask>),
    /// The task cannot be claimed for this long.
    NotDue(Duration),
    /// Another worker has the task, it has ended, or it does not exist: the delivery has nothing to do.
    NotClaimable,
}

/// A task whose lease has expired, because its worker was lost.
#[derive(Debug, Clone, PartialEq)]
pub struct LostLease {
    /// The expired lease.
    pub lease: TaskLease,
    /// The task type.
    pub task_type: TaskType,
    /// The worker that held it.
    pub worker: String,
    /// The number of the attempt.
    pub attempt_count: u32,
    /// Upper bound of the attempts.
    pub max_attempts: u32,
    /// The retry strategy.
    pub retry_strategy: Option<RetryStrategy>,
    /// The time since the first attempt began.
    pub since_first_attempt: Duration,
}
