//! The messages between orchestrators and workers.
//!
//! A message contains ids and no state: the database is the source of truth, and a copy of its state in a message would
//! be outdated soon. All messages are JSON objects, so that workers in any language can read them.
//!
//! **Compatibility.** Every message has a number, `schema`. New fields do not change it: readers ignore unknown fields,
//! and a new field must have a default for messages without it. A change that an older program would misread raises the
//! number, and a program refuses higher numbers than its own. A message without the number has schema 1.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::codec::{FromBytes, QueueMessage};
use crate::error::MessagingError;
use crate::message::{ContentType, Priority};

/// The newest schema that this program reads; also the one that it writes.
pub const SCHEMA: u16 = 1;

/// A trace context as in W3C Trace Context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// The caller's position in the trace.
    pub traceparent: String,
    /// The vendor data of the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

/// A step for a worker: its ids only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMessage {
    /// The task that the step belongs to.
    pub task_uuid: Uuid,
    /// The step.
    pub step_uuid: Uuid,
    /// The correlation id of everything that one request has caused.
    pub correlation_id: Uuid,
    /// The trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<TraceContext>,
}

impl StepMessage {
    /// A step without a trace.
    pub fn new(task_uuid: Uuid, step_uuid: Uuid, correlation_id: Uuid) -> Self {
        Self { task_uuid, step_uuid, correlation_id, trace_context: None }
    }

    /// Adds a trace context.
    #[must_use]
    pub fn with_trace_context(mut self, trace_context: TraceContext) -> Self {
        self.trace_context = Some(trace_context);
        self
    }
}

/// The result of an attempt at a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepExecutionResult {
    /// The task that the step belongs to.
    pub task_uuid: Uuid,
    /// The step.
    pub step_uuid: Uuid,
    /// The correlation id of everything that one request has caused.
    pub correlation_id: Uuid,
    /// The number of the attempt, from 1. The result of an earlier attempt than the current one is outdated.
    pub attempt: u32,
    /// The status; in JSON `status`, with its fields beside it.
    #[serde(flatten)]
    pub status: StepStatus,
    /// The worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// When the handler started, by the worker's clock: for display only, because clocks differ.
    pub started_at: Timestamp,
    /// When the handler ended, by the worker's clock.
    pub finished_at: Timestamp,
}

impl StepExecutionResult {
    /// The result of an attempt at `step`.
    pub fn new(
        step: &StepMessage,
        attempt: u32,
        status: StepStatus,
        started_at: Timestamp,
        finished_at: Timestamp,
    ) -> Self {
        Self {
            task_uuid: step.task_uuid,
            step_uuid: step.step_uuid,
            correlation_id: step.correlation_id,
            attempt,
            status,
            worker_id: None,
            started_at,
            finished_at,
        }
    }

    /// Sets the worker's name.
    #[must_use]
    pub fn with_worker_id(mut self, worker_id: impl Into<String>) -> Self {
        self.worker_id = Some(worker_id.into());
        self
    }

    /// The run time of the handler.
    pub fn duration(&self) -> Duration {
        self.finished_at.since(self.started_at)
    }

    /// Whether the step may be retried.
    pub fn is_retryable(&self) -> bool {
        matches!(&self.status, StepStatus::Failed { error } if error.retryable)
    }
}

/// The status of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum StepStatus {
    /// The handler succeeded.
    Succeeded {
        /// The output.
        output: StepOutput,
    },
    /// The handler failed.
    Failed {
        /// The failure.
        error: StepError,
    },
    /// The step was canceled before the handler ended.
    Canceled,
}

/// The output of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepOutput {
    /// The output itself; JSON `null` if there is none.
    Inline(Value),
    /// A reference to an output that is too large for a message.
    Reference(String),
}

/// The failure of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// The error text.
    pub message: String,
    /// The kind of failure in one word, for counts and retry rules.
    pub kind: String,
    /// Whether another attempt may succeed.
    pub retryable: bool,
}

/// A request to begin a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRequestMessage {
    /// The namespace of the task's definition.
    pub namespace: String,
    /// The definition's name.
    pub name: String,
    /// The version of the definition.
    pub version: String,
    /// The input of the task.
    #[serde(default)]
    pub context: Value,
    /// The correlation id of everything that this request causes.
    pub correlation_id: Uuid,
    /// When it was requested, by the requester's clock.
    pub requested_at: Timestamp,
    /// The requester.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// Two requests with the same key must begin one task. The orchestrator ensures it; the queue delivers both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The priority of the task.
    #[serde(default)]
    pub priority: Priority,
    /// The task must not begin earlier. The orchestrator ensures it; the request is delivered at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Timestamp>,
}

