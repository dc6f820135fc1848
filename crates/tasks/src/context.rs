//! The task that a handler gets, and the same task as a message.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider_core::task::{ClaimedTask, Progress, TaskId, TaskType};
use postrider_core::{ContentType, Envelope, Headers, Key, MessageId, MessagingError, Priority, QueueName, Timestamp};
use postrider_subscriber::{CancellationToken, Delivery, FromDelivery, HandlerError};
use serde::de::DeserializeOwned;

use crate::running::{Running, StopReason};

/// The task that a handler gets. Clones are the same task.
#[derive(Debug, Clone)]
pub struct TaskContext {
    task: Arc<ClaimedTask>,
    worker: Arc<str>,
    running: Arc<Running>,
}

impl TaskContext {
    pub(crate) fn new(task: Arc<ClaimedTask>, worker: Arc<str>, running: Arc<Running>) -> Self {
        Self { task, worker, running }
    }

    /// The task's identity. With [`attempt`](Self::attempt) it identifies this attempt, for systems that detect a
    /// repeated request by a key.
    pub fn id(&self) -> TaskId {
        self.task.lease.id
    }

    /// The task's type.
    pub fn task_type(&self) -> &TaskType {
        &self.task.task_type
    }

    /// The task's payload.
    pub fn payload(&self) -> &Bytes {
        &self.task.payload
    }

    /// The payload as a JSON value. The error for an unreadable payload makes the task dead at once.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        serde_json::from_slice(&self.task.payload).map_err(HandlerError::undecodable)
    }

    /// Which attempt this is; 1 is the first.
    pub fn attempt(&self) -> u32 {
        self.task.attempt_count
    }

    /// The number of attempts.
    pub fn max_attempts(&self) -> u32 {
        self.task.max_attempts
    }

    /// Whether no attempt will follow if this one fails.
    pub fn is_last_attempt(&self) -> bool {
        self.task.attempt_count >= self.task.max_attempts
    }

    /// The task's priority.
    pub fn priority(&self) -> Priority {
        self.task.priority
    }

    /// The key that it is ordered by.
    pub fn ordering_key(&self) -> Option<&Key> {
        self.task.ordering_key.as_ref()
    }

    /// The task's tags.
    pub fn tags(&self) -> &[String] {
        &self.task.tags
    }

    /// When it was created.
    pub fn created_at(&self) -> Timestamp {
        self.task.created_at
    }

    /// When it was due.
    pub fn scheduled_for(&self) -> Timestamp {
        self.task.scheduled_for
    }

    /// The name of the worker that runs it.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    /// Whether this attempt certainly still holds the task, by the clock of this process. Check it before a step that
    /// two workers must not run at the same time: in a process that was suspended the lease may have ended before
    /// [`cancellation`](Self::cancellation) signals it.
    pub fn is_leased(&self) -> bool {
        self.running.control.is_leased()
    }

    /// Cancelled when the result is no longer needed: the task was canceled, its deadline or time-out has passed, its
    /// lease was lost, or the worker must stop. A handler that ignores it is dropped a little later.
    pub fn cancellation(&self) -> &CancellationToken {
        self.running.control.cancellation()
    }

    /// Why it was cancelled.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.running.stop_reason()
    }

    /// Reports progress: a fraction from 0 to 1, and a text, which may be empty. The last report is stored within a
    /// second.
    pub fn progress(&self, fraction: f64, text: impl Into<String>) -> Result<(), MessagingError> {
        let text = Some(text.into()).filter(|text| !text.is_empty());
        self.running.note_progress(Progress::new(Some(fraction), text)?);
        Ok(())
    }

    /// Releases the task: whatever the handler returns, the task is due again at once and the attempt is not counted.
    /// For a handler that cannot work at all; if that will not change, it should stop its worker as well.
    pub fn release(&self) {
        self.running.control.release();
    }

    /// The task as a message for the subscriber's services: its body is the payload, its id and its counts are the
    /// task's, and it has no headers. The context is one of its extensions.
    pub(crate) fn into_delivery(self, queue: QueueName, lease: Duration) -> Delivery {
        let (task, now) = (&self.task, Timestamp::now());
        let envelope = Envelope {
            id: MessageId::from_uuid(*task.lease.id.as_uuid()),
            queue,
            // Not known: a payload is bytes, usually JSON.
            content_type: ContentType::OCTET_STREAM,
            headers: Headers::new(),
            ordering_key: task.ordering_key.clone(),
            dedup_key: None,
            priority: task.priority,
            expires_at: task.time_left.map(|left| now.saturating_add(left)),
            receive_count: task.attempt_count,
            attempts_count: task.attempt_count.saturating_sub(1),
            enqueued_at: task.created_at,
            first_attempt_at: now.saturating_sub(task.since_first_attempt),
            lease_expires_at: now.saturating_add(lease),
        };
        let mut delivery = Delivery::new(task.payload.clone(), envelope, self.running.control.clone());
        delivery.extensions_mut().insert(self);
        delivery
    }
}

impl<S> FromDelivery<S> for TaskContext {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        let no_task = || HandlerError::retryable("the message is not a task; run its handler by a task worker");
        delivery.extensions().get().cloned().ok_or_else(no_task)
    }
}
