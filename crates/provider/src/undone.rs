//! Why an operation was not done, and how it is retried.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::coalescer::BatchFailure;
use postrider_core::{MessageId, MessagingError};

/// Attempts of an operation that other transactions block.
const TRIES: u32 = 8;

/// Why an operation was not done, or may not have been.
#[derive(Debug, Clone)]
pub enum Undone {
    /// Nothing was done, because a row was rejected.
    Rejected(MessagingError),
    /// Nothing was done, and no row is at fault.
    NotDone(MessagingError),
    /// Nothing was done because of other transactions; the same operation may succeed at once.
    InTheWay(MessagingError),
    /// The outcome is unknown: the answer was lost.
    Unknown(MessagingError),
}

impl From<MessagingError> for Undone {
    fn from(error: MessagingError) -> Self {
        Self::NotDone(error)
    }
}

/// The cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// A row cannot be stored.
    Row,
    /// Another transaction.
    Others,
    /// The server or the connection to it.
    Server,
    /// Credentials, privileges or schema: the same operation will never succeed.
    Setup,
}

impl Blame {
    /// Whether the same call may succeed later.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Others | Self::Server)
    }
}

/// How far a transaction had come when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The commit was not sent, or the server rejected the transaction before it.
    BeforeCommit,
    /// The commit was sent, at least together with the statement.
    Committing,
}

impl Undone {
    /// Classifies a failure. `is_answer` says whether the server reported it; otherwise the connection broke.
    pub fn sort(phase: Phase, is_answer: bool, blame: Blame, error: MessagingError) -> Self {
        match (phase, is_answer, blame) {
            (Phase::Committing, false, _) => Self::Unknown(error),
            (_, _, Blame::Row) => Self::Rejected(error),
            (_, _, Blame::Others) => Self::InTheWay(error),
            (_, _, Blame::Server | Blame::Setup) => Self::NotDone(error),
        }
    }

    /// The error for a caller that asked about these messages.
    pub fn into_error(self, operation: &'static str, ids: Vec<MessageId>) -> MessagingError {
        match self {
            Self::Rejected(error) | Self::NotDone(error) => error,
            Self::InTheWay(error) => busy(error),
            Self::Unknown(error) => MessagingError::OutcomeUnknown { operation, ids, source: Some(Arc::new(error)) },
        }
    }

    /// The error for an operation that changes nothing or is harmless to repeat.
    pub fn into_harmless(self) -> MessagingError {
        match self {
            Self::Rejected(error) | Self::NotDone(error) | Self::Unknown(error) => error,
            Self::InTheWay(error) => busy(error),
        }
    }

    /// The failure of a batch.
    pub fn into_batch_failure(self) -> BatchFailure {
        match self {
            // The lock may concern a single row: split from the others, it alone waits.
            Self::InTheWay(error) => BatchFailure::Rejected(busy(error)),
            Self::Rejected(error) => BatchFailure::Rejected(error),
            Self::NotDone(error) => BatchFailure::NotDone(error),
            Self::Unknown(error) => BatchFailure::Unknown(error),
        }
    }
}

fn busy(error: MessagingError) -> MessagingError {
    match error {
        busy @ MessagingError::Busy { .. } => busy,
        error => MessagingError::Busy { source: Arc::new(error) },
    }
}

/// What to do with a row that another transaction has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// Wait briefly.
    WaitFor,
    /// Skip the row.
    PassBy,
}

/// Runs work that waits briefly for locked rows; if they stay locked, runs it without them.
pub async fn past_others<T, F>(work: impl Fn(Others) -> F) -> Result<T, Undone>
where
    F: Future<Output = Result<T, Undone>>,
{
    match work(Others::WaitFor).await {
        Err(Undone::InTheWay(_)) => persist(|| work(Others::PassBy)).await,
        done => done,
    }
}

/// Retries work that other transactions block, with a growing random pause.
pub async fn persist<T, F>(mut work: impl FnMut() -> F) -> Result<T, Undone>
where
    F: Future<Output = Result<T, Undone>>,
{
    let mut attempt = 0;
    loop {
        attempt += 1;
        match work().await {
            Err(Undone::InTheWay(_)) if attempt < TRIES => {
                let pause = Duration::from_millis(10) * 2u32.pow(attempt);
                tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            }
            result => return result,
        }
    }
}
