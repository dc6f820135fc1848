//! Why a workload has no rate.

use postrider_core::{MessageId, MessagingError};

/// Why a workload has no rate.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] MessagingError),
    /// What came out is not what went in.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A part of the workload did not come to its end.
    #[error("a part of the workload ended early: {0}")]
    EndedEarly(#[from] tokio::task::JoinError),
}

/// What came out is not what went in. The store breaks the law; `postrider verify` says which rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Two sends answered the same id.
    #[error("two sends answered the same id {id}; see 'postrider verify'")]
    SameId {
        /// The id.
        id: MessageId,
    },
    /// Messages were accepted and never came.
    #[error("{missing} of {sent} messages were sent and never drained, {id} for one; see 'postrider verify'")]
    Lost {
        /// How many did not come.
        missing: usize,
        /// How many were sent.
        sent: usize,
        /// One that did not come.
        id: MessageId,
    },
    /// A message was acknowledged twice.
    #[error("message {id} was acknowledged twice; see 'postrider verify'")]
    Twice {
        /// Its id.
        id: MessageId,
    },
    /// A message came that was never sent.
    #[error("message {id} was drained and never sent; see 'postrider verify'")]
    Stranger {
        /// Its id.
        id: MessageId,
    },
}
