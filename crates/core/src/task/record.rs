//! A task as its store knows it.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::finish::Progress;
use super::names::{TaskId, TaskType};
use super::state::{DeadReason, TaskState};
use crate::clock::Timestamp;
use crate::idempotency::IdempotencyKey;
use crate::message::{Key, Priority};
use crate::retry::RetryStrategy;

/// Everything about a task but its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskInfo {
    /// Its identity.
    pub id: TaskId,
    /// Its type.
    pub task_type: TaskType,
    /// Where it is in its life.
    pub state: TaskState,
    /// How urgent it is.
    pub priority: Priority,
    /// The key that it is ordered by.
    pub ordering_key: Option<Key>,
    /// Whether it waits behind another task of its key.
    pub is_blocked: bool,
    /// The key that it is single by.
    pub idempotency_key: Option<IdempotencyKey>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// The schedule that made it.
    pub schedule: Option<String>,
    /// How many attempts were begun, since it was last replayed.
    pub attempt_count: u32,
    /// How many there are.
    pub max_attempts: u32,
    /// When a failure is followed by the next attempt; `None` is the default strategy.
    pub retry_strategy: Option<RetryStrategy>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it is, or was, due.
    pub scheduled_for: Timestamp,
    /// When it is too late.
    pub deadline: Option<Timestamp>,
    /// When it was last sent on its way.
    pub enqueued_at: Option<Timestamp>,
    /// When the current or last attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Who works on it, or did last.
    pub worker: Option<String>,
    /// When the lease of the current attempt ends.
    pub lease_expires_at: Option<Timestamp>,
    /// How far the current or last attempt has come.
    pub progress: Option<Progress>,
    /// Why it died.
    pub dead_reason: Option<DeadReason>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// How often its payload was edited.
    pub revision: u32,
    /// How often it was replayed.
    pub replay_count: u32,
}

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Everything but its bytes.
    pub info: TaskInfo,
    /// What its handler is given.
    pub payload: Bytes,
    /// What it brought.
    pub result: Option<Bytes>,
}

/// How an attempt ended, or that it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// It is under way.
    Running,
    /// The work was done.
    Succeeded,
    /// It failed.
    Failed,
    /// Its worker was lost.
    LeaseLost,
    /// The task was canceled meanwhile.
    Canceled,
    /// The task's deadline passed meanwhile.
    Deadline,
}

impl AttemptOutcome {
    /// The outcome's name in columns and texts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::LeaseLost => "lease_lost",
            Self::Canceled => "canceled",
            Self::Deadline => "deadline",
        }
    }

    /// The outcome of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Running, Self::Succeeded, Self::Failed, Self::LeaseLost, Self::Canceled, Self::Deadline]
            .into_iter()
            .find(|outcome| outcome.as_str() == name)
    }
}

impl fmt::Display for AttemptOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One attempt of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskAttempt {
    /// Which one it was; 1 is the first since the task was made or last replayed.
    pub attempt: u32,
    /// After how many replays it was made.
    pub replay: u32,
    /// Who made it.
    pub worker: String,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// Why it failed.
    pub error: Option<String>,
}

/// A payload that a task had before it was edited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadRevision {
    /// 0 is the one that the task was made with.
    pub revision: u32,
    /// The bytes.
    pub payload: Bytes,
    /// When it was replaced.
    pub replaced_at: Timestamp,
}
