//! Why a request brought no answer, or none that can be used, and what that says about what was asked.

use std::sync::Arc;

use http::StatusCode;
use postrider_core::{ErrorSource, MessageId, MessagingError};
use postrider_wire::{Code, Problem};

use crate::PROVIDER;

/// Why a call was not carried out, or may not have been.
#[derive(Debug, Clone)]
pub(crate) enum Undone {
    /// The server said no. Nothing was done.
    Refused(Box<Problem>),
    /// Nothing was done.
    NotDone(MessagingError),
    /// The answer was lost, or cannot be understood: it may have been done.
    Unknown(ErrorSource),
}

/// What came instead of an answer of the API.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Odd {
    #[error("{place} did not answer within {seconds:.1} s")]
    Late { place: String, seconds: f64 },
    #[error("the connection to {place} ended before the answer was complete: {cause}")]
    Cut { place: String, cause: String },
    #[error("{place} answered {status} in words that are not those of a Postrider server; check the URL and its path")]
    Foreign { place: String, status: StatusCode },
    #[error("the answer of {place} cannot be understood: {cause}; it may be of another version")]
    Garbled { place: String, cause: String },
    #[error("{place} answered more than {most} bytes; check the URL, or ask for fewer rows")]
    TooLong { place: String, most: usize },
    #[error("{place} answered {said} rows where {asked} were asked for")]
    Rows { place: String, asked: usize, said: usize },
}

impl Odd {
    pub(crate) fn into_source(self) -> ErrorSource {
        Arc::new(self)
    }

    /// Whether somebody answered who would answer the same again.
    fn would_come_again(&self) -> bool {
        match self {
            Self::Garbled { .. } | Self::Rows { .. } | Self::TooLong { .. } => true,
            Self::Foreign { status, .. } => status.is_success(),
            Self::Late { .. } | Self::Cut { .. } => false,
        }
    }

    /// As the failure of something that only looks: asking again is of no use unless the connection was at fault.
    pub(crate) fn into_failure(self, operation: &'static str) -> MessagingError {
        MessagingError::Provider { provider: PROVIDER, operation, source: self.into_source(), retryable: false }
    }
}

impl Undone {
    /// As the answer to a call about these messages.
    pub(crate) fn into_error(self, operation: &'static str, ids: Vec<MessageId>) -> MessagingError {
        match self {
            Self::Refused(problem) => told(*problem),
            Self::NotDone(error) => error,
            Self::Unknown(source) => MessagingError::OutcomeUnknown { operation, ids, source: Some(source) },
        }
    }

    /// As the answer to a call that looks at things and changes none, or whose changes undo themselves.
    pub(crate) fn into_harmless(self) -> MessagingError {
        match self {
            Self::Refused(problem) => told(*problem),
            Self::NotDone(error) => error,
            Self::Unknown(source) => {
                MessagingError::Connection { provider: PROVIDER, detail: source.to_string(), source: Some(source) }
            }
        }
    }

    /// As the answer to a call that only looks. What cannot be understood is no fault of the connection, and would come
    /// again.
    pub(crate) fn into_look_error(self, operation: &'static str) -> MessagingError {
        match self {
            Self::Unknown(source) if source.downcast_ref().is_some_and(Odd::would_come_again) => {
                MessagingError::Provider { provider: PROVIDER, operation, source, retryable: false }
            }
            undone => undone.into_harmless(),
        }
    }

    /// Whether the connection ended before the answer did: on another one it may be better. A server that is slow is not
    /// made faster by being asked twice.
    pub(crate) fn is_cut(&self) -> bool {
        match self {
            Self::Unknown(source) => matches!(source.downcast_ref(), Some(Odd::Cut { .. })),
            Self::Refused(_) | Self::NotDone(_) => false,
        }
    }

    /// What the server refused it for.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(problem) => Some(problem.code),
            Self::NotDone(_) | Self::Unknown(_) => None,
        }
    }

    /// Whether it was refused for having too many bytes, and has rows to be asked for apart.
    pub(crate) fn is_too_much(&self, rows: usize) -> bool {
        rows > 1 && self.code() == Some(Code::PayloadTooLarge)
    }
}

/// Where the token is set, for those who have none or the wrong one.
pub(crate) const TOKEN: &str = "the option 'token' (common.messaging.http.token, or POSTRIDER_TOKEN)";

/// The error that a problem tells of.
pub(crate) fn told(problem: Problem) -> MessagingError {
    match problem.code {
        Code::Unauthorized => MessagingError::invalid(
            "token",
            format!("the server asks for a token that it knows: {} Set {TOKEN}", sentence(&problem.detail)),
        ),
        Code::Forbidden => MessagingError::invalid(
            "token",
            format!("the server does not allow this: {} Another token is set by {TOKEN}", sentence(&problem.detail)),
        ),
        _ => of_here(problem.into_error(PROVIDER)),
    }
}

fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() || text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

/// A server that closes its store is on its way down; this connection is not closed, and finds the next one.
pub(crate) fn of_here(error: MessagingError) -> MessagingError {
    match error {
        MessagingError::Closed { .. } => MessagingError::Connection {
            provider: PROVIDER,
            detail: "the server is stopping".to_owned(),
            source: Some(Arc::new(error)),
        },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_not_taken_is_named_by_its_option() {
        for code in [Code::Unauthorized, Code::Forbidden] {
            let error = told(Problem::new(code, "the token has expired"));
            assert!(matches!(error, MessagingError::InvalidInput { what: "token", .. }), "{error:?}");
            assert!(error.to_string().contains("option 'token'") && !error.is_retryable(), "{error}");
        }
    }

    #[test]
    fn a_server_that_stops_is_looked_for_again() {
        let error = told(Problem::of(&MessagingError::Closed { provider: "sqlite" }));
        assert!(matches!(error, MessagingError::Connection { .. }) && error.is_retryable(), "{error:?}");
    }
}
