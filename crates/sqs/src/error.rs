//! The failures of calls, and their conversion to [`MessagingError`]s.

use std::error::Error;
use std::sync::Arc;

use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;
use postrider_core::{ErrorSource, MessageId, MessagingError, QueueName};

use crate::PROVIDER;

/// Why a call, or a row of one, failed.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// SQS has no such queue. No effect.
    Missing,
    /// The receipt is invalid, or its lease has ended. No effect.
    Stale(Cause),
    /// Too many calls. No effect; the call may be repeated.
    Throttled(Cause),
    /// SQS cannot be reached. No effect.
    Unreachable(Cause),
    /// SQS refuses. No effect.
    Refused(Cause),
    /// No effect, with the error for the caller.
    Known(MessagingError),
    /// No answer: outcome unknown.
    Unknown(Cause),
}

/// The text and the code of a failure.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Cause {
    text: String,
    code: Option<String>,
}

impl Cause {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: None }
    }

    fn into_source(self) -> ErrorSource {
        Arc::new(self)
    }
}

const MISSING: &[&str] = &["AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"];
const STALE: &[&str] = &[
    "ReceiptHandleIsInvalid",
    "MessageNotInflight",
    "AWS.SimpleQueueService.MessageNotInflight",
    // The service's code for a lease that has ended.
    "InvalidParameterValue",
];
const THROTTLED: &[&str] = &[
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "SlowDown",
    "KmsThrottled",
    "KMS.ThrottlingException",
];

/// The text for a message that is not sent because the one before it was not stored.
pub(crate) const BEHIND: &str =
    "an earlier message with the same ordering key was not stored; send this one again after it";

impl Failure {
    /// The failure of a call.
    pub(crate) fn of<E>(error: SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let text = chain(&error);
        let cause = |code: Option<&str>| Cause { text: text.clone(), code: code.map(str::to_owned) };
        match &error {
            SdkError::ConstructionFailure(_) => Self::Unreachable(cause(None)),
            SdkError::DispatchFailure(failure) => {
                let source: Option<&(dyn Error + 'static)> = failure.as_connector_error().map(|error| error as _);
                let never_sent = failure.is_user() || source.is_some_and(is_before_sending);
                if never_sent { Self::Unreachable(cause(None)) } else { Self::Unknown(cause(None)) }
            }
            SdkError::ServiceError(answer) => {
                let status = answer.raw().status().as_u16();
                let code = answer.err().code().map(|code| code.rsplit('#').next().unwrap_or(code));
                let said = Cause {
                    text: match (code, answer.err().message()) {
                        (Some(code), Some(message)) => format!("{code}: {message}"),
                        (Some(code), None) => code.to_owned(),
                        (None, _) => format!("HTTP status {status}"),
                    },
                    code: code.map(str::to_owned),
                };
                Self::coded(code.unwrap_or_default(), said, status)
            }
            // An unreadable answer, a time-out, or another kind of error.
            _ => Self::Unknown(cause(None)),
        }
    }

    /// The failure of a row.
    pub(crate) fn of_row(row: &BatchResultErrorEntry) -> Self {
        let text = match row.message() {
            Some(message) => format!("{}: {message}", row.code()),
            None => row.code().to_owned(),
        };
        Self::coded(row.code(), Cause { text, code: Some(row.code().to_owned()) }, 0)
    }

    fn coded(code: &str, cause: Cause, status: u16) -> Self {
        if MISSING.contains(&code) {
            return Self::Missing;
        }
        if THROTTLED.contains(&code) || status == 429 {
            return Self::Throttled(cause);
        }
        // A hide that is too long does not end the lease, but has the code of an ended lease; only the text differs. If the
        // text changes, such a hide counts as an ended lease: no message is lost, it is delivered again.
        let is_too_long = cause.text.contains("for parameter VisibilityTimeout");
        if STALE.contains(&code) && !is_too_long {
            return Self::Stale(cause);
        }
        // A server error may come after the call took effect.
        if status >= 500 { Self::Unknown(cause) } else { Self::Refused(cause) }
    }

    /// The failure of the messages behind one that failed: they were not sent.
    pub(crate) fn behind(&self) -> Self {
        match self {
            Self::Missing | Self::Throttled(_) | Self::Unreachable(_) => self.clone(),
            _ => Self::Throttled(Cause::new(BEHIND)),
        }
    }

    /// Whether SQS answered with one of these codes.
    pub(crate) fn has_code(&self, codes: &[&str]) -> bool {
        match self {
            Self::Refused(cause) | Self::Stale(cause) | Self::Unknown(cause) => {
                cause.code.as_deref().is_some_and(|code| codes.contains(&code))
            }
            _ => false,
        }
    }

    /// Whether a permission is missing.
    pub(crate) fn is_denied(&self) -> bool {
        self.has_code(&["AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"])
    }

    /// Converts the failure into the caller's error.
    pub(crate) fn into_error(
        self,
        operation: &'static str,
        queue: Option<&QueueName>,
        ids: Vec<MessageId>,
    ) -> MessagingError {
        match self {
            Self::Missing => match queue {
                Some(queue) => MessagingError::QueueNotFound { queue: queue.clone() },
                None => Self::Refused(Cause::new("SQS has no such queue")).into_error(operation, queue, ids),
            },
            Self::Known(error) => error,
            Self::Throttled(cause) => MessagingError::Busy { source: cause.into_source() },
            Self::Unreachable(cause) => MessagingError::Connection {
                provider: PROVIDER,
                detail: cause.text.clone(),
                source: Some(cause.into_source()),
            },
            // Calls with a receipt handle `Stale` before.
            Self::Stale(cause) | Self::Refused(cause) => {
                // SQS allows the name again after a minute.
                let retryable = cause.code.as_deref().is_some_and(|code| code.contains("QueueDeletedRecently"));
                MessagingError::Provider { provider: PROVIDER, operation, source: cause.into_source(), retryable }
            }
            Self::Unknown(cause) => {
                MessagingError::OutcomeUnknown { operation, ids, source: Some(cause.into_source()) }
            }
        }
    }

    /// Converts the failure of a call that can be repeated without harm.
    pub(crate) fn into_harmless(self, operation: &'static str, queue: Option<&QueueName>) -> MessagingError {
        match self {
            Self::Unknown(cause) => Self::Unreachable(cause).into_error(operation, queue, Vec::new()),
            other => other.into_error(operation, queue, Vec::new()),
        }
    }
}

/// Joins the texts of an error and its sources.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let (mut words, mut next) = (Vec::new(), Some(error));
    while let Some(error) = next {
        next = error.source();
        let text = error.to_string();
        // Some errors repeat the text of their source.
        if words.last().is_none_or(|last: &String| *last != text) {
            words.push(text);
        }
    }
    words.join(": ")
}

/// Whether the call failed before a byte of it was sent: no connection, or no credentials.
fn is_before_sending(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|error| error.is_connect())
            || error.is::<aws_credential_types::provider::error::CredentialsError>()
        {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_lease_is_told_apart_from_a_visibility_that_is_too_long() {
        let said = |reason: &str| {
            Failure::coded("InvalidParameterValue", Cause::new(format!("InvalidParameterValue: Value 1 {reason}")), 400)
        };
        let over = said("for parameter ReceiptHandle is invalid. Reason: Message does not exist");
        assert!(matches!(over, Failure::Stale(_)), "{over:?}");
        let long = said("for parameter VisibilityTimeout is invalid. Reason: it is beyond the limit");
        assert!(matches!(long, Failure::Refused(_)), "{long:?}");
    }
}