impl TaskRequestMessage {
    /// A request made now, with a new correlation id.
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        version: impl Into<String>,
        context: Value,
    ) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            version: version.into(),
            context,
            correlation_id: Uuid::now_v7(),
            requested_at: Timestamp::now(),
            requested_by: None,
            idempotency_key: None,
            priority: Priority::default(),
            scheduled_for: None,
        }
    }

    /// Sets the idempotency key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// A task that may have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFinalizationMessage {
    /// The task.
    pub task_uuid: Uuid,
    /// The correlation id of everything that one request has caused.
    pub correlation_id: Uuid,
    /// Why the task may have ended.
    pub reason: FinalizationReason,
    /// The step that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_uuid: Option<Uuid>,
    /// When it was requested, by the requester's clock.
    pub requested_at: Timestamp,
}

impl TaskFinalizationMessage {
    /// A task that may have ended, from now on.
    pub fn new(task_uuid: Uuid, correlation_id: Uuid, reason: FinalizationReason) -> Self {
        Self { task_uuid, correlation_id, reason, step_uuid: None, requested_at: Timestamp::now() }
    }
}

/// Why a task may have ended. A hint for people and metrics; the database has the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalizationReason {
    /// No step is left to do.
    StepsFinished,
    /// A step failed for good.
    StepFailed,
    /// The task was canceled.
    CancelRequested,
    /// The task exceeded its time limit.
    TimedOut,
}

/// An event of the application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DomainEvent {
    /// The id of the event. A consumer that receives it twice handles it once.
    pub event_id: Uuid,
    /// The type of the event, such as `order.paid`.
    pub name: String,
    /// The namespace that it happened in.
    pub namespace: String,
    /// The task in which it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_uuid: Option<Uuid>,
    /// The step in which it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_uuid: Option<Uuid>,
    /// The correlation id of everything that one request has caused.
    pub correlation_id: Uuid,
    /// When it happened, by its publisher's clock.
    pub occurred_at: Timestamp,
    /// The data of the event.
    #[serde(default)]
    pub payload: Value,
}

impl DomainEvent {
    /// An event that happens now.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, correlation_id: Uuid, payload: Value) -> Self {
        Self {
            event_id: Uuid::now_v7(),
            name: name.into(),
            namespace: namespace.into(),
            task_uuid: None,
            step_uuid: None,
            correlation_id,
            occurred_at: Timestamp::now(),
            payload,
        }
    }

    /// Sets the step in which it happened.
    #[must_use]
    pub fn with_step(mut self, step: &StepMessage) -> Self {
        self.task_uuid = Some(step.task_uuid);
        self.step_uuid = Some(step.step_uuid);
        self
    }
}

#[derive(Serialize)]
struct Written<'a, T> {
    schema: u16,
    #[serde(flatten)]
    message: &'a T,
}

#[derive(Deserialize)]
struct SchemaOf {
    #[serde(default = "first_schema")]
    schema: u16,
}

fn first_schema() -> u16 {
    1
}

fn write<T: Serialize>(message: &T) -> Result<Bytes, MessagingError> {
    serde_json::to_vec(&Written { schema: SCHEMA, message })
        .map(Bytes::from)
        .map_err(|error| MessagingError::Serialization { content_type: "JSON", source: Arc::new(error) })
}

/// The schema is read first: a newer message can have any shape, and the error must say that it is newer, not that a
/// field is missing.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessagingError> {
    let SchemaOf { schema } = serde_json::from_slice(bytes).map_err(unreadable)?;
    if schema > SCHEMA {
        return Err(unreadable(std::io::Error::other(format!(
            "it has schema {schema}, this program reads up to {SCHEMA}; upgrade this program, then redrive the message"
        ))));
    }
    serde_json::from_slice(bytes).map_err(unreadable)
}

fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> MessagingError {
    MessagingError::Deserialization { content_type: "JSON", source: Arc::new(error) }
}

macro_rules! json_messages {
    ($($message:ty),* $(,)?) => {$(
        impl QueueMessage for $message {
            fn to_bytes(&self) -> Result<Bytes, MessagingError> {
                write(self)
            }
        }

        impl FromBytes for $message {
            const CONTENT_TYPE: ContentType = ContentType::JSON;

            fn from_bytes(bytes: &[u8]) -> Result<Self, MessagingError> {
                read(bytes)
            }
        }
    )*};
}

json_messages!(StepMessage, StepExecutionResult, TaskRequestMessage, TaskFinalizationMessage, DomainEvent);

#[cfg(test)]
mod tests;
