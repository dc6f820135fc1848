//! How the ids of tasks reach their workers, and where deaths are told.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::names::{TaskId, TaskType};
use crate::codec::{FromBytes, Json};
use crate::error::MessagingError;
use crate::message::{Message, Priority};
use crate::queue_name::QueueName;

/// What the queues of tasks begin with unless the configuration says otherwise.
pub const DEFAULT_TASK_QUEUE_PREFIX: &str = "task_";

/// Who looks for due tasks. Guarantees and calls are the same either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TaskMode {
    /// Workers claim what is due from the store.
    #[default]
    Polling,
    /// The enqueuer sends the ids of due tasks to a queue, from which workers are delivered.
    Queue,
}

impl TaskMode {
    /// Every mode.
    pub const ALL: [Self; 2] = [Self::Polling, Self::Queue];

    /// The mode's name in configurations and texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Queue => "queue",
        }
    }
}

impl fmt::Display for TaskMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TaskMode {
    type Err = MessagingError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            MessagingError::invalid("task mode", format!("'{}' is neither polling nor queue", name.escape_debug()))
        })
    }
}

/// How a message that belongs to a transition leaves the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Post {
    /// The queues are in the store itself: the message is sent in the transition's transaction.
    #[default]
    Here,
    /// The queues are elsewhere: the message is written to the outbox in the transition's transaction, and a relay sends
    /// it until that was confirmed.
    Outbox,
}

/// How the ids of tasks reach their workers, and where deaths are told. All processes on a store must agree on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRoutes {
    /// Who looks for due tasks.
    pub mode: TaskMode,
    /// How messages leave the store.
    pub post: Post,
    /// What the queue of a type is called before the type's name.
    pub queue_prefix: String,
    /// Where the event of a death is sent to; `None` sends none.
    pub dead_events: Option<QueueName>,
}

impl Default for TaskRoutes {
    /// Polling, and no events.
    fn default() -> Self {
        Self {
            mode: TaskMode::Polling,
            post: Post::Here,
            queue_prefix: DEFAULT_TASK_QUEUE_PREFIX.to_owned(),
            dead_events: None,
        }
    }
}

impl TaskRoutes {
    /// What waits to be sent on its way is told under this name, as news of a queue is under the queue's.
    pub fn to_send_notice() -> QueueName {
        QueueName::new("postrider_tasks").expect("a name that queues may have")
    }

    /// The queue of a type's tasks.
    pub fn queue(&self, task_type: &TaskType) -> Result<QueueName, MessagingError> {
        QueueName::new(format!("{}{task_type}", self.queue_prefix))
    }
}

/// What the queue of a type carries: the id of a task, and nothing that the store does not know better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskMessage {
    /// The task that wants a worker.
    pub task_id: TaskId,
}

impl TaskMessage {
    /// The message that delivers a task.
    pub fn message(task_id: TaskId, priority: Priority) -> Result<Message, MessagingError> {
        Ok(Message::encode(&Json(Self { task_id }))?.priority(priority))
    }

    /// The task that a message wants a worker for.
    pub fn read(body: &[u8]) -> Result<TaskId, MessagingError> {
        Json::<Self>::from_bytes(body).map(|Json(message)| message.task_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_queue() {
        let routes = TaskRoutes::default();
        let longest = TaskType::new("t".repeat(super::super::MAX_TASK_TYPE)).unwrap();
        assert_eq!(routes.queue(&TaskType::new("mail").unwrap()).unwrap().as_str(), "task_mail");
        assert!(routes.queue(&longest).is_ok());
        assert!(TaskRoutes { queue_prefix: "a b".into(), ..routes }.queue(&longest).is_err());
    }

    #[test]
    fn a_message_carries_an_id_and_nothing_else() {
        let id: TaskId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        let message = TaskMessage::message(id, Priority::HIGHEST).unwrap();
        assert_eq!(&*message.body, br#"{"taskId":"01890a5d-ac96-774b-bcce-b302099a8057"}"#);
        assert_eq!(message.priority, Priority::HIGHEST);
        assert_eq!(TaskMessage::read(&message.body).unwrap(), id);
        for forged in [&b"{}"[..], b"", b"\xff\x00", br#"{"taskId":7}"#] {
            assert!(TaskMessage::read(forged).is_err());
        }
        assert!(TaskRoutes::to_send_notice().is_portable());
    }
}
