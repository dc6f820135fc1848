//! The end of an attempt, and reports of its progress.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::claim::{ClaimedTask, TaskLease};
use super::state::{DeadReason, TaskState};
use crate::error::MessagingError;

/// Upper bound of a progress text, in bytes.
const MAX_PROGRESS_BYTES: usize = 1024;

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The lease.
    pub lease: TaskLease,
    /// The outcome.
    pub outcome: TaskOutcome,
}

impl Finish {
    /// Refuses a result above the limit of the store.
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

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskOutcome {
    /// It succeeded.
    Succeeded {
        /// The result.
        result: Option<Bytes>,
    },
    /// It failed and is retried.
    Retry {
        /// The delay until the retry.
        after: Duration,
        /// The error.
        error: String,
    },
    /// It failed for good.
    Dead {
        /// Why there is no further attempt.
        reason: DeadReason,
        /// The error.
        error: String,
    },
    /// It was never begun: the task is due at once, and the attempt is not counted.
    Released,
}

/// Whether a lease was still valid for the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "nothing is done for a lost lease"]
pub enum TaskStanding {
    /// The lease was valid, and the operation is done.
    Held,
    /// The lease was valid, and the retry came after the last attempt: the task is dead.
    Spent,
    /// The lease was lost, and nothing was changed. The current state of the task; `None` if it does not exist.
    Lost(Option<TaskState>),
}

impl TaskStanding {
    /// Whether the lease was valid and the operation is done.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Held | Self::Spent)
    }
}

/// The result of [`TaskStore::finish_and_claim`](super::TaskStore::finish_and_claim).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FinishedAndClaimed {
    /// The results of the finished attempts, in order.
    pub finished: Vec<TaskStanding>,
    /// The claimed tasks.
    pub claimed: Vec<ClaimedTask>,
    /// If nothing was claimed, the known time until a task may be due.
    pub next_due: Option<Duration>,
}

/// The progress of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline, extend("additionalProperties" = false)))]
pub struct Progress {
    /// From 0 to 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// A text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Progress {
    /// Checks the fraction and the length of the text.
    pub fn new(fraction: Option<f64>, text: Option<String>) -> Result<Self, MessagingError> {
        if fraction.is_some_and(|fraction| !(0.0..=1.0).contains(&fraction)) {
            return Err(MessagingError::invalid("progress", "the fraction is not between 0 and 1"));
        }
        if text.as_ref().is_some_and(|text| text.len() > MAX_PROGRESS_BYTES || text.contains('\0')) {
            let why = format!("the text has more than {MAX_PROGRESS_BYTES} bytes, or contains NUL");
            return Err(MessagingError::invalid("progress", why));
        }
        Ok(Self { fraction, text })
    }
}

/// The heartbeat of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    /// The lease to extend.
    pub lease: TaskLease,
    /// The progress since the last heartbeat.
    pub progress: Option<Progress>,
}
