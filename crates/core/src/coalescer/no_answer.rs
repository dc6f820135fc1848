//! Why the outcome of an operation is unknown.

use std::any::Any;
use std::sync::Arc;

use crate::error::ErrorSource;

/// The source of an unknown outcome that is not an error of the store.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the deadline passed while the operation was queued or in flight")]
    DeadlinePassed,
    #[error("the task that executes operations ended while this one was in flight")]
    DriverGone,
    #[error("the provider returned {answered} results for {asked} rows; please report this bug of the provider")]
    WrongRowCount { asked: usize, answered: usize },
    #[error("the provider panicked: {0}")]
    Panicked(String),
}

impl NoAnswer {
    pub(super) fn into_source(self) -> ErrorSource {
        Arc::new(self)
    }

    pub(super) fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self::Panicked(text.unwrap_or("no message").to_owned())
    }
}

/// Why a queued row was not sent.
#[derive(Debug, thiserror::Error)]
#[error("the outcome of an earlier part of the batch is unknown ({0}), so this part was not sent; repeat it")]
pub(super) struct NotSent(pub(super) ErrorSource);
