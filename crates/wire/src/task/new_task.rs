//! Creating tasks.

use std::num::NonZeroU32;
use std::time::Duration;

use postrider_core::task::When;
use postrider_core::{
    IdempotencyKey, MessagingError, Priority, RetryStrategy, TaskId, TaskState, Timestamp, duration_text,
};
use serde::{Deserialize, Serialize};

use crate::body::{self, Base64, Text};
use crate::message::{key, priority, text};
use crate::object;
use crate::problem::Problem;

/// `POST /v1/tasks`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(extend("oneOf" = [{ "required": ["payload"] }, { "required": ["payload_base64"] }]))
)]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// Its id; the server generates one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<TaskId>,
    /// Task type: selects the handler.
    // A text, so that an invalid name fails only its row.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(with = "postrider_core::TaskType"))]
    pub task_type: String,
    /// Payload of the handler, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Text>,
    /// Payload of the handler, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Base64>,
    /// When it is due; at once if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Timestamp>,
    /// Delay between creation and due.
    #[serde(default, rename = "in", with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub scheduled_in: Option<Duration>,
    /// Maximum number of attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = u32::MAX)))]
    pub max_attempts: Option<NonZeroU32>,
    /// 0 to 9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: Option<u8>,
    /// Tasks of one type and key run one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<128>>"))]
    pub ordering_key: Option<String>,
    /// A second task of the type with this key is not created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<512>>"))]
    pub idempotency_key: Option<String>,
    /// When a failed attempt is retried.
    #[serde(default, deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// Deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Deadline, counted from its creation.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub deadline_in: Option<Duration>,
    /// Tags to filter by.
    #[serde(default, deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<crate::schema::Line<128>>", length(max = 32)))]
    pub tags: Vec<String>,
}

/// Without the schedule: only the server creates tasks of schedules.
impl From<postrider_core::NewTask> for NewTask {
    fn from(task: postrider_core::NewTask) -> Self {
        let (payload, payload_base64) = body::split(task.payload);
        let (scheduled_in, scheduled_for) = match task.scheduled_for {
            When::In(delay) => (Some(delay).filter(|delay| !delay.is_zero()), None),
            When::At(time) => (None, Some(time)),
        };
        let (deadline_in, deadline) = match task.deadline {
            Some(When::In(time)) => (Some(time), None),
            Some(When::At(time)) => (None, Some(time)),
            None => (None, None),
        };
        Self {
            id: Some(task.id),
            task_type: task.task_type.as_str().to_owned(),
            payload,
            payload_base64,
            scheduled_for,
            scheduled_in,
            max_attempts: task.max_attempts,
            priority: (task.priority != Priority::default()).then(|| task.priority.get()),
            ordering_key: text(task.ordering_key.as_ref()),
            idempotency_key: task.idempotency_key.map(|key| key.as_str().to_owned()),
            retry_strategy: task.retry_strategy,
            deadline,
            deadline_in,
            tags: task.tags,
        }
    }
}

impl TryFrom<NewTask> for postrider_core::NewTask {
    type Error = MessagingError;

    fn try_from(new: NewTask) -> Result<Self, Self::Error> {
        let both = |what, at, within| {
            MessagingError::invalid(what, format!("both {at} and {within} are set; send one of them"))
        };
        let mut task = Self::new(&new.task_type, body::required("payload", new.payload, new.payload_base64)?)?;
        if let Some(id) = new.id {
            task.id = id;
        }
        task.scheduled_for = match (new.scheduled_for, new.scheduled_in) {
            (Some(_), Some(_)) => return Err(both("time that a task is scheduled for", "scheduled_for", "in")),
            (Some(time), None) => When::At(time),
            (None, delay) => delay.map_or(When::NOW, When::In),
        };
        task.deadline = match (new.deadline, new.deadline_in) {
            (Some(_), Some(_)) => return Err(both("deadline of a task", "deadline", "deadline_in")),
            (Some(time), None) => Some(When::At(time)),
            (None, time) => time.map(When::In),
        };
        task.max_attempts = new.max_attempts;
        task.priority = priority(new.priority)?;
        task.ordering_key = key("ordering key", new.ordering_key)?;
        task.idempotency_key = new.idempotency_key.map(IdempotencyKey::new).transpose()?;
        task.retry_strategy = new.retry_strategy;
        task.tags = new.tags;
        Ok(task)
    }
}

/// `POST /v1/tasks/batch`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTasksRequest {
    /// The tasks, in the order of creation.
    #[serde(deserialize_with = "object::list")]
    pub tasks: Vec<NewTask>,
}

