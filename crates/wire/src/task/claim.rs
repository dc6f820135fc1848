//! Claiming tasks.

use std::time::Duration;

use postrider_core::task::{ClaimAnswer, ClaimTasks, ClaimedTask, TaskLease};
use postrider_core::{MessagingError, Priority, RetryStrategy, TaskId, TaskType, Timestamp, duration_text};
use serde::{Deserialize, Serialize};

use super::finish::{Finish, Standing};
use crate::body::{self, Base64, Text};
use crate::message::{key, text};
use crate::object;

/// `POST /v1/tasks/claim`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Claim"))]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Types of the tasks.
    #[serde(deserialize_with = "object::values")]
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub types: Vec<TaskType>,
    /// Maximum number of tasks; 1 if absent.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub max: usize,
    /// Duration of the leases.
    #[serde(with = "duration_text::Text")]
    pub lease: Duration,
    /// Name of the worker.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Line<128>"))]
    pub worker: String,
    /// How long to wait for the first task; no wait if absent.
    #[serde(default, with = "duration_text::Text", skip_serializing_if = "Duration::is_zero")]
    pub wait: Duration,
    /// Attempts to finish first.
    #[serde(default, deserialize_with = "object::list", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1000)))]
    pub finish: Vec<Finish>,
}

fn one() -> usize {
    1
}

impl ClaimRequest {
    /// A claim that finishes these attempts first.
    pub fn new(claim: ClaimTasks, finish: Vec<Finish>) -> Self {
        let ClaimTasks { types, max, lease, worker } = claim;
        Self { types, max, lease, worker, wait: Duration::ZERO, finish }
    }

    /// The claim alone.
    pub fn claim(&self) -> ClaimTasks {
        ClaimTasks { types: self.types.clone(), max: self.max, lease: self.lease, worker: self.worker.clone() }
    }
}

/// A claimed task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ClaimedTask"))]
pub struct Claimed {
    /// Its lease, used to finish the attempt.
    pub lease: String,
    /// The task.
    pub id: TaskId,
    /// Task type: selects the handler.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// Payload of the handler, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Text>,
    /// Payload of the handler, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Base64>,
    /// Number of this attempt.
    pub attempt_count: u32,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// When a failed attempt is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// Its priority.
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: u8,
    /// Its ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// Tags to filter by.
    #[serde(default)]
    pub tags: Vec<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was due.
    pub scheduled_for: Timestamp,
    /// How long ago the first attempt began.
    #[serde(with = "duration_text::Text")]
    pub since_first_attempt: Duration,
    /// Time until the deadline.
    #[serde(default, with = "duration_text::OptionalText")]
    pub time_left: Option<Duration>,
}

impl Claimed {
    /// A claimed task, with the text of its lease for the worker.
    pub fn new(lease: String, task: ClaimedTask) -> Self {
        let (payload, payload_base64) = body::split(task.payload);
        Self {
            lease,
            id: task.lease.id,
            task_type: task.task_type,
            payload,
            payload_base64,
            attempt_count: task.attempt_count,
            max_attempts: task.max_attempts,
            retry_strategy: task.retry_strategy,
            priority: task.priority.get(),
            ordering_key: text(task.ordering_key.as_ref()),
            tags: task.tags,
            created_at: task.created_at,
            scheduled_for: task.scheduled_for,
            since_first_attempt: task.since_first_attempt,
            time_left: task.time_left,
        }
    }

    /// The task, with its lease.
    pub fn into_task(self, lease: TaskLease) -> Result<ClaimedTask, MessagingError> {
        let claimed = self;
        Ok(ClaimedTask {
            lease,
            task_type: claimed.task_type,
            payload: body::required("payload", claimed.payload, claimed.payload_base64)?,
            attempt_count: claimed.attempt_count,
            max_attempts: claimed.max_attempts,
            retry_strategy: claimed.retry_strategy,
            priority: Priority::new(claimed.priority)?,
            ordering_key: key("ordering key", claimed.ordering_key)?,
            tags: claimed.tags,
            created_at: claimed.created_at,
            scheduled_for: claimed.scheduled_for,
            since_first_attempt: claimed.since_first_attempt,
            time_left: claimed.time_left,
        })
    }
}

/// Answer to a claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Claimed"))]
pub struct Claims {
    /// Results of the attempts that were finished first.
    #[serde(default)]
    pub finished: Vec<Standing>,
    /// The claimed tasks.
    #[serde(default)]
    pub tasks: Vec<Claimed>,
    /// If nothing was claimed: time until a task may become due.
    #[serde(default, with = "duration_text::OptionalText")]
    pub next_due: Option<Duration>,
}

/// Upper bound of the tasks that one request claims by id. All of them are returned, however large.
pub const MOST_BY_ID: usize = 100;

