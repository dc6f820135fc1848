//! Errors, one variant for each cause.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::Feature;
use crate::id::MessageId;
use crate::queue_name::QueueName;
use crate::task::{TaskId, TaskState};

/// The source of an error. Shared, because one failure can concern several calls of a batch.
pub type ErrorSource = Arc<dyn Error + Send + Sync + 'static>;

/// Why a call failed. Each text says what happened, where, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MessagingError {
    /// The store cannot be reached. Nothing was done.
    #[error("cannot reach {}: {detail}. Check that it is running and that the URL is right", store(provider))]
    Connection {
        /// The provider's name.
        provider: &'static str,
        /// The address, and what happened there.
        detail: String,
        /// The driver's error.
        source: Option<ErrorSource>,
    },

    /// The queue does not exist and the call would not create it.
    #[error("queue '{queue}' does not exist. Create it with ensure_queue, or allow sends to create queues")]
    QueueNotFound {
        /// The queue.
        queue: QueueName,
    },

    /// A value could not be encoded.
    #[error("cannot encode the message as {content_type}: {source}")]
    Serialization {
        /// The encoding.
        content_type: &'static str,
        /// The codec's error.
        source: ErrorSource,
    },

    /// A message could not be decoded.
    #[error("cannot decode the message as {content_type}: {source}")]
    Deserialization {
        /// The encoding.
        content_type: &'static str,
        /// The codec's error.
        source: ErrorSource,
    },

    /// The message does not exist.
    #[error("queue '{queue}' holds no message {id}. It may have been settled, redriven or purged")]
    MessageNotFound {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: MessageId,
    },

    /// Another worker holds the lease of the message, or an open transaction has it. Nothing was changed.
    #[error(
        "another worker's lease or an open transaction has message {id} of queue '{queue}'; nothing was changed. Try \
         again when that has ended"
    )]
    MessageLeased {
        /// The message's queue.
        queue: QueueName,
        /// The message.
        id: MessageId,
    },

    /// The lease has expired or was ended. Nothing was changed.
    #[error(
        "the lease on message {id} of queue '{queue}' is over; nothing was changed. Receive the message again: \
         another worker may have it"
    )]
    VisibilityExpired {
        /// The message's queue.
        queue: QueueName,
        /// The message.
        id: MessageId,
    },

    /// The store answered with an error. Nothing was done.
    #[error("{} failed to {operation}: {source}", store(provider))]
    Provider {
        /// The provider's name.
        provider: &'static str,
        /// The operation.
        operation: &'static str,
        /// The store's error.
        source: ErrorSource,
        /// Whether the same call may succeed later.
        retryable: bool,
    },

    /// No capacity: other transactions blocked the operation for too long, in the store or in this process, or the disk
    /// of the store is full. Nothing was done, and the connection is usable.
    #[error(transparent)]
    Busy {
        /// What blocked the operation.
        source: ErrorSource,
    },

    /// Calls are refused for a while because the store kept failing.
    #[error("calls to {} are held back after repeated failures; next try in {}", store(provider), Seconds(*retry_after))]
    CircuitBreakerOpen {
        /// The provider's name.
        provider: &'static str,
        /// The time until the next call is allowed.
        retry_after: Duration,
    },

    /// The provider refuses this feature. Nothing was done.
    #[error("{} does not support {feature}: {why}", store(provider))]
    NotSupported {
        /// The provider's name.
        provider: &'static str,
        /// The feature.
        feature: Feature,
        /// The reason.
        why: String,
    },

    /// The answer was lost: the operation may or may not have been carried out.
    #[error("the outcome of {operation} is unknown: it may or may not have been carried out{}", Affected(ids))]
    OutcomeUnknown {
        /// The operation.
        operation: &'static str,
        /// The messages concerned.
        ids: Vec<MessageId>,
        /// What lost the answer.
        source: Option<ErrorSource>,
    },

    /// The receipt is not one of this provider and queue. Nothing was changed.
    #[error(
        "this receipt cannot be used here: {why}. Use the complete receipt, on the queue and the store that issued it"
    )]
    InvalidReceipt {
        /// What is wrong with it.
        why: String,
    },

    /// The caller passed an invalid value. Nothing was done.
    #[error("invalid {what}: {why}")]
    InvalidInput {
        /// Which value.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },

    /// The task does not exist.
    #[error("task {id} does not exist. It may have been removed after its end; `postrider task list` shows the tasks")]
    TaskNotFound {
        /// The task.
        id: TaskId,
    },

    /// The state of the task does not allow the operation. Nothing was changed.
    #[error("task {id} is {state} and cannot be {operation}; nothing was changed")]
    TaskConflict {
        /// The task.
        id: TaskId,
        /// Its state.
        state: TaskState,
        /// The operation as a participle: `canceled`, `replayed`.
        operation: &'static str,
    },

    /// The deadline passed before the operation began. Nothing was done.
    #[error("the deadline passed before {operation} could begin; nothing was done. Allow more time")]
    DeadlineExceeded {
        /// The operation.
        operation: &'static str,
    },

    /// The provider was closed. Nothing was done.
    #[error("this connection to {} is closed; nothing was done. Connect again", store(provider))]
    Closed {
        /// The provider's name.
        provider: &'static str,
    },
}

