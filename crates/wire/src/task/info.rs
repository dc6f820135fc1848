//! Stored tasks.

use postrider_core::task::{
    AttemptOutcome, DeadReason, PayloadRevision, Progress, Task, TaskAttempt, TaskCursor, TaskInfo, TaskPage,
};
use postrider_core::{IdempotencyKey, MessagingError, Priority, RetryStrategy, TaskId, TaskState, TaskType, Timestamp};
use serde::{Deserialize, Serialize};

use crate::body::{self, Base64, Text};
use crate::message::{key, text};

/// A task without payload and result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TaskInfo"))]
pub struct Info {
    /// Its id.
    pub id: TaskId,
    /// Its type.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// Its state.
    pub state: TaskState,
    /// Its priority.
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: u8,
    /// Number of attempts started.
    pub attempt_count: u32,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it is or was due.
    pub scheduled_for: Timestamp,
    /// Deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// When it was last enqueued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enqueued_at: Option<Timestamp>,
    /// When the current or last attempt started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Current or last worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When the lease of the current attempt expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Timestamp>,
    /// Progress of the current or last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Reason of its death.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_reason: Option<DeadReason>,
    /// Error text of the last failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Its ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// Whether it waits behind another task of its key; absent without a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<bool>,
    /// Its idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Tags to filter by.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The schedule that created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// When a failed attempt is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// Number of edits of its payload.
    pub revision: u32,
    /// Number of replays.
    pub replay_count: u32,
}

impl From<TaskInfo> for Info {
    fn from(task: TaskInfo) -> Self {
        Self {
            id: task.id,
            task_type: task.task_type,
            state: task.state,
            priority: task.priority.get(),
            attempt_count: task.attempt_count,
            max_attempts: task.max_attempts,
            created_at: task.created_at,
            scheduled_for: task.scheduled_for,
            deadline: task.deadline,
            enqueued_at: task.enqueued_at,
            started_at: task.started_at,
            finished_at: task.finished_at,
            worker: task.worker,
            lease_expires_at: task.lease_expires_at,
            progress: task.progress,
            dead_reason: task.dead_reason,
            last_error: task.last_error,
            blocked: task.ordering_key.as_ref().map(|_| task.is_blocked),
            ordering_key: text(task.ordering_key.as_ref()),
            idempotency_key: task.idempotency_key.map(|key| key.as_str().to_owned()),
            tags: task.tags,
            schedule: task.schedule,
            retry_strategy: task.retry_strategy,
            revision: task.revision,
            replay_count: task.replay_count,
        }
    }
}

impl TryFrom<Info> for TaskInfo {
    type Error = MessagingError;

    fn try_from(info: Info) -> Result<Self, Self::Error> {
        Ok(Self {
            id: info.id,
            task_type: info.task_type,
            state: info.state,
            priority: Priority::new(info.priority)?,
            ordering_key: key("ordering key", info.ordering_key)?,
            is_blocked: info.blocked.unwrap_or(false),
            idempotency_key: info.idempotency_key.map(IdempotencyKey::new).transpose()?,
            tags: info.tags,
            schedule: info.schedule,
            attempt_count: info.attempt_count,
            max_attempts: info.max_attempts,
            retry_strategy: info.retry_strategy,
            created_at: info.created_at,
            scheduled_for: info.scheduled_for,
            deadline: info.deadline,
            enqueued_at: info.enqueued_at,
            started_at: info.started_at,
            finished_at: info.finished_at,
            worker: info.worker,
            lease_expires_at: info.lease_expires_at,
            progress: info.progress,
            dead_reason: info.dead_reason,
            last_error: info.last_error,
            revision: info.revision,
            replay_count: info.replay_count,
        })
    }
}

/// `GET /v1/tasks`, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// The tasks.
    pub tasks: Vec<Info>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

impl From<TaskPage> for Page {
    fn from(page: TaskPage) -> Self {
        let next = page.next.map(|TaskCursor(cursor)| cursor);
        Self { tasks: page.tasks.into_iter().map(Info::from).collect(), next }
    }
}

impl TryFrom<Page> for TaskPage {
    type Error = MessagingError;

    fn try_from(page: Page) -> Result<Self, Self::Error> {
        let tasks = page.tasks.into_iter().map(TaskInfo::try_from).collect::<Result<_, _>>()?;
        Ok(Self { tasks, next: page.next.map(TaskCursor) })
    }
}

/// `GET /v1/tasks/{id}`: a task with its payload, result and history.
// Read rarely, so the cost of `flatten` does not matter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Task"))]
pub struct Detail {
    /// The task.
    #[serde(flatten)]
    pub info: Info,
    /// Payload of the handler, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Text>,
    /// Payload of the handler, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Base64>,
    /// Result, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Text>,
    /// Result, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Base64>,
    /// Its attempts, oldest first.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// Earlier payloads, oldest first; only the newest if all of them were too large for an answer.
    #[serde(default)]
    pub revisions: Vec<Revision>,
}

impl Detail {
    /// A task with its history.
    pub fn new(task: Task, attempts: Vec<TaskAttempt>, revisions: Vec<PayloadRevision>) -> Self {
        let (payload, payload_base64) = body::split(task.payload);
        let (result, result_base64) = task.result.map_or((None, None), body::split);
        Self {
            info: task.info.into(),
            payload,
            payload_base64,
            result,
            result_base64,
            attempts: attempts.into_iter().map(Attempt::from).collect(),
            revisions: revisions.into_iter().map(Revision::from).collect(),
        }
    }

