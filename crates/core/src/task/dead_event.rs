//! The event of a dead task.

use serde::{Deserialize, Serialize};

use super::names::{TaskId, TaskType};
use super::state::DeadReason;
use crate::clock::Timestamp;

/// Where the payload of a dead task is: in the task store. The event does not contain it, because it can be large or
/// confidential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PayloadRef {
    /// The revision of the payload that the attempts used; the number of its edits.
    pub revision: u32,
    /// Its size.
    pub bytes: u64,
}

/// The event that a task died. Sent to the configured queue, in the transaction in which the task died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadTaskEvent {
    /// The task.
    pub task_id: TaskId,
    /// The task type.
    pub task_type: TaskType,
    /// The worker of the last attempt; `None` if there was none.
    pub worker_id: Option<String>,
    /// Number of attempts.
    pub attempt_count: u32,
    /// Upper bound of the attempts.
    pub max_attempts: u32,
    /// Why there was no further attempt.
    pub reason: DeadReason,
    /// The last error.
    pub error: String,
    /// When it died, by the store's clock.
    pub dead_at: Timestamp,
    /// The reference to the payload.
    pub payload: PayloadRef,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_documented_fields() {
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
