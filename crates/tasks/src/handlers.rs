//! The handlers of a worker, and their results.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use postrider_core::task::TaskType;
use postrider_core::{Json, Message, MessagingError, QueueName};
use postrider_subscriber::{Delivery, HandlerError};
use serde::Serialize;
use tower::Service;
use tower::util::BoxCloneSyncService;

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

/// The stored result of an attempt.
pub(crate) type Answer = Result<Option<Bytes>, HandlerError>;

/// The handler of a type.
pub(crate) struct TaskHandler {
    /// The queue of the type.
    pub(crate) queue: QueueName,
    pub(crate) service: BoxCloneSyncService<Delivery, Option<Bytes>, HandlerError>,
}

/// The handlers of a worker, by type.
#[derive(Default)]
pub(crate) struct Handlers(BTreeMap<TaskType, TaskHandler>);

impl Handlers {
    /// Sets the handler of a type.
    pub(crate) fn register<S>(
        &mut self,
        task_type: TaskType,
        queue: QueueName,
        service: S,
    ) -> Result<(), MessagingError>
    where
        S: Service<Delivery, Response = Option<Bytes>, Error = HandlerError, Future: Send>,
        S: Clone + Send + Sync + 'static,
    {
        let handler = TaskHandler { queue, service: BoxCloneSyncService::new(service) };
        match self.0.insert(task_type.clone(), handler) {
            None => Ok(()),
            Some(_) => {
                let why = format!("'{task_type}' has two handlers; a type has one");
                Err(MessagingError::invalid("handler", why))
            }
        }
    }

    pub(crate) fn types(&self) -> Vec<TaskType> {
        self.0.keys().cloned().collect()
    }

    pub(crate) fn get(&self, task_type: &TaskType) -> Option<&TaskHandler> {
        self.0.get(task_type)
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
