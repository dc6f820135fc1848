//! What the broker's errors mean.

use std::sync::Arc;

use lapin::ErrorKind;
use postrider_core::{MessagingError, QueueName};

use crate::PROVIDER;

/// The broker's words for what is not there.
pub(crate) const NOT_FOUND: u16 = 404;
/// The broker's words for a queue that is there and is another one.
pub(crate) const PRECONDITION_FAILED: u16 = 406;
/// The broker's words for a right that is missing.
pub(crate) const ACCESS_REFUSED: u16 = 403;

/// The broker's number for an error, if the broker told of it.
pub(crate) fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// The broker's words, if the broker told of it.
pub(crate) fn words(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        _ => error.to_string(),
    }
}

/// Why an operation failed. Nothing was done, or what was done does no harm.
pub(crate) fn failed(operation: &'static str, error: lapin::Error) -> MessagingError {
    match code(&error) {
        Some(code) => MessagingError::Provider {
            provider: PROVIDER,
            operation,
            // Rights and arguments stay what they are; a queue without a leader or a busy node does not.
            retryable: !matches!(code, ACCESS_REFUSED | NOT_FOUND | PRECONDITION_FAILED),
            source: Arc::new(error),
        },
        None => MessagingError::Connection {
            provider: PROVIDER,
            detail: format!("the connection was lost during {operation}: {error}"),
            source: Some(Arc::new(error)),
        },
    }
}

/// A queue that exists and is not the one that was to be made.
pub(crate) fn other_arguments(queue: &str, error: &lapin::Error) -> MessagingError {
    MessagingError::invalid(
        "queue",
        format!(
            "'{queue}' exists with other arguments: {}. Use it as it is by sending to it without making it, choose its \
             kind with queue_type, or delete it once it is empty",
            words(error)
        ),
    )
}

/// A queue that is not there.
pub(crate) fn missing(queue: &QueueName) -> MessagingError {
    MessagingError::QueueNotFound { queue: queue.clone() }
}

/// The broker did not answer in time.
pub(crate) fn silent(operation: &'static str) -> MessagingError {
    MessagingError::Connection {
        provider: PROVIDER,
        detail: format!("the broker did not answer {operation} in time"),
        source: None,
    }
}
