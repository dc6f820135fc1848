//! A task, as its store keeps it.

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

/// A task without payload and result.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskInfo {
    /// The task's id.
    pub id: TaskId,
    /// The task type.
    pub task_type: TaskType,
    /// The state.
    pub state: TaskState,
    /// The priority.
    pub priority: Priority,
    /// The ordering key.
    pub ordering_key: Option<Key>,
    /// Whether it waits for another task of its ordering key.
    pub is_blocked: bool,
    /// The idempotency key.
    pub idempotency_key: Option<IdempotencyKey>,
    /// The tags.
    pub tags: Vec<String>,
    /// The schedule that created it.
    pub schedule: Option<String>,
    /// Number of attempts since the last replay.
    pub attempt_count: u32,
    /// Upper bound of the attempts.
    pub max_attempts: u32,
    /// The retry strategy; `None` is the default.
    pub retry_strategy: Option<RetryStrategy>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it is or was due.
    pub scheduled_for: Timestamp,
    /// The deadline.
    pub deadline: Option<Timestamp>,
    /// When it was last enqueued.
    pub enqueued_at: Option<Timestamp>,
    /// When the current or last attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The current or last worker.
    pub worker: Option<String>,
    /// When the lease of the current attempt ends.
    pub lease_expires_at: Option<Timestamp>,
    /// The progress of the current or last attempt.
    pub progress: Option<Progress>,
    /// Why it died.
    pub dead_reason: Option<DeadReason>,
    /// The error of the last attempt.
    pub last_error: Option<String>,
    /// Number of payload edits.
    pub revision: u32,
    /// Number of replays.
    pub replay_count: u32,
}

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The fields except payload and result.
    pub info: TaskInfo,
    /// The payload.
    pub payload: Bytes,
    /// The result.
    pub result: Option<Bytes>,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The attempt is running.
    Running,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// Its lease expired.
    LeaseLost,
    /// The task was canceled during the attempt.
    Canceled,
    /// The deadline of the task passed during the attempt.
    Deadline,
}

impl AttemptOutcome {
    /// The name of the outcome in columns and texts.
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

    /// The outcome with that name.
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
    /// The number of the attempt since the creation or the last replay, from 1.
    pub attempt: u32,
    /// Number of replays before the attempt.
    pub replay: u32,
    /// The worker.
    pub worker: String,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The outcome.
    pub outcome: AttemptOutcome,
    /// The error.
    pub error: Option<String>,
}

/// An earlier payload of an edited task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadRevision {
    /// The number of the revision; 0 is the original payload.
    pub revision: u32,
    /// The payload.
    pub payload: Bytes,
    /// When it was replaced.
    pub replaced_at: Timestamp,
}