impl MessagingError {
    /// An invalid value.
    pub fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::InvalidInput { what, why: why.into() }
    }

    /// A cursor that the listing did not issue.
    pub fn invalid_cursor(cursor: &str) -> Self {
        Self::invalid("cursor", format!("'{}'; pass `next` of the previous page", cursor.escape_debug()))
    }

    /// The value `asked` of `what` needs TLS, which this build does not have. `provider` names the crate with the
    /// feature.
    pub fn no_tls(what: &'static str, asked: &str, provider: &str) -> Self {
        Self::invalid(
            what,
            format!(
                "'{}' asks for TLS, and this build of postrider has no TLS; enable the feature 'tls' of the crate \
                 postrider (or of postrider-{provider}, where that is used by itself)",
                asked.escape_debug()
            ),
        )
    }

    /// The operation was blocked; `why` says by what.
    pub fn busy(why: impl Into<String>) -> Self {
        let why: Box<dyn std::error::Error + Send + Sync> = why.into().into();
        Self::Busy { source: why.into() }
    }

    /// An unusable receipt.
    pub fn invalid_receipt(why: impl Into<String>) -> Self {
        Self::InvalidReceipt { why: why.into() }
    }

    /// Whether the same call, repeated later, may succeed.
    ///
    /// False for an unknown outcome: the caller decides whether it may be repeated.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connection { .. }
            | Self::Busy { .. }
            | Self::CircuitBreakerOpen { .. }
            | Self::DeadlineExceeded { .. }
            | Self::MessageLeased { .. } => true,
            Self::Provider { retryable, .. } => *retryable,
            Self::QueueNotFound { .. }
            | Self::Serialization { .. }
            | Self::Deserialization { .. }
            | Self::MessageNotFound { .. }
            | Self::VisibilityExpired { .. }
            | Self::NotSupported { .. }
            | Self::OutcomeUnknown { .. }
            | Self::InvalidReceipt { .. }
            | Self::InvalidInput { .. }
            | Self::TaskNotFound { .. }
            | Self::TaskConflict { .. }
            | Self::Closed { .. } => false,
        }
    }
}

/// The name of a store in error texts. The provider of servers has the name of a protocol.
fn store(provider: &'static str) -> &'static str {
    if provider == "http" { "the server" } else { provider }
}

struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

/// The messages with an unknown outcome, and what to do.
struct Affected<'a>(&'a [MessageId]);

impl std::fmt::Display for Affected<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [] => return f.write_str(". Check the store before you repeat it"),
            [only] => write!(f, " (message {only})")?,
            [first, ..] => write!(f, " ({} messages, the first is {first})", self.0.len())?,
        }
        f.write_str(". Check the messages before you repeat it; a send is safe to repeat when it has a dedup key")
    }
}