    /// The task without its history.
    pub fn into_task(self) -> Result<Task, MessagingError> {
        Ok(Task {
            info: self.info.try_into()?,
            payload: body::required("payload", self.payload, self.payload_base64)?,
            result: body::join("result", self.result, self.result_base64)?,
        })
    }
}

/// One attempt of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub struct Attempt {
    /// Its number.
    pub attempt: u32,
    /// Number of replays before it.
    #[serde(default)]
    pub replay: u32,
    /// Name of the worker.
    pub worker: String,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Its outcome.
    pub outcome: AttemptOutcome,
    /// Error text of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<TaskAttempt> for Attempt {
    fn from(attempt: TaskAttempt) -> Self {
        let TaskAttempt { attempt, replay, worker, started_at, ended_at, outcome, error } = attempt;
        Self { attempt, replay, worker, started_at, ended_at, outcome, error }
    }
}

impl From<Attempt> for TaskAttempt {
    fn from(attempt: Attempt) -> Self {
        let Attempt { attempt, replay, worker, started_at, ended_at, outcome, error } = attempt;
        Self { attempt, replay, worker, started_at, ended_at, outcome, error }
    }
}

/// An earlier payload of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub struct Revision {
    /// Its number; 0 is the original.
    pub revision: u32,
    /// The payload, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Text>,
    /// The payload, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Base64>,
    /// When it was replaced.
    pub replaced_at: Timestamp,
}

impl From<PayloadRevision> for Revision {
    fn from(revision: PayloadRevision) -> Self {
        let (payload, payload_base64) = body::split(revision.payload);
        Self { revision: revision.revision, payload, payload_base64, replaced_at: revision.replaced_at }
    }
}

impl TryFrom<Revision> for PayloadRevision {
    type Error = MessagingError;

    fn try_from(revision: Revision) -> Result<Self, Self::Error> {
        let payload = body::required("payload", revision.payload, revision.payload_base64)?;
        Ok(Self { revision: revision.revision, payload, replaced_at: revision.replaced_at })
    }
}

/// `POST /v1/tasks/{id}/cancel`: the task as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ChangedTask"))]
pub struct Canceled {
    /// The task.
    #[serde(flatten)]
    pub info: Info,
    /// The state before the cancellation.
    pub left: TaskState,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use postrider_core::Key;

    use super::*;
    use crate::testing::{json, round_trip};

    fn info(is_full: bool) -> TaskInfo {
        let time = |micros| is_full.then(|| Timestamp::from_micros(micros));
        let text = || is_full.then(|| "text".to_owned());
        TaskInfo {
            id: TaskId::generate(),
            task_type: TaskType::new("mail").unwrap(),
            state: TaskState::Dead,
            priority: Priority::HIGHEST,
            ordering_key: is_full.then(|| Key::new("key", "k").unwrap()),
            is_blocked: is_full,
            idempotency_key: is_full.then(|| IdempotencyKey::new("i").unwrap()),
            tags: text().into_iter().collect(),
            schedule: text(),
            attempt_count: 3,
            max_attempts: u32::MAX,
            retry_strategy: is_full.then(RetryStrategy::default),
            created_at: Timestamp::from_micros(1),
            scheduled_for: Timestamp::from_micros(2),
            deadline: time(3),
            enqueued_at: time(4),
            started_at: time(5),
            finished_at: time(6),
            worker: text(),
            lease_expires_at: time(7),
            progress: is_full.then(|| Progress::new(Some(0.25), text()).unwrap()),
            dead_reason: is_full.then_some(DeadReason::LeaseLost),
            last_error: text(),
            revision: 1,
            replay_count: 2,
        }
    }

    #[test]
    fn listed_tasks_round_trip() {
        let next = Some(TaskCursor("7".into()));
        let page = TaskPage { tasks: vec![info(true), info(false)], next };
        assert_eq!(TaskPage::try_from(round_trip(&Page::from(page.clone()))).unwrap(), page);
        let bare = json(&Info::from(info(false)));
        assert!(bare.get("blocked").is_none() && bare.get("deadline").is_none(), "{bare}");
    }

    #[test]
    fn tasks_round_trip_with_their_history() {
        let task = |is_full| Task {
            info: info(is_full),
            payload: Bytes::from_static(if is_full { b"\xff" } else { b"{}" }),
            result: is_full.then(|| Bytes::from_static(b"\xfe")),
        };
        let attempt = TaskAttempt {
            attempt: 1,
            replay: 2,
            worker: "host:7".into(),
            started_at: Timestamp::from_micros(1),
            ended_at: None,
            outcome: AttemptOutcome::Running,
            error: None,
        };
        let (payload, replaced_at) = (Bytes::from_static(b"\x80"), Timestamp::EPOCH.saturating_add(Duration::MAX));
        let revision = PayloadRevision { revision: 0, payload, replaced_at };
        for task in [task(true), task(false)] {
            let detail = round_trip(&Detail::new(task.clone(), vec![attempt.clone()], vec![revision.clone()]));
            let attempts = detail.attempts.iter().cloned().map(TaskAttempt::from);
            assert!(attempts.eq([attempt.clone()]));
            let revisions = detail.revisions.iter().cloned().map(PayloadRevision::try_from);
            assert!(revisions.map(Result::unwrap).eq([revision.clone()]));
            assert_eq!(detail.into_task().unwrap(), task);
        }
    }

    #[test]
    fn a_canceled_task_has_its_former_state() {
        let canceled = Canceled { info: info(true).into(), left: TaskState::Processing };
        assert_eq!(round_trip(&canceled), canceled);
        assert_eq!(json(&canceled)["left"], "PROCESSING");
    }
}
