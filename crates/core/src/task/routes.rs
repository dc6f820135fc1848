//! The queues of task ids and of death events.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::names::{TaskId, TaskType};
use crate::codec::{FromBytes, Json};
use crate::error::MessagingError;
use crate::message::{Message, Priority};
use crate::queue_name::QueueName;

/// The default prefix of task queues.
pub const DEFAULT_TASK_QUEUE_PREFIX: &str = "task_";

/// How workers get due tasks. The guarantees and the API are the same in each mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TaskMode {
    /// Workers claim due tasks from the store.
    #[default]
    Polling,
    /// The enqueuer sends the ids of due tasks to a queue, from which workers receive them.
    Queue,
}

impl TaskMode {
    /// All modes.
    pub const ALL: [Self; 2] = [Self::Polling, Self::Queue];

    /// The name of the mode in configurations and texts.
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
            MessagingError::invalid(
                "task mode",
                format!("'{}' is not a mode; use polling or queue", name.escape_debug()),
            )
        })
    }
}

/// How the message of a transition is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Post {
    /// The queues are in the store: the message is sent in the transaction of the transition.
    #[default]
    Here,
    /// The queues are elsewhere: the message is written to the outbox in the transaction of the transition, and a relay
    /// sends it until it is confirmed.
    Outbox,
}

/// The queues of task ids and of death events. All processes on a store must use the same ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRoutes {
    /// How workers get due tasks.
    pub mode: TaskMode,
    /// How messages are sent.
    pub post: Post,
    /// The prefix of the queue of a task type.
    pub queue_prefix: String,
    /// The queue of death events; `None` sends none.
    pub dead_events: Option<QueueName>,
}

impl Default for TaskRoutes {
    /// Polling, without events.
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
    /// The name under which changes of the outbox are notified, as changes of a queue are under its name.
    pub fn to_send_notice() -> QueueName {
        QueueName::new("postrider_tasks").expect("a valid queue name")
    }

    /// The queue of a task type.
    pub fn queue(&self, task_type: &TaskType) -> Result<QueueName, MessagingError> {
        QueueName::new(format!("{}{task_type}", self.queue_prefix))
    }
}

/// The message in a task queue: the id of a task, and nothing that the store could contradict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskMessage {
    /// The task to run.
    pub task_id: TaskId,
}

impl TaskMessage {
    /// The message that delivers a task.
    pub fn message(task_id: TaskId, priority: Priority) -> Result<Message, MessagingError> {
        Ok(Message::encode(&Json(Self { task_id }))?.priority(priority))
    }

    /// The task that a message delivers.
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
