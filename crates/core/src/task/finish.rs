//! How an attempt ends, and what is told of it meanwhile.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::claim::{ClaimedTask, TaskLease};
use super::state::{DeadReason, TaskState};
use crate::error::MessagingError;

/// The longest text of progress, in bytes.
const LONGEST_PROGRESS: usize = 1024;

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Whose.
    pub lease: TaskLease,
    /// How.
    pub outcome: TaskOutcome,
}

impl Finish {
    /// Refuses a result of more bytes than a store takes.
    pub fn check(&self, max_payload_bytes: usize) -> Result<(), MessagingError> {
        match &self.outcome {
            TaskOutcome::Succeeded { result: Some(result) } if result.len() > max_payload_bytes => {
                let why = format!(
                    "that of task {} has {} bytes, at most {max_payload_bytes} are allowed; store a reference to the \
                     data instead",
                    self.lease.id,
                    result.len()
                );
                Err(MessagingError::invalid("result", why))
            }
            _ => Ok(()),
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskOutcome {
    /// The work is done.
    Succeeded {
        /// What it brought.
        result: Option<Bytes>,
    },
    /// It failed, and is tried again.
    Retry {
        /// That much later.
        after: Duration,
        /// Why it failed.
        error: String,
    },
    /// It failed for good.
    Dead {
        /// Why there is no further attempt.
        reason: DeadReason,
        /// Why it failed.
        error: String,
    },
    /// It was never begun: it goes back at once, and the attempt is not counted.
    Released,
}

/// Whether a task was still held by the lease that something was asked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what was asked by a lease that is lost was not done"]
pub enum TaskStanding {
    /// It was, and what was asked was done.
    Held,
    /// It was, and a retry was asked for after the last attempt: the task is dead.
    Spent,
    /// It was not, and nothing was changed. The state is that of the task now; `None` when there is no such task.
    Lost(Option<TaskState>),
}

impl TaskStanding {
    /// Whether the task was held, and something was done.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Held | Self::Spent)
    }
}

/// What one call of [`TaskStore::finish_and_claim`](super::TaskStore::finish_and_claim) did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FinishedAndClaimed {
    /// What became of each end, in their order.
    pub finished: Vec<TaskStanding>,
    /// The new attempts.
    pub claimed: Vec<ClaimedTask>,
    /// When nothing was claimed: how long until something may be, as far as is known.
    pub next_due: Option<Duration>,
}

/// How far a task has come.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// From 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Progress {
    /// Progress that a store can keep: a fraction from 0 to 1, and a text that is not too long.
    pub fn new(fraction: Option<f64>, text: Option<String>) -> Result<Self, MessagingError> {
        if fraction.is_some_and(|fraction| !(0.0..=1.0).contains(&fraction)) {
            return Err(MessagingError::invalid("progress", "a fraction is a number from 0 to 1"));
        }
        if text.as_ref().is_some_and(|text| text.len() > LONGEST_PROGRESS || text.contains('\0')) {
            let why = format!("a text has at most {LONGEST_PROGRESS} bytes, and no NUL");
            return Err(MessagingError::invalid("progress", why));
        }
        Ok(Self { fraction, text })
    }
}

/// A sign of life of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    /// Whose lease is renewed.
    pub lease: TaskLease,
    /// How far it has come since the last one.
    pub progress: Option<Progress>,
}
