//! The states of a message.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// Waiting for its first lease, or again after a lease ended without a failure.
    Pending,
    /// Leased.
    Processing,
    /// Waiting after a failed attempt.
    Retryable,
    /// Acknowledged.
    Completed,
    /// Dead-lettered.
    Failed,
}

impl State {
    /// The state's name in every store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Processing => "PROCESSING",
            Self::Retryable => "RETRYABLE",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of a message in a queue that is not a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LiveState {
    /// Waiting for its first lease, or again after a lease ended without a failure.
    Pending,
    /// Leased.
    Processing,
    /// Waiting after a failed attempt.
    Retryable,
}

impl From<LiveState> for State {
    fn from(state: LiveState) -> Self {
        match state {
            LiveState::Pending => Self::Pending,
            LiveState::Processing => Self::Processing,
            LiveState::Retryable => Self::Retryable,
        }
    }
}
