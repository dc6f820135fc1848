//! Errors as `application/problem+json`.
//!
//! The code of a problem decides what a client does; its texts are for people. From the code and the fields the client
//! restores the error that the store returned to the server.

mod code;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{ErrorSource, Feature, MessageId, MessagingError, QueueName, TaskId, TaskState};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use code::Code;

use super::static_text;

/// The media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// Operation of an error whose operation is not known here.
const UNKNOWN_OPERATION: &str = "handle the request";

/// An error of the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// Reference of the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// Title of the code.
    pub title: String,
    /// HTTP status.
    #[cfg_attr(feature = "schema", schemars(range(min = 400, max = 599)))]
    pub status: u16,
    /// Kind of the error.
    pub code: Code,
    /// Full error text.
    pub detail: String,
    /// Id of the request; absent in the rows of a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Provider of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Id of the message or task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// Ids of the messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<MessageId>>,
    /// The refused feature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature: Option<String>,
    /// The cause, or what is wrong with the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Name of the invalid value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// The operation that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// State of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// When the request may be repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<f64>,
    /// Content type of the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Whether the same call may succeed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

impl Problem {
    /// A problem with this code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("/reference#{code}"),
            title: code.title().to_owned(),
            status: code.status(),
            code,
            detail: detail.into(),
            request_id: None,
            provider: None,
            queue: None,
            id: None,
            ids: None,
            feature: None,
            why: None,
            what: None,
            operation: None,
            state: None,
            retry_after_seconds: None,
            content_type: None,
            retryable: None,
        }
    }

    /// The problem for an error.
    pub fn of(error: &MessagingError) -> Self {
        use MessagingError as E;
        let (mut problem, retryable) = (Self::new(code_of(error), error.to_string()), error.is_retryable());
        match error {
            E::Connection { provider, detail, .. } => {
                problem.provider = Some((*provider).to_owned());
                problem.why = Some(detail.clone());
            }
            E::QueueNotFound { queue } => problem.queue = Some(queue.clone()),
            E::Serialization { content_type, source } | E::Deserialization { content_type, source } => {
                problem.content_type = Some((*content_type).to_owned());
                problem.why = Some(source.to_string());
            }
            E::MessageNotFound { queue, id } | E::MessageLeased { queue, id } | E::VisibilityExpired { queue, id } => {
                problem.queue = Some(queue.clone());
                problem.id = Some(*id.as_uuid());
            }
            E::Provider { provider, operation, source, .. } => {
                problem.provider = Some((*provider).to_owned());
                problem.operation = Some((*operation).to_owned());
                problem.why = Some(source.to_string());
            }
            E::Busy { source } => problem.why = Some(source.to_string()),
            E::CircuitBreakerOpen { provider, retry_after } => {
                problem.provider = Some((*provider).to_owned());
                problem.retry_after_seconds = Some(retry_after.as_secs_f64());
            }
            E::NotSupported { provider, feature, why } => {
                problem.provider = Some((*provider).to_owned());
                problem.feature = Some(feature_word(*feature));
                problem.why = Some(why.clone());
            }
            E::OutcomeUnknown { operation, ids, source } => {
                problem.operation = Some((*operation).to_owned());
                problem.ids = Some(ids.clone());
                problem.why = source.as_ref().map(ToString::to_string);
            }
            E::InvalidReceipt { why } => problem.why = Some(why.clone()),
            E::InvalidInput { what, why } => {
                problem.what = Some((*what).to_owned());
                problem.why = Some(why.clone());
            }
            E::TaskNotFound { id } => problem.id = Some(*id.as_uuid()),
            E::TaskConflict { id, state, operation } => {
                problem.id = Some(*id.as_uuid());
                problem.state = Some(*state);
                problem.operation = Some((*operation).to_owned());
            }
            E::DeadlineExceeded { operation } => problem.operation = Some((*operation).to_owned()),
            E::Closed { provider } => problem.provider = Some((*provider).to_owned()),
            // A variant that this function does not handle yet: only its text is passed on.
            _ => problem.why = Some(problem.detail.clone()),
        }
        problem.retryable = Some(retryable);
        problem
    }

    /// The error for a problem; `provider` is named where the problem names no known provider.
    pub fn into_error(self, provider: &'static str) -> MessagingError {
        use MessagingError as E;
        let store = static_text::provider(self.provider.as_deref(), provider);
        let operation = static_text::operation(self.operation.as_deref());
        let why = self.why.clone().unwrap_or_else(|| self.detail.clone());
        let in_message = |error: fn(QueueName, MessageId) -> E| match (self.queue.clone(), self.id) {
            (Some(queue), Some(id)) => error(queue, MessageId::from_uuid(id)),
            _ => self.as_failure(provider),
        };
        match self.code {
            Code::StoreUnreachable => E::Connection { provider: store, detail: why, source: None },
            Code::StoreBusy | Code::ServerBusy | Code::TooManyRequests | Code::IdempotencyInProgress => E::busy(why),
            Code::CircuitBreakerOpen => E::CircuitBreakerOpen { provider: store, retry_after: self.retry_after() },
            Code::QueueNotFound => match self.queue.clone() {
                Some(queue) => E::QueueNotFound { queue },
                None => self.as_failure(provider),
            },
            Code::MessageNotFound => in_message(|queue, id| E::MessageNotFound { queue, id }),
            Code::MessageLeased => in_message(|queue, id| E::MessageLeased { queue, id }),
            Code::VisibilityExpired => in_message(|queue, id| E::VisibilityExpired { queue, id }),
            Code::NotSupported => match self.feature.as_deref().and_then(feature) {
                Some(feature) => E::NotSupported { provider: store, feature, why },
                None => self.as_failure(provider),
            },
            Code::OutcomeUnknown => E::OutcomeUnknown {
                operation: operation.unwrap_or("the request"),
                ids: self.ids.unwrap_or_default(),
                source: self.why.map(remote_cause),
            },
            Code::InvalidReceipt => E::InvalidReceipt { why },
            Code::InvalidInput => match (static_text::value(self.what.as_deref()), self.what) {
                (Some(what), _) => E::InvalidInput { what, why },
                (None, Some(what)) => E::InvalidInput { what: "value", why: format!("{what}: {why}") },
                (None, None) => E::InvalidInput { what: "value", why },
            },
            Code::IdempotencyMismatch => E::InvalidInput { what: "idempotency key", why },
            Code::PayloadTooLarge => E::InvalidInput { what: "body", why },
            Code::Unauthorized | Code::Forbidden => E::InvalidInput { what: "token", why },
            Code::TaskNotFound => match self.task() {
                Some(id) => E::TaskNotFound { id },
                None => self.as_failure(provider),
            },
            Code::TaskConflict => match (self.task(), self.state) {
                (Some(id), Some(state)) => {
                    E::TaskConflict { id, state, operation: static_text::change(self.operation.as_deref()) }
                }
                _ => self.as_failure(provider),
            },
            Code::DeadlineExceeded => E::DeadlineExceeded { operation: operation.unwrap_or("the request") },
            Code::Closed => E::Closed { provider: store },
            Code::Serialization | Code::Deserialization => {
                let (content_type, source) =
                    (static_text::content_type(self.content_type.as_deref()), remote_cause(why));
                match self.code {
                    Code::Serialization => E::Serialization { content_type, source },
                    _ => E::Deserialization { content_type, source },
                }
            }
            Code::StoreFailed
            | Code::MalformedRequest
            | Code::NotFound
            | Code::MethodNotAllowed
            | Code::RequestTimeout
            | Code::UnsupportedMediaType
            | Code::InternalError
            | Code::Unknown => self.as_failure(provider),
        }
    }

    /// The error for a failure of the store, and for codes without a variant of their own.
    fn as_failure(&self, provider: &'static str) -> MessagingError {
        let why = self.why.as_deref().unwrap_or(&self.detail);
        let (operation, why) = match (static_text::operation(self.operation.as_deref()), &self.operation) {
            (Some(operation), _) => (operation, why.to_owned()),
            // Operations are static texts; an unknown one goes into the error text.
            (None, Some(operation)) => (UNKNOWN_OPERATION, format!("{operation}: {why}")),
            (None, None) => (UNKNOWN_OPERATION, why.to_owned()),
        };
        MessagingError::Provider {
            provider: static_text::provider(self.provider.as_deref(), provider),
            operation,
            source: remote_cause(why),
            retryable: self.retryable.unwrap_or(self.code == Code::RequestTimeout),
        }
    }

    fn task(&self) -> Option<TaskId> {
        self.id.map(TaskId::from_uuid)
    }

    fn retry_after(&self) -> Duration {
        self.retry_after_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
    }
}