/// Result of a creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CreatedTask"))]
pub struct Created {
    /// The new task, or the existing one with the same idempotency key.
    pub id: TaskId,
    /// Its state.
    pub state: TaskState,
    /// Whether this request created it.
    pub is_new: bool,
}

impl From<postrider_core::task::Created> for Created {
    fn from(created: postrider_core::task::Created) -> Self {
        Self { id: created.id, state: created.state, is_new: created.is_new }
    }
}

impl From<Created> for postrider_core::task::Created {
    fn from(created: Created) -> Self {
        Self { id: created.id, state: created.state, is_new: created.is_new }
    }
}

/// Result for one task of a batch.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreatedRow {
    /// The task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<TaskId>,
    /// Its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Whether this request created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_new: Option<bool>,
    /// Why it was not created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Box<Problem>>,
}

impl From<Result<postrider_core::task::Created, MessagingError>> for CreatedRow {
    fn from(result: Result<postrider_core::task::Created, MessagingError>) -> Self {
        match result {
            Ok(created) => {
                Self { id: Some(created.id), state: Some(created.state), is_new: Some(created.is_new), problem: None }
            }
            Err(error) => Self { problem: Some(Box::new(Problem::of(&error))), ..Self::default() },
        }
    }
}

impl CreatedRow {
    /// Result of the row; `None` if the row has neither a result nor a problem.
    pub fn into_result(self, provider: &'static str) -> Option<Result<postrider_core::task::Created, MessagingError>> {
        match self.problem {
            Some(problem) => Some(Err(problem.into_error(provider))),
            None => Some(Ok(postrider_core::task::Created { id: self.id?, state: self.state?, is_new: self.is_new? })),
        }
    }
}

/// Results of a batch, in the order of the request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CreatedBatch {
    /// One row each.
    pub results: Vec<CreatedRow>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    fn full() -> postrider_core::NewTask {
        postrider_core::NewTask::new("mail", &b"\xff"[..])
            .unwrap()
            .max_attempts(7)
            .priority(Priority::LOWEST)
            .ordering_key("k")
            .unwrap()
            .idempotency_key("i")
            .unwrap()
            .retry_strategy(RetryStrategy::constant(Duration::from_secs(1)))
            .tag("a")
    }

    #[test]
    fn tasks_round_trip() {
        let at = Timestamp::from_micros(1_700_000_000_000_001);
        let plain = postrider_core::NewTask::new("mail", "{}").unwrap();
        let time = Duration::from_millis(1);
        for task in
            [plain.clone(), full().scheduled_in(time).deadline_at(at), full().scheduled_at(at).deadline_in(time)]
        {
            assert_eq!(postrider_core::NewTask::try_from(round_trip(&NewTask::from(task.clone()))).unwrap(), task);
        }
        let expected = serde_json::json!({"id": plain.id, "type": "mail", "payload": "{}"});
        assert_eq!(json(&NewTask::from(plain)), expected);
    }

    #[test]
    fn invalid_tasks_are_refused() {
        assert!(is_refused::<NewTask>(r#"{"type":"a","payload":"","scheduled_in":"5s"}"#));
        assert!(is_refused::<NewTask>(r#"{"payload":""}"#));
        assert!(is_refused::<NewTask>(r#"{"type":"a","payload":"","retry_strategy":{"strategy":"hope"}}"#));
        for bad in [
            r#"{"type":"a b","payload":""}"#,
            r#"{"type":"a"}"#,
            r#"{"type":"a","payload":"","in":"5s","scheduled_for":"2030-01-01T00:00:00Z"}"#,
            r#"{"type":"a","payload":"","deadline_in":"5s","deadline":"2030-01-01T00:00:00Z"}"#,
            r#"{"type":"a","payload":"","idempotency_key":""}"#,
            r#"{"type":"a","payload":"","priority":10}"#,
        ] {
            let new: NewTask = serde_json::from_str(bad).unwrap();
            assert!(postrider_core::NewTask::try_from(new).is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_have_a_task_or_a_problem() {
        let created =
            postrider_core::task::Created { id: TaskId::generate(), is_new: false, state: TaskState::Processing };
        assert_eq!(postrider_core::task::Created::from(round_trip(&Created::from(created))), created);
        let refused = MessagingError::invalid("payload", "too long");
        let rows = CreatedBatch { results: vec![Ok(created).into(), Err(refused).into(), CreatedRow::default()] };
        let mut rows = round_trip(&rows).results.into_iter().map(|row| row.into_result("http"));
        assert_eq!(rows.next().unwrap().unwrap().unwrap(), created);
        assert!(matches!(rows.next(), Some(Some(Err(MessagingError::InvalidInput { what: "payload", .. })))));
        assert!(matches!(rows.next(), Some(None)));
    }
}
