//! Errors of workloads.

use postrider_core::{MessageId, MessagingError};

/// Why a workload failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] MessagingError),
    /// The drained messages are not the sent ones.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A task of the workload panicked or was canceled.
    #[error("a task of the workload ended early: {0}")]
    EndedEarly(#[from] tokio::task::JoinError),
}

/// The drained messages are not the sent ones. The store breaks the law; `postrider verify` finds the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Two sends returned the same id.
    #[error("two sends returned the same id {id}; see 'postrider verify'")]
    SameId {
        /// The id.
        id: MessageId,
    },
    /// Sent messages were never received.
    #[error("{missing} of {sent} sent messages were never received, for example {id}; see 'postrider verify'")]
    Lost {
        /// Number of missing messages.
        missing: usize,
        /// Number of sent messages.
        sent: usize,
        /// One of the missing messages.
        id: MessageId,
    },
    /// A message was acknowledged twice.
    #[error("message {id} was acknowledged twice; see 'postrider verify'")]
    Twice {
        /// Its id.
        id: MessageId,
    },
    /// A message was received that was never sent.
    #[error("message {id} was received but never sent; see 'postrider verify'")]
    Stranger {
        /// Its id.
        id: MessageId,
    },
}