/// `POST /v1/tasks/claim-by-id`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ClaimById"))]
#[serde(deny_unknown_fields)]
pub struct ClaimByIdRequest {
    /// The tasks.
    #[cfg_attr(feature = "schema", schemars(length(max = MOST_BY_ID)))]
    pub ids: Vec<TaskId>,
    /// Duration of the leases.
    #[serde(with = "duration_text::Text")]
    pub lease: Duration,
    /// Name of the worker.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Line<128>"))]
    pub worker: String,
}

/// Result of one claim by id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ClaimAnswer"))]
#[serde(rename_all = "snake_case")]
pub enum ClaimRow {
    /// Claimed.
    Claimed(Box<Claimed>),
    /// Time until it is due.
    NotDue(#[serde(with = "duration_text::Text")] Duration),
    /// Not claimable in its state. Always true.
    NotClaimable(bool),
}

impl ClaimRow {
    /// The row of an answer; `lease` returns the text of a task's lease.
    pub fn new(answer: ClaimAnswer, lease: impl FnOnce(&ClaimedTask) -> String) -> Self {
        match answer {
            ClaimAnswer::Claimed(task) => Self::Claimed(Box::new(Claimed::new(lease(&task), *task))),
            ClaimAnswer::NotDue(time) => Self::NotDue(time),
            ClaimAnswer::NotClaimable => Self::NotClaimable(true),
        }
    }
}

/// Results of claims by id, in the order of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClaimByIdAnswers {
    /// One row each.
    pub answers: Vec<ClaimRow>,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use postrider_core::Key;

    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    fn claimed(is_full: bool) -> ClaimedTask {
        ClaimedTask {
            lease: TaskLease { id: TaskId::generate(), token: -7 },
            task_type: TaskType::new("mail").unwrap(),
            payload: Bytes::from_static(if is_full { b"\xff" } else { b"{}" }),
            attempt_count: 1,
            max_attempts: 3,
            retry_strategy: is_full.then_some(RetryStrategy::NoRetry),
            priority: Priority::LOWEST,
            ordering_key: is_full.then(|| Key::new("key", "k").unwrap()),
            tags: if is_full { vec!["a".into()] } else { Vec::new() },
            created_at: Timestamp::from_micros(1),
            scheduled_for: Timestamp::from_micros(2),
            since_first_attempt: Duration::from_micros(3),
            time_left: is_full.then_some(Duration::ZERO),
        }
    }

    #[test]
    fn claims_round_trip() {
        for task in [claimed(true), claimed(false)] {
            let tasks = vec![Claimed::new("prl1.x".into(), task.clone())];
            let claims = Claims { finished: Vec::new(), tasks, next_due: Some(Duration::from_secs(5)) };
            let mut back = round_trip(&claims);
            assert_eq!(back, claims);
            let back = back.tasks.remove(0);
            assert_eq!((back.lease.as_str(), back.id), ("prl1.x", task.lease.id));
            assert_eq!(back.into_task(task.lease).unwrap(), task);
        }
        assert_eq!(serde_json::from_str::<Claims>("{}").unwrap().next_due, None);
    }

    #[test]
    fn answers_by_id_round_trip() {
        let task = claimed(true);
        let answers = [
            ClaimAnswer::Claimed(Box::new(task.clone())),
            ClaimAnswer::NotDue(Duration::from_secs(5)),
            ClaimAnswer::NotClaimable,
        ];
        let lease = |task: &ClaimedTask| task.lease.id.to_string();
        let rows = ClaimByIdAnswers { answers: answers.map(|answer| ClaimRow::new(answer, lease)).into() };
        assert_eq!(round_trip(&rows), rows);
        assert_eq!(json(&rows)["answers"][0]["claimed"]["lease"], task.lease.id.to_string());
        assert_eq!(json(&rows)["answers"][1], serde_json::json!({"not_due": "5s"}));
        assert_eq!(json(&rows)["answers"][2], serde_json::json!({"not_claimable": true}));
    }

    #[test]
    fn requests_round_trip() {
        let claim = ClaimTasks {
            types: vec![TaskType::new("mail").unwrap()],
            max: 7,
            lease: Duration::from_secs(30),
            worker: "host:7".into(),
        };
        let request = ClaimRequest::new(claim.clone(), Vec::new());
        assert_eq!(round_trip(&request), request);
        assert_eq!(request.claim(), claim);
        let short: ClaimRequest = serde_json::from_str(r#"{"types":["a"],"lease":"30s","worker":"w"}"#).unwrap();
        assert_eq!((short.max, short.wait), (1, Duration::ZERO));
        assert!(is_refused::<ClaimRequest>(r#"{"types":["a"],"lease":"30s","worker":"w","type":"b"}"#));
    }
}
