//! The messages that orchestrators and workers exchange.
//!
//! A message carries ids, not state: the database is the source of truth, and a message that repeats it would be wrong
//! as soon as the database moves on. All of them are JSON objects, so that a worker in any language can read them.
//!
//! **Compatibility.** Every message is written with a number, `schema`. Fields may be added without touching it: a
//! reader leaves out what it does not know, and an added field must have a value for messages that lack it. What an
//! older program would misread raises the number, and a program refuses numbers above its own, whatever else is in the
//! message. A message without the number has schema 1.

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

/// The newest schema that this program reads, and the one that it writes.
pub const SCHEMA: u16 = 1;

/// Where a trace goes on, as W3C Trace Context writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// The caller's place in the trace.
    pub traceparent: String,
    /// What vendors keep beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

/// A step that waits for a worker: its ids, and nothing else that the database knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMessage {
    /// The task that the step belongs to.
    pub task_uuid: Uuid,
    /// The step.
    pub step_uuid: Uuid,
    /// What ties everything together that one request set going.
    pub correlation_id: Uuid,
    /// Where the trace goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<TraceContext>,
}

impl StepMessage {
    /// A step without a trace.
    pub fn new(task_uuid: Uuid, step_uuid: Uuid, correlation_id: Uuid) -> Self {
        Self { task_uuid, step_uuid, correlation_id, trace_context: None }
    }

    /// With the trace that it continues.
    #[must_use]
    pub fn with_trace_context(mut self, trace_context: TraceContext) -> Self {
        self.trace_context = Some(trace_context);
        self
    }
}

/// What became of one attempt at a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepExecutionResult {
    /// The task that the step belongs to.
    pub task_uuid: Uuid,
    /// The step.
    pub step_uuid: Uuid,
    /// What ties everything together that one request set going.
    pub correlation_id: Uuid,
    /// Which attempt this was, 1 the first time. A result of an attempt that is no longer the step's own is out of date.
    pub attempt: u32,
    /// How it ended; in JSON `status`, with the fields of that status beside it.
    #[serde(flatten)]
    pub status: StepStatus,
    /// Who did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// When the handler was called, by the worker's clock: to be shown, never to be compared with another clock's time.
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

    /// With the worker's name.
    #[must_use]
    pub fn with_worker_id(mut self, worker_id: impl Into<String>) -> Self {
        self.worker_id = Some(worker_id.into());
        self
    }

    /// How long the handler took.
    pub fn duration(&self) -> Duration {
        self.finished_at.since(self.started_at)
    }

    /// Whether the step may be tried again.
    pub fn is_retryable(&self) -> bool {
        matches!(&self.status, StepStatus::Failed { error } if error.retryable)
    }
}

/// How an attempt at a step ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum StepStatus {
    /// The handler did its work.
    Succeeded {
        /// What it answered.
        output: StepOutput,
    },
    /// The handler failed.
    Failed {
        /// How.
        error: StepError,
    },
    /// The step was canceled before the handler was done.
    Canceled,
}

/// What a step answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepOutput {
    /// The answer itself; JSON `null` when there is none.
    Inline(Value),
    /// Where the answer is kept, when it is too large for a message.
    Reference(String),
}

/// How a handler failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// What it said.
    pub message: String,
    /// What sort of failure it is, in a word: for counting, and for rules about retries.
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
    /// The definition's version.
    pub version: String,
    /// What the task is given to work on.
    #[serde(default)]
    pub context: Value,
    /// What ties everything together that this request sets going.
    pub correlation_id: Uuid,
    /// When it was asked for, by the asker's clock.
    pub requested_at: Timestamp,
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// Carried to whoever begins tasks: two requests with the same key shall begin one. The queue delivers both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// How urgent the task is.
    #[serde(default)]
    pub priority: Priority,
    /// Carried to whoever begins tasks: not to be begun earlier. The request itself is delivered at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Timestamp>,
}

impl TaskRequestMessage {
    /// A request made now, with a correlation id of its own.
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

    /// With a key that keeps the task single.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// A task that may have come to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFinalizationMessage {
    /// The task.
    pub task_uuid: Uuid,
    /// What ties everything together that one request set going.
    pub correlation_id: Uuid,
    /// Why it is to be looked at.
    pub reason: FinalizationReason,
    /// The step that brought it about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_uuid: Option<Uuid>,
    /// When this was asked for, by the asker's clock.
    pub requested_at: Timestamp,
}

impl TaskFinalizationMessage {
    /// A task to be looked at, from now on.
    pub fn new(task_uuid: Uuid, correlation_id: Uuid, reason: FinalizationReason) -> Self {
        Self { task_uuid, correlation_id, reason, step_uuid: None, requested_at: Timestamp::now() }
    }
}

/// Why a task may have come to its end. A hint for people and metrics: what is true stands in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalizationReason {
    /// No step is left to do.
    StepsFinished,
    /// A step failed for good.
    StepFailed,
    /// Somebody canceled the task.
    CancelRequested,
    /// The task took longer than it may.
    TimedOut,
}

/// Something that happened in the application's own terms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DomainEvent {
    /// The event. A consumer that sees it twice handles it once.
    pub event_id: Uuid,
    /// What happened, such as `order.paid`.
    pub name: String,
    /// The namespace that it happened in.
    pub namespace: String,
    /// The task in which it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_uuid: Option<Uuid>,
    /// The step in which it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_uuid: Option<Uuid>,
    /// What ties everything together that one request set going.
    pub correlation_id: Uuid,
    /// When it happened, by its publisher's clock.
    pub occurred_at: Timestamp,
    /// What there is to know about it.
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

    /// With the step in which it happens.
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

/// The schema is looked at before anything else: a newer message may have any shape, and the reader shall be told that
/// it is newer, not that some field is missing.
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
