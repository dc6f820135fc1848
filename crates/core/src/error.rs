//! What can go wrong, one variant a cause.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::Feature;
use crate::id::MessageId;
use crate::queue_name::QueueName;
use crate::task::{TaskId, TaskState};

/// The error below an error. Shared, so that one failure can be told to everyone whose call was in the same batch.
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
        /// Where it was looked for, and what happened there.
        detail: String,
        /// The driver's error.
        source: Option<ErrorSource>,
    },

    /// The queue does not exist and the call would not create it.
    #[error("queue '{queue}' does not exist. Create it with ensure_queue, or allow sends to create queues")]
    QueueNotFound {
        /// The queue that is missing.
        queue: QueueName,
    },

    /// A value could not be turned into bytes.
    #[error("cannot encode the message as {content_type}: {source}")]
    Serialization {
        /// The encoding.
        content_type: &'static str,
        /// The codec's error.
        source: ErrorSource,
    },

    /// Bytes could not be turned into a value.
    #[error("cannot decode the message as {content_type}: {source}")]
    Deserialization {
        /// The encoding.
        content_type: &'static str,
        /// The codec's error.
        source: ErrorSource,
    },

    /// No such message there.
    #[error("queue '{queue}' holds no message {id}. It may have been settled, redriven or purged")]
    MessageNotFound {
        /// Where it was looked for.
        queue: QueueName,
        /// What was looked for.
        id: MessageId,
    },

    /// Somebody holds the message's lease, or has it in a transaction that has not ended. Nothing was changed.
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

    /// The lease has run out, or was settled or released. Nothing was changed.
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
        /// What was tried.
        operation: &'static str,
        /// The store's error.
        source: ErrorSource,
        /// Whether the same call may succeed later.
        retryable: bool,
    },

    /// There was no room: others were in the way for too long, in the store or in this process, or the store's disk is
    /// full. Nothing was done, and the connection is well.
    #[error(transparent)]
    Busy {
        /// What was in the way.
        source: ErrorSource,
    },

    /// Calls are held back because the store kept failing.
    #[error("calls to {} are held back after repeated failures; next try in {}", store(provider), Seconds(*retry_after))]
    CircuitBreakerOpen {
        /// The provider's name.
        provider: &'static str,
        /// When a call will be let through again.
        retry_after: Duration,
    },

    /// The provider refuses this feature. Nothing was done.
    #[error("{} does not support {feature}: {why}", store(provider))]
    NotSupported {
        /// The provider's name.
        provider: &'static str,
        /// The feature that it refuses.
        feature: Feature,
        /// Why it does.
        why: String,
    },

    /// The answer was lost: the operation may or may not have been carried out.
    #[error("no answer to {operation}: it may or may not have been carried out{}", Doubted(ids))]
    OutcomeUnknown {
        /// What was asked.
        operation: &'static str,
        /// The messages concerned.
        ids: Vec<MessageId>,
        /// What cut the answer off.
        source: Option<ErrorSource>,
    },

    /// The text or value is no receipt of this provider and queue. Nothing was changed.
    #[error("this receipt cannot be used here: {why}. Use it, whole, on the queue and the store that issued it")]
    InvalidReceipt {
        /// What is wrong with it.
        why: String,
    },

    /// The caller passed a value that is not allowed. Nothing was done.
    #[error("invalid {what}: {why}")]
    InvalidInput {
        /// Which value.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },

    /// There is no such task.
    #[error(
        "there is no task {id}. It may have been removed after its end; `postrider task list` shows those that are"
    )]
    TaskNotFound {
        /// The task that was asked for.
        id: TaskId,
    },

    /// The task is in a state in which this cannot be done. Nothing was changed.
    #[error("task {id} is {state} and cannot be {operation}; nothing was changed")]
    TaskConflict {
        /// The task.
        id: TaskId,
        /// The state that it is in.
        state: TaskState,
        /// What was asked, as it would be told of the task: `canceled`, `replayed`.
        operation: &'static str,
    },

    /// The deadline passed before the operation began. Nothing was done.
    #[error("the deadline passed before {operation} could begin; nothing was done. Allow more time")]
    DeadlineExceeded {
        /// What was asked.
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
    /// A value that is not allowed.
    pub fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::InvalidInput { what, why: why.into() }
    }

    /// The setting `asked` needs TLS, and this build has none. `provider` names the crate that has the feature.
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

    /// Somebody else was in the way, in these words.
    pub fn busy(why: impl Into<String>) -> Self {
        let why: Box<dyn std::error::Error + Send + Sync> = why.into().into();
        Self::Busy { source: why.into() }
    }

    /// A receipt that cannot be used.
    pub fn invalid_receipt(why: impl Into<String>) -> Self {
        Self::InvalidReceipt { why: why.into() }
    }

    /// Whether the same call may succeed when it is made again, unchanged, a little later.
    ///
    /// An unknown outcome is not: whether it may be repeated is the caller's to decide.
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

/// What people call a store. The name of the provider for servers is that of a protocol.
fn store(provider: &'static str) -> &'static str {
    if provider == "http" { "the server" } else { provider }
}

struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

/// The messages that may or may not have been concerned, and what to do about them.
struct Doubted<'a>(&'a [MessageId]);

impl std::fmt::Display for Doubted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [] => return f.write_str(". Look before repeating it"),
            [only] => write!(f, " (message {only})")?,
            [first, ..] => write!(f, " ({} messages, the first is {first})", self.0.len())?,
        }
        f.write_str(". Look before repeating it; a send is safe to repeat when it has a dedup key")
    }
}
