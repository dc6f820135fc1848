//! What became of a call that failed.

use std::error::Error;
use std::sync::Arc;

use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;
use postrider_core::{ErrorSource, MessageId, MessagingError, QueueName};

use crate::PROVIDER;

/// Why a call, or a row of one, was not answered with success.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// SQS has no such queue. Nothing was done.
    Missing,
    /// The receipt is none, or its lease is over. Nothing was done.
    Stale(Cause),
    /// Too many calls. Nothing was done, and the same call may be made again.
    Throttled(Cause),
    /// Nothing was done, because SQS cannot be reached.
    Unreachable(Cause),
    /// Nothing was done, because SQS refuses.
    Refused(Cause),
    /// Nothing was done, for a reason that has its words already.
    Known(MessagingError),
    /// No answer: it may have been done.
    Unknown(Cause),
}

/// What SQS or the way to it said.
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
    // What the service says of a lease that is over.
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

/// What is said of a message that is not sent because the one before it was not stored.
pub(crate) const BEHIND: &str =
    "an earlier message with the same ordering key was not stored; send this one again after it";

impl Failure {
    /// A call that was not answered with success.
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
            // An answer that could not be read, a time-out, and whatever else there may be.
            _ => Self::Unknown(cause(None)),
        }
    }

    /// A row that was answered with an error.
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
        // The lease of a message that cannot be hidden for so long is none the worse for it. Both have one code, and
        // only the words tell them apart. If those change, a hide that is too long is taken for a lease that is over:
        // nothing is lost by that, the message comes again.
        let is_too_long = cause.text.contains("for parameter VisibilityTimeout");
        if STALE.contains(&code) && !is_too_long {
            return Self::Stale(cause);
        }
        // A server that fails may have done its work before.
        if status >= 500 { Self::Unknown(cause) } else { Self::Refused(cause) }
    }

    /// What becomes of messages that have to come after one that failed so: nothing was done with them.
    pub(crate) fn behind(&self) -> Self {
        match self {
            Self::Missing | Self::Throttled(_) | Self::Unreachable(_) => self.clone(),
            _ => Self::Throttled(Cause::new(BEHIND)),
        }
    }

    /// Whether SQS said this.
    pub(crate) fn has_code(&self, codes: &[&str]) -> bool {
        match self {
            Self::Refused(cause) | Self::Stale(cause) | Self::Unknown(cause) => {
                cause.code.as_deref().is_some_and(|code| codes.contains(&code))
            }
            _ => false,
        }
    }

    /// Whether the right to do so is missing.
    pub(crate) fn is_denied(&self) -> bool {
        self.has_code(&["AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"])
    }

    /// What a caller is told.
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
            // Of calls without a receipt; whoever has one knows better.
            Self::Stale(cause) | Self::Refused(cause) => {
                // It may be created again after a minute.
                let retryable = cause.code.as_deref().is_some_and(|code| code.contains("QueueDeletedRecently"));
                MessagingError::Provider { provider: PROVIDER, operation, source: cause.into_source(), retryable }
            }
            Self::Unknown(cause) => {
                MessagingError::OutcomeUnknown { operation, ids, source: Some(cause.into_source()) }
            }
        }
    }

    /// What a caller is told of something that can be asked again without harm.
    pub(crate) fn into_harmless(self, operation: &'static str, queue: Option<&QueueName>) -> MessagingError {
        match self {
            Self::Unknown(cause) => Self::Unreachable(cause).into_error(operation, queue, Vec::new()),
            other => other.into_error(operation, queue, Vec::new()),
        }
    }
}

/// What went wrong, and why, from the outside in.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let (mut words, mut next) = (Vec::new(), Some(error));
    while let Some(error) = next {
        next = error.source();
        let text = error.to_string();
        // Some repeat what the next one says.
        if words.last().is_none_or(|last: &String| *last != text) {
            words.push(text);
        }
    }
    words.join(": ")
}

/// Whether the call ended before a byte of it was sent: there was no connection, or nothing to sign it with.
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
    fn a_lease_that_is_over_is_told_from_one_that_cannot_be_so_long() {
        let said = |reason: &str| {
            Failure::coded("InvalidParameterValue", Cause::new(format!("InvalidParameterValue: Value 1 {reason}")), 400)
        };
        let over = said("for parameter ReceiptHandle is invalid. Reason: Message does not exist");
        assert!(matches!(over, Failure::Stale(_)), "{over:?}");
        let long = said("for parameter VisibilityTimeout is invalid. Reason: it is beyond the limit");
        assert!(matches!(long, Failure::Refused(_)), "{long:?}");
    }
}