fn code_of(error: &MessagingError) -> Code {
    use MessagingError as E;
    match error {
        E::Connection { .. } => Code::StoreUnreachable,
        E::QueueNotFound { .. } => Code::QueueNotFound,
        E::Serialization { .. } => Code::Serialization,
        E::Deserialization { .. } => Code::Deserialization,
        E::MessageNotFound { .. } => Code::MessageNotFound,
        E::MessageLeased { .. } => Code::MessageLeased,
        E::VisibilityExpired { .. } => Code::VisibilityExpired,
        E::Busy { .. } => Code::StoreBusy,
        E::CircuitBreakerOpen { .. } => Code::CircuitBreakerOpen,
        E::NotSupported { .. } => Code::NotSupported,
        E::OutcomeUnknown { .. } => Code::OutcomeUnknown,
        E::InvalidReceipt { .. } => Code::InvalidReceipt,
        E::InvalidInput { .. } => Code::InvalidInput,
        E::TaskNotFound { .. } => Code::TaskNotFound,
        E::TaskConflict { .. } => Code::TaskConflict,
        E::DeadlineExceeded { .. } => Code::DeadlineExceeded,
        E::Closed { .. } => Code::Closed,
        // `Provider`, and variants that this function does not handle yet.
        _ => Code::StoreFailed,
    }
}

/// Identifier of a feature in JSON.
pub(super) fn feature_word(feature: Feature) -> String {
    match serde_json::to_value(feature) {
        Ok(serde_json::Value::String(word)) => word,
        // A variant without fields is always written as a string.
        _ => feature.name().to_owned(),
    }
}

/// The feature with this identifier.
pub(super) fn feature(word: &str) -> Option<Feature> {
    serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
}

/// A cause on the server's side, of which only the text is known.
#[derive(Debug)]
struct RemoteCause(String);

impl fmt::Display for RemoteCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for RemoteCause {}

fn remote_cause(text: String) -> ErrorSource {
    Arc::new(RemoteCause(text))
}

#[cfg(test)]
mod tests;
