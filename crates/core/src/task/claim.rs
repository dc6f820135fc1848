//! What a claim asks for, and what it brings.

use std::time::Duration;

use bytes::Bytes;

use super::names::{TaskId, TaskType};
use crate::clock::Timestamp;
use crate::error::MessagingError;
use crate::message::{Key, MAX_DURATION, Priority, check_duration};
use crate::retry::RetryStrategy;

/// A claim of what is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTasks {
    /// Of these types.
    pub types: Vec<TaskType>,
    /// At most that many.
    pub max: usize,
    /// How long the lease lasts, unless it is renewed.
    pub lease: Duration,
    /// Who claims.
    pub worker: String,
}

impl ClaimTasks {
    /// Refuses what cannot be meant.
    pub fn check(&self) -> Result<(), MessagingError> {
        check_lease(self.lease)
    }
}

/// Refuses a lease that is over before it begins. What a store does first, wherever it is asked for one.
pub fn check_lease(lease: Duration) -> Result<(), MessagingError> {
    if lease.is_zero() {
        return Err(MessagingError::invalid("task lease", "it is over before it begins; allow some time"));
    }
    check_duration("task lease", lease, MAX_DURATION)
}

/// The right to say what became of an attempt: the task, and the token of its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskLease {
    /// The task.
    pub id: TaskId,
    /// Drawn anew by every claim.
    pub token: i64,
}

/// A task that was claimed.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedTask {
    /// What ends the attempt.
    pub lease: TaskLease,
    /// Which handler runs it.
    pub task_type: TaskType,
    /// What the handler is given.
    pub payload: Bytes,
    /// Which attempt this is; 1 is the first.
    pub attempt_count: u32,
    /// How many there are.
    pub max_attempts: u32,
    /// When a failure is followed by the next attempt; `None` is the default strategy.
    pub retry_strategy: Option<RetryStrategy>,
    /// How urgent it is.
    pub priority: Priority,
    /// The key that it is ordered by.
    pub ordering_key: Option<Key>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was due.
    pub scheduled_for: Timestamp,
    /// How long ago, by the store's clock, the first attempt began.
    pub since_first_attempt: Duration,
    /// How long, by the store's clock, until it is too late.
    pub time_left: Option<Duration>,
}

/// What became of a claim by id.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimAnswer {
    /// It was claimed.
    Claimed(Box<ClaimedTask>),
    /// It may not be claimed before that long.
    NotDue(Duration),
    /// Somebody else has it, or it has ended, or there is no such task: the delivery has nothing to do.
    NotClaimable,
}

/// A task whose worker was lost: its lease has run out.
#[derive(Debug, Clone, PartialEq)]
pub struct LostLease {
    /// The lease that has run out.
    pub lease: TaskLease,
    /// The task's type.
    pub task_type: TaskType,
    /// Who held it.
    pub worker: String,
    /// Which attempt it was.
    pub attempt_count: u32,
    /// How many there are.
    pub max_attempts: u32,
    /// When the next attempt follows.
    pub retry_strategy: Option<RetryStrategy>,
    /// How long ago the first attempt began.
    pub since_first_attempt: Duration,
}
