//! Why a request failed, and whether it may have been carried out.

use std::sync::Arc;

use http::StatusCode;
use postrider_core::{ErrorSource, MessageId, MessagingError};
use postrider_wire::{Code, Problem};

use crate::PROVIDER;

/// Why a request failed.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The server refused it. Nothing was done.
    Refused(Box<Problem>),
    /// Nothing was done.
    NotDone(MessagingError),
    /// The answer was lost or is malformed: it may have been carried out.
    Unknown(ErrorSource),
}

/// Why there is no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("{server} did not answer within {seconds:.1} s")]
    Timeout { server: String, seconds: f64 },
    #[error("the connection to {server} ended before the answer was complete: {cause}")]
    Disconnected { server: String, cause: String },
    #[error("{server} answered {status}, but not as a Postrider server; check the URL and its path")]
    NotPostrider { server: String, status: StatusCode },
    #[error("the answer of {server} is malformed: {cause}; check that its version is compatible")]
    Malformed { server: String, cause: String },
    #[error("{server} answered more than {max_bytes} bytes; check the URL or request fewer rows")]
    TooLong { server: String, max_bytes: usize },
    #[error("{server} answered {received} rows instead of {expected}")]
    RowCount { server: String, expected: usize, received: usize },
}

impl AnswerError {
    pub(crate) fn into_source(self) -> ErrorSource {
        Arc::new(self)
    }

    /// Whether the same request would fail in the same way.
    fn is_permanent(&self) -> bool {
        match self {
            Self::Malformed { .. } | Self::RowCount { .. } | Self::TooLong { .. } => true,
            Self::NotPostrider { status, .. } => status.is_success(),
            Self::Timeout { .. } | Self::Disconnected { .. } => false,
        }
    }

    /// As the error of a read-only call.
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        MessagingError::Provider { provider: PROVIDER, operation, source: self.into_source(), retryable: false }
    }
}

impl Failure {
    /// As the error of a call about these messages.
    pub(crate) fn into_error(self, operation: &'static str, ids: Vec<MessageId>) -> MessagingError {
        match self {
            Self::Refused(problem) => problem_error(*problem),
            Self::NotDone(error) => error,
            Self::Unknown(source) => MessagingError::OutcomeUnknown { operation, ids, source: Some(source) },
        }
    }

    /// As the error of a call that changes nothing, or only what expires by itself.
    pub(crate) fn into_connection_error(self) -> MessagingError {
        match self {
            Self::Refused(problem) => problem_error(*problem),
            Self::NotDone(error) => error,
            Self::Unknown(source) => {
                MessagingError::Connection { provider: PROVIDER, detail: source.to_string(), source: Some(source) }
            }
        }
    }

    /// As the error of a read-only call. A malformed answer is permanent.
    pub(crate) fn into_read_error(self, operation: &'static str) -> MessagingError {
        match self {
            Self::Unknown(source) if source.downcast_ref().is_some_and(AnswerError::is_permanent) => {
                MessagingError::Provider { provider: PROVIDER, operation, source, retryable: false }
            }
            failure => failure.into_connection_error(),
        }
    }

    /// Whether the connection ended before the answer was complete: another one may succeed. A time-out is not retried.
    pub(crate) fn is_disconnected(&self) -> bool {
        match self {
            Self::Unknown(source) => matches!(source.downcast_ref(), Some(AnswerError::Disconnected { .. })),
            Self::Refused(_) | Self::NotDone(_) => false,
        }
    }

    /// The code of a refusal.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(problem) => Some(problem.code),
            Self::NotDone(_) | Self::Unknown(_) => None,
        }
    }

    /// Whether it was refused as too large and its rows can be sent in several requests.
    pub(crate) fn is_splittable(&self, rows: usize) -> bool {
        rows > 1 && self.code() == Some(Code::PayloadTooLarge)
    }
}

/// Where the token is set, for errors.
pub(crate) const TOKEN: &str = "the option 'token' (common.messaging.http.token, or POSTRIDER_TOKEN)";

/// The error for a problem.
pub(crate) fn problem_error(problem: Problem) -> MessagingError {
    match problem.code {
        Code::Unauthorized => MessagingError::invalid(
            "token",
            format!("the server requires a valid token: {} Set {TOKEN}", sentence(&problem.detail)),
        ),
        Code::Forbidden => MessagingError::invalid(
            "token",
            format!("the server does not allow this: {} Set another token by {TOKEN}", sentence(&problem.detail)),
        ),
        _ => from_server(problem.into_error(PROVIDER)),
    }
}

fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() || text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

/// Turns `Closed`, which means that the server is stopping, into `Connection`: this connection is not closed and can
/// reconnect.
pub(crate) fn from_server(error: MessagingError) -> MessagingError {
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
    fn a_refused_token_is_named_by_its_option() {
        for code in [Code::Unauthorized, Code::Forbidden] {
            let error = problem_error(Problem::new(code, "the token has expired"));
            assert!(matches!(error, MessagingError::InvalidInput { what: "token", .. }), "{error:?}");
            assert!(error.to_string().contains("option 'token'") && !error.is_retryable(), "{error}");
        }
    }

    #[test]
    fn a_stopping_server_is_a_retryable_error() {
        let error = problem_error(Problem::of(&MessagingError::Closed { provider: "sqlite" }));
        assert!(matches!(error, MessagingError::Connection { .. }) && error.is_retryable(), "{error:?}");
    }
}
