//! Why work was not done, and when it is begun again.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::coalescer::BatchFailure;
use postrider_core::{MessageId, MessagingError};

/// How often work that others were in the way of is begun again.
const TRIES: u32 = 8;

/// Why a call was not carried out, or may not have been.
#[derive(Debug, Clone)]
pub enum Undone {
    /// Nothing was done, because of some row.
    Rejected(MessagingError),
    /// Nothing was done, and no row is at fault.
    NotDone(MessagingError),
    /// Nothing was done, and the same again may succeed at once: others were in the way.
    InTheWay(MessagingError),
    /// The answer was lost.
    Unknown(MessagingError),
}

impl From<MessagingError> for Undone {
    fn from(error: MessagingError) -> Self {
        Self::NotDone(error)
    }
}

/// Whose fault an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// A row cannot be stored.
    Row,
    /// Somebody else was in the way.
    Others,
    /// The server or the way to it.
    Server,
    /// Credentials, rights, schema: the same call will never succeed.
    Setup,
}

impl Blame {
    /// Whether the same call may succeed later.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Others | Self::Server)
    }
}

/// What an error says about the work that it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The commit had not been asked for, or the server said no before it came to it.
    BeforeCommit,
    /// The commit was under way, if only because it was sent along.
    Committing,
}

impl Undone {
    /// Sorts a failure. `is_answer` says whether the server told of it, rather than the connection's end.
    pub fn sort(phase: Phase, is_answer: bool, blame: Blame, error: MessagingError) -> Self {
        match (phase, is_answer, blame) {
            (Phase::Committing, false, _) => Self::Unknown(error),
            (_, _, Blame::Row) => Self::Rejected(error),
            (_, _, Blame::Others) => Self::InTheWay(error),
            (_, _, Blame::Server | Blame::Setup) => Self::NotDone(error),
        }
    }

    /// As the answer to a call about these messages.
    pub fn into_error(self, operation: &'static str, ids: Vec<MessageId>) -> MessagingError {
        match self {
            Self::Rejected(error) | Self::NotDone(error) => error,
            Self::InTheWay(error) => busy(error),
            Self::Unknown(error) => MessagingError::OutcomeUnknown { operation, ids, source: Some(Arc::new(error)) },
        }
    }

    /// As the answer to a call that looks at things and changes none, or whose changes undo themselves.
    pub fn into_harmless(self) -> MessagingError {
        match self {
            Self::Rejected(error) | Self::NotDone(error) | Self::Unknown(error) => error,
            Self::InTheWay(error) => busy(error),
        }
    }

    /// As the failure of a batch.
    pub fn into_batch_failure(self) -> BatchFailure {
        match self {
            // Somebody may hold a lock that only one of the rows needs: alone it waits without the others.
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

/// What becomes of a row that somebody else has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// For a moment.
    WaitFor,
    /// The work goes without the row.
    PassBy,
}

/// Does work that waits a moment for those who are about to commit, and then goes without what they still have.
pub async fn past_others<T, F>(work: impl Fn(Others) -> F) -> Result<T, Undone>
where
    F: Future<Output = Result<T, Undone>>,
{
    match work(Others::WaitFor).await {
        Err(Undone::InTheWay(_)) => persist(|| work(Others::PassBy)).await,
        done => done,
    }
}

/// Begins work again that others were in the way of, a little later each time.
pub async fn persist<T, F>(mut work: impl FnMut() -> F) -> Result<T, Undone>
where
    F: Future<Output = Result<T, Undone>>,
{
    let mut attempt = 0;
    loop {
        attempt += 1;
        match work().await {
            Err(Undone::InTheWay(_)) if attempt < TRIES => {
                let longest = Duration::from_millis(10) * 2u32.pow(attempt);
                tokio::time::sleep(longest.mul_f64(rand::random_range(0.5..1.0))).await;
            }
            result => return result,
        }
    }
}
