//! What is told of a task that died.

use serde::{Deserialize, Serialize};

use super::names::{TaskId, TaskType};
use super::state::DeadReason;
use crate::clock::Timestamp;

/// Where the payload of a dead task is: with the task. The event does not carry it, because a payload may be a megabyte,
/// or nobody's business where events are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PayloadRef {
    /// How often it had been edited: the revision that the attempts ran with.
    pub revision: u32,
    /// Its size.
    pub bytes: u64,
}

/// A task died. Sent to the queue that is configured for it, in the transaction in which the task died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadTaskEvent {
    /// The task.
    pub task_id: TaskId,
    /// Its type.
    pub task_type: TaskType,
    /// Who made the last attempt; `None` when there was none.
    pub worker_id: Option<String>,
    /// How many attempts were made.
    pub attempt_count: u32,
    /// How many were allowed.
    pub max_attempts: u32,
    /// Why there was no further one.
    pub reason: DeadReason,
    /// The last error.
    pub error: String,
    /// When it died, by the store's clock.
    pub dead_at: Timestamp,
    /// Where its payload is.
    pub payload: PayloadRef,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_fields_that_its_readers_know() {
        let event = DeadTaskEvent {
            task_id: "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap(),
            task_type: TaskType::new("mail").unwrap(),
            worker_id: Some("host:7".into()),
            attempt_count: 3,
            max_attempts: 3,
            reason: DeadReason::MaxAttempts,
            error: "no route".into(),
            dead_at: Timestamp::from_micros(1_700_000_000_000_000),
            payload: PayloadRef { revision: 0, bytes: 2 },
        };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(
            json,
            r#"{"taskId":"01890a5d-ac96-774b-bcce-b302099a8057","taskType":"mail","workerId":"host:7","attemptCount":3,"maxAttempts":3,"reason":"max_attempts","error":"no route","deadAt":"2023-11-14T22:13:20Z","payload":{"revision":0,"bytes":2}}"#
        );
        assert_eq!(serde_json::from_str::<DeadTaskEvent>(&json).unwrap(), event);
    }
}
