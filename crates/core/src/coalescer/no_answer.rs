//! Why nobody can say what became of an operation.

use std::any::Any;
use std::sync::Arc;

use crate::error::ErrorSource;

/// The source of an unknown outcome that did not come from the store.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the deadline passed while the operation was queued or under way")]
    DeadlinePassed,
    #[error("the task that carries operations out was ended while this one was under way")]
    DriverGone,
    #[error("the provider answered {answered} rows of {asked}; please report this fault of the provider")]
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

/// Why a row that could have been carried out was not even sent.
#[derive(Debug, thiserror::Error)]
#[error("an earlier part of the same batch got no answer ({0}), so this part was not sent")]
pub(super) struct NotSent(pub(super) ErrorSource);
