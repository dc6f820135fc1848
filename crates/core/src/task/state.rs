//! The states of a task and their transitions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::MessagingError;

/// The state of a task.
///
/// ```text
/// PENDING ──send──▶ ENQUEUED ──claim──▶ PROCESSING ──▶ SUCCEEDED
///    │                 ▲                  │   │
///    └──claim──────────┼──▶ (PROCESSING)  │   └──────▶ DEAD ──replay──▶ PENDING
///                      └──retry, lost─────┘    (released by a worker that polls: ──▶ PENDING)
/// from PENDING, ENQUEUED and PROCESSING: ──cancel──▶ CANCELED, ──deadline──▶ DEAD
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline, description = ""))]
#[serde(rename_all = "UPPERCASE")]
pub enum TaskState {
    /// Created and not enqueued; possibly not due.
    Pending,
    /// Enqueued for a worker, or for a retry.
    Enqueued,
    /// Leased by a worker.
    Processing,
    /// Succeeded.
    Succeeded,
    /// Dead: it failed for good.
    Dead,
    /// Canceled.
    Canceled,
}

impl TaskState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Enqueued, Self::Processing, Self::Succeeded, Self::Dead, Self::Canceled];

    /// The name of the state in columns and texts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Enqueued => "ENQUEUED",
            Self::Processing => "PROCESSING",
            Self::Succeeded => "SUCCEEDED",
            Self::Dead => "DEAD",
            Self::Canceled => "CANCELED",
        }
    }

    /// Whether the task has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Dead | Self::Canceled)
    }

    /// Whether a transition from this state to `next` is allowed. Stores enforce it; the suite tries all pairs.
    pub const fn may_become(self, next: Self) -> bool {
        use TaskState::{Canceled, Dead, Enqueued, Pending, Processing, Succeeded};
        match (self, next) {
            (Pending, Enqueued | Processing | Canceled | Dead) => true,
            // To PENDING by `run_now`: its message is for a later time.
            (Enqueued, Pending | Processing | Canceled | Dead) => true,
            // To PENDING by a release: the attempt was never begun, and where workers poll, no message will deliver the
            // task.
            (Processing, Succeeded | Enqueued | Pending | Dead | Canceled) => true,
            (Dead, Pending) => true,
            _ => false,
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TaskState {
    type Err = MessagingError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            MessagingError::invalid(
                "task state",
                format!("'{}' is not a state; use one of {names}", name.escape_debug()),
            )
        })
    }
}

/// Why a task died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// Its last attempt failed.
    MaxAttempts,
    /// Its handler reported that a retry is useless.
    Permanent,
    /// The worker of its last attempt was lost.
    LeaseLost,
    /// Its deadline passed.
    Deadline,
    /// Its retry strategy allows no further attempt, although `max_attempts` is not reached.
    RetriesExhausted,
}

impl DeadReason {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::MaxAttempts, Self::Permanent, Self::LeaseLost, Self::Deadline, Self::RetriesExhausted];

    /// The name of the reason in columns and texts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::Permanent => "permanent",
            Self::LeaseLost => "lease_lost",
            Self::Deadline => "deadline",
            Self::RetriesExhausted => "retries_exhausted",
        }
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DeadReason {
    type Err = MessagingError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            MessagingError::invalid(
                "reason of death",
                format!("'{}' is not a reason; use one of {names}", name.escape_debug()),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_values_in_columns() {
        for state in TaskState::ALL {
            assert_eq!(state.as_str().parse::<TaskState>().unwrap(), state);
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{state}\""));
        }
        assert_eq!("dead".parse::<TaskState>().unwrap(), TaskState::Dead);
        for reason in DeadReason::ALL {
            assert_eq!(reason.as_str().parse::<DeadReason>().unwrap(), reason);
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{reason}\""));
        }
        assert!("DONE".parse::<TaskState>().is_err());
    }

    #[test]
    fn an_ended_task_has_no_transition_but_a_replay() {
        for from in TaskState::ALL.into_iter().filter(|state| state.is_terminal()) {
            for to in TaskState::ALL {
                assert_eq!(from.may_become(to), (from, to) == (TaskState::Dead, TaskState::Pending), "{from} {to}");
            }
        }
        for from in TaskState::ALL.into_iter().filter(|state| !state.is_terminal()) {
            assert!(from.may_become(TaskState::Canceled) && from.may_become(TaskState::Dead), "{from}");
            assert!(!from.may_become(from), "{from}");
        }
    }
}
