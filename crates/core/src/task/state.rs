//! The states of a task, and which follow which.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::MessagingError;

/// Where a task is in its life.
///
/// ```text
/// PENDING ──send──▶ ENQUEUED ──claim──▶ PROCESSING ──▶ SUCCEEDED
///    │                 ▲                  │   │
///    └──claim──────────┼──▶ (PROCESSING)  │   └──────▶ DEAD ──replay──▶ PENDING
///                      └──retry, lost─────┘    (released by a worker that polls: ──▶ PENDING)
/// from PENDING, ENQUEUED and PROCESSING: ──cancel──▶ CANCELED, ──deadline──▶ DEAD
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TaskState {
    /// Made, and not yet on its way: it may not be due.
    Pending,
    /// On its way to a worker, or back from one to be tried again.
    Enqueued,
    /// A worker holds it, under a lease.
    Processing,
    /// Done.
    Succeeded,
    /// Given up.
    Dead,
    /// Called off.
    Canceled,
}

impl TaskState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Enqueued, Self::Processing, Self::Succeeded, Self::Dead, Self::Canceled];

    /// The state's name in columns and texts.
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

    /// Whether nothing happens to it any more by itself.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Dead | Self::Canceled)
    }

    /// Whether a task may go from this state to that one. Stores keep to it; the suite tries all pairs.
    pub const fn may_become(self, next: Self) -> bool {
        use TaskState::{Canceled, Dead, Enqueued, Pending, Processing, Succeeded};
        match (self, next) {
            (Pending, Enqueued | Processing | Canceled | Dead) => true,
            // Back to PENDING: it is wanted now and not at the time that its message is for.
            (Enqueued, Pending | Processing | Canceled | Dead) => true,
            // Back to PENDING: it was never begun, and where workers look for themselves nothing is on its way to them.
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
            MessagingError::invalid("task state", format!("'{}' is none of {names}", name.escape_debug()))
        })
    }
}

/// Why a task died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// Its last attempt failed.
    MaxAttempts,
    /// Its handler said that trying again is of no use.
    Permanent,
    /// The worker of its last attempt was lost.
    LeaseLost,
    /// Its deadline passed.
    Deadline,
    /// Its retry strategy allows no further attempt, although some were left.
    RetriesExhausted,
}

impl DeadReason {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::MaxAttempts, Self::Permanent, Self::LeaseLost, Self::Deadline, Self::RetriesExhausted];

    /// The reason's name in columns and texts.
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
            MessagingError::invalid("reason of death", format!("'{}' is none of {names}", name.escape_debug()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_columns_words() {
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
    fn nothing_follows_an_end_but_a_replay() {
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
