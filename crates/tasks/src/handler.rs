//! Handlers of tasks, and what they get.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use postrider_core::task::{ClaimedTask, Progress, TaskId, TaskType};
use postrider_core::{Json, Key, Message, MessagingError, Priority, Timestamp};
use postrider_subscriber::{CancellationToken, HandlerError};
use serde::Serialize;
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
        self.running.is_leased()
    }

    /// Cancelled when the result is no longer needed: the task was canceled, its deadline or time-out has passed, its
    /// lease was lost, or the worker must stop. A handler that ignores it is dropped a little later.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.running.cancel
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
        self.running.release();
    }
}

/// The result of a handler: nothing, bytes, text, or a value as [`Json`].
pub trait IntoTaskResult {
    /// Converts it to the stored result.
    fn into_task_result(self) -> Result<Option<Bytes>, HandlerError>;
}

impl IntoTaskResult for () {
    fn into_task_result(self) -> Result<Option<Bytes>, HandlerError> {
        Ok(None)
    }
}

macro_rules! bytes_as_result {
    ($($type:ty),*) => {
        $(impl IntoTaskResult for $type {
            fn into_task_result(self) -> Result<Option<Bytes>, HandlerError> {
                Ok(Some(self.into()))
            }
        })*
    };
}

bytes_as_result!(Bytes, Vec<u8>, String, &'static str);

impl<T: IntoTaskResult> IntoTaskResult for Option<T> {
    fn into_task_result(self) -> Result<Option<Bytes>, HandlerError> {
        self.map_or(Ok(None), T::into_task_result)
    }
}

impl<T: Serialize> IntoTaskResult for Json<T> {
    fn into_task_result(self) -> Result<Option<Bytes>, HandlerError> {
        Message::json(&self.0).map(|message| Some(message.body)).map_err(HandlerError::permanent)
    }
}

type Answer = Result<Option<Bytes>, HandlerError>;
type Handler = Arc<dyn Fn(TaskContext) -> BoxFuture<'static, Answer> + Send + Sync>;

/// The handlers of a worker, by type.
#[derive(Clone, Default)]
pub(crate) struct Handlers(BTreeMap<TaskType, Handler>);

impl Handlers {
    /// Sets the handler of a type. Returns whether the type had none before.
    pub(crate) fn register<F, Fut, R, E>(&mut self, task_type: TaskType, handler: F) -> bool
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoTaskResult,
        E: Into<HandlerError>,
    {
        let handler: Handler = Arc::new(move |context| {
            let answer = handler(context);
            async move { answer.await.map_err(Into::into)?.into_task_result() }.boxed()
        });
        self.0.insert(task_type, handler).is_none()
    }

    pub(crate) fn types(&self) -> Vec<TaskType> {
        self.0.keys().cloned().collect()
    }

    pub(crate) fn get(&self, task_type: &TaskType) -> Option<&Handler> {
        self.0.get(task_type)
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
