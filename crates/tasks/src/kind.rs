//! Typed tasks: the name, the payload and the result of a task type as one Rust type.

use postrider_core::task::{NewTask, Task, TaskId, TaskState};
use postrider_core::{Message, MessagingError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The payload of a task type, with the type's name and its result. Payload and result are stored as JSON.
///
/// ```
/// use postrider_core::Json;
/// use postrider_tasks::{HandlerError, TaskContext, TaskKind};
/// # use postrider_core::memory::MemoryProvider;
/// # use postrider_sqlite::SqliteTasks;
/// # use postrider_tasks::TaskWorkerBuilder;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendInvoice {
///     order: u64,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct Sent {
///     pages: u32,
/// }
///
/// impl TaskKind for SendInvoice {
///     const TYPE: &'static str = "invoice.send";
///     type Result = Sent;
/// }
///
/// async fn send(Json(invoice): Json<SendInvoice>, task: TaskContext) -> Result<Sent, HandlerError> {
///     task.progress(0.5, format!("order {} is rendered", invoice.order))?;
///     Ok(Sent { pages: 3 })
/// }
///
/// # fn add(worker: TaskWorkerBuilder<SqliteTasks, MemoryProvider>) -> TaskWorkerBuilder<SqliteTasks, MemoryProvider> {
/// worker.handler_of::<SendInvoice, _>(send)
/// # }
/// # let task = SendInvoice { order: 7 }.new_task().unwrap();
/// # assert_eq!((task.task_type.as_str(), &task.payload[..]), ("invoice.send", &br#"{"order":7}"#[..]));
/// ```
///
/// A handler with another result does not compile:
///
/// ```compile_fail,E0277
/// # use postrider_core::Json;
/// # use postrider_core::memory::MemoryProvider;
/// # use postrider_sqlite::SqliteTasks;
/// # use postrider_tasks::{HandlerError, TaskKind, TaskWorkerBuilder};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendInvoice {
/// #     order: u64,
/// # }
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Sent {
/// #     pages: u32,
/// # }
/// # impl TaskKind for SendInvoice {
/// #     const TYPE: &'static str = "invoice.send";
/// #     type Result = Sent;
/// # }
/// async fn send(Json(invoice): Json<SendInvoice>) -> Result<u32, HandlerError> {
///     Ok(3)
/// }
///
/// # fn add(worker: TaskWorkerBuilder<SqliteTasks, MemoryProvider>) -> TaskWorkerBuilder<SqliteTasks, MemoryProvider> {
/// worker.handler_of::<SendInvoice, _>(send) // its result is `u32`, not `Sent`
/// # }
/// ```
pub trait TaskKind: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the type.
    const TYPE: &'static str;

    /// The result of a task.
    type Result: Serialize + DeserializeOwned + Send + 'static;

    /// A task with this payload that is due at once.
    fn new_task(&self) -> Result<NewTask, MessagingError> {
        NewTask::new(Self::TYPE, Message::json(self)?.body)
    }
}

/// Why a task has no result of the wanted type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskResultError {
    /// The task ended without success.
    #[error("task {id} is {state}: {error}; {}", next(*state))]
    NotSucceeded {
        /// The task.
        id: TaskId,
        /// The state: DEAD or CANCELED.
        state: TaskState,
        /// The error of its last attempt.
        error: String,
    },

    /// The stored result is not of the wanted type.
    #[error("the result of task {id} is not of the wanted type: {source}; read its bytes with `get`")]
    Undecodable {
        /// The task.
        id: TaskId,
        /// The decoder's error.
        source: serde_json::Error,
    },

    /// The task cannot be read, is of another type, or did not end before the deadline.
    #[error(transparent)]
    Messaging(#[from] MessagingError),
}

fn next(state: TaskState) -> &'static str {
    match state {
        TaskState::Dead => "remove the cause and replay it",
        _ => "create it again if its result is needed",
    }
}

/// The result of an ended task.
pub(crate) fn result_of<K: TaskKind>(task: Task) -> Result<K::Result, TaskResultError> {
    let Task { info, result, .. } = task;
    let id = info.id;
    if info.task_type.as_str() != K::TYPE {
        let why =
            format!("task {id} is of type '{}', not '{}'; ask for the result of its type", info.task_type, K::TYPE);
        return Err(MessagingError::invalid("task type", why).into());
    }
    if info.state != TaskState::Succeeded {
        let error = info.last_error.unwrap_or_else(|| "no attempt has failed".to_owned());
        return Err(TaskResultError::NotSucceeded { id, state: info.state, error });
    }
    // Handlers without a type store nothing for `()`.
    let json = result.as_deref().unwrap_or(b"null");
    serde_json::from_slice(json).map_err(|source| TaskResultError::Undecodable { id, source })
}
