//! Schedules of tasks.

use std::num::NonZeroU32;
use std::time::Duration;

use postrider_core::task::{MissedFire, NewSchedule, ScheduleTiming, TaskTemplate};
use postrider_core::{MessagingError, Priority, RetryStrategy, TaskId, TaskType, Timestamp, duration_text};
use serde::{Deserialize, Serialize};

use super::{body, object};

/// Time zone of a cron expression without one.
const DEFAULT_TIME_ZONE: &str = "UTC";

/// A stored schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// The type of its tasks.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// Cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Time zone of the cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Interval, in place of a cron expression.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// What happens to missed ticks.
    pub missed: MissedFire,
    /// Whether it is paused.
    pub paused: bool,
    /// When it was paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// Next tick; none while it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_run_at: Option<Timestamp>,
    /// Last tick that fired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run_at: Option<Timestamp>,
    /// Last task that it created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_task: Option<TaskId>,
    /// The payload of its tasks.
    pub payload: String,
    /// Maximum number of attempts of each task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<NonZeroU32>,
    /// Their priority.
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: u8,
    /// Their ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// When a failed attempt is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// Deadline of a task, counted from its creation.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub deadline_in: Option<Duration>,
    /// Tags to filter by.
    #[serde(default)]
    pub tags: Vec<String>,
}

impl From<postrider_core::task::Schedule> for Schedule {
    fn from(schedule: postrider_core::task::Schedule) -> Self {
        let NewSchedule { name, timing, task, missed } = schedule.definition;
        let (cron, time_zone, every) = split(timing);
        Self {
            name,
            task_type: task.task_type,
            cron,
            time_zone,
            every,
            missed,
            paused: schedule.paused_at.is_some(),
            paused_at: schedule.paused_at,
            created_at: schedule.created_at,
            next_run_at: schedule.next_run_at.filter(|_| schedule.paused_at.is_none()),
            last_run_at: schedule.last_run_at,
            last_task: schedule.last_task,
            payload: task.payload,
            max_attempts: task.max_attempts,
            priority: task.priority.get(),
            ordering_key: task.ordering_key,
            retry_strategy: task.retry_strategy,
            deadline_in: task.deadline,
            tags: task.tags,
        }
    }
}

impl TryFrom<Schedule> for postrider_core::task::Schedule {
    type Error = MessagingError;

    /// The version is internal to the server and not sent: it is 0 here.
    fn try_from(schedule: Schedule) -> Result<Self, Self::Error> {
        let task = TaskTemplate {
            task_type: schedule.task_type,
            payload: schedule.payload,
            max_attempts: schedule.max_attempts,
            priority: Priority::new(schedule.priority)?,
            ordering_key: schedule.ordering_key,
            retry_strategy: schedule.retry_strategy,
            deadline: schedule.deadline_in,
            tags: schedule.tags,
        };
        let timing = join(schedule.cron, schedule.time_zone, schedule.every)?;
        Ok(Self {
            definition: NewSchedule { name: schedule.name, timing, task, missed: schedule.missed },
            created_at: schedule.created_at,
            paused_at: schedule.paused_at,
            next_run_at: schedule.next_run_at,
            last_run_at: schedule.last_run_at,
            last_task: schedule.last_task,
            version: 0,
        })
    }
}

/// `GET /v1/schedules`, sorted by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedules {
    /// The schedules.
    pub schedules: Vec<Schedule>,
}

/// `GET /v1/schedules/{name}/times`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ScheduleTimes"))]
pub struct NextTimes {
    /// The next ticks, earliest first.
    pub times: Vec<Timestamp>,
    /// Time zone of the cron expression.
    pub time_zone: Option<String>,
    /// Whether it is paused: the ticks are those it would have if it were resumed now.
    pub paused: bool,
}

/// `PUT /v1/schedules/{name}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "NewSchedule"))]
#[serde(deny_unknown_fields)]
pub struct PutScheduleRequest {
    /// The type of its tasks.
    #[serde(rename = "type")]
    pub task_type: TaskType,
    /// The payload of its tasks, as text or as JSON.
    #[serde(deserialize_with = "body::text")]
    #[cfg_attr(feature = "schema", schemars(with = "body::Text"))]
    pub payload: String,
    /// Cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Time zone of the cron expression; UTC if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Interval, in place of a cron expression.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// What happens to missed ticks; `one` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<MissedFire>,
    /// Maximum number of attempts of each task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = u32::MAX)))]
    pub max_attempts: Option<NonZeroU32>,
    /// Their priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: Option<u8>,
    /// Their ordering key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<128>>"))]
    pub ordering_key: Option<String>,
    /// When a failed attempt is retried.
    #[serde(default, deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// Deadline of a task, counted from its creation.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub deadline_in: Option<Duration>,
    /// Tags to filter by.
    #[serde(default, deserialize_with = "object::values", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<crate::schema::Line<128>>", length(max = 32)))]
    pub tags: Vec<String>,
}

impl From<&NewSchedule> for PutScheduleRequest {
    fn from(schedule: &NewSchedule) -> Self {
        let NewSchedule { timing, task, missed, .. } = schedule.clone();
        let (cron, time_zone, every) = split(timing);
        Self {
            task_type: task.task_type,
            payload: task.payload,
            cron,
            time_zone,
            every,
            missed: Some(missed),
            max_attempts: task.max_attempts,
            priority: (task.priority != Priority::default()).then(|| task.priority.get()),
            ordering_key: task.ordering_key,
            retry_strategy: task.retry_strategy,
            deadline_in: task.deadline,
            tags: task.tags,
        }
    }
}

impl PutScheduleRequest {
    /// The schedule of this name.
    pub fn into_schedule(self, name: impl Into<String>) -> Result<NewSchedule, MessagingError> {
        let task = TaskTemplate {
            task_type: self.task_type,
            payload: self.payload,
            max_attempts: self.max_attempts,
            priority: super::message::priority(self.priority)?,
            ordering_key: self.ordering_key,
            retry_strategy: self.retry_strategy,
            deadline: self.deadline_in,
            tags: self.tags,
        };
        let timing = join(self.cron, self.time_zone, self.every)?;
        Ok(NewSchedule { name: name.into(), timing, task, missed: self.missed.unwrap_or_default() })
    }
}

fn split(timing: ScheduleTiming) -> (Option<String>, Option<String>, Option<Duration>) {
    match timing {
        ScheduleTiming::Cron { expression, time_zone } => (Some(expression), Some(time_zone), None),
        ScheduleTiming::Every(interval) => (None, None, Some(interval)),
    }
}

fn join(
    cron: Option<String>,
    time_zone: Option<String>,
    every: Option<Duration>,
) -> Result<ScheduleTiming, MessagingError> {
    match (cron, time_zone, every) {
        (Some(expression), time_zone, None) => Ok(ScheduleTiming::Cron {
            expression,
            time_zone: time_zone.unwrap_or_else(|| DEFAULT_TIME_ZONE.to_owned()),
        }),
        (None, None, Some(interval)) => Ok(ScheduleTiming::Every(interval)),
        _ => Err(MessagingError::invalid("schedule", "set either cron, with an optional time_zone, or every")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    fn definitions() -> [NewSchedule; 2] {
        let mut task = TaskTemplate::new(TaskType::new("mail").unwrap(), "{}");
        let every = ScheduleTiming::Every(Duration::from_secs(90));
        let plain = NewSchedule { name: "daily".into(), timing: every, task: task.clone(), missed: MissedFire::Skip };
        task.max_attempts = NonZeroU32::new(7);
        task.priority = Priority::HIGHEST;
        task.ordering_key = Some("k".into());
        task.retry_strategy = Some(RetryStrategy::default());
        task.deadline = Some(Duration::from_secs(60));
        task.tags = vec!["a".into()];
        let timing = ScheduleTiming::Cron { expression: "0 3 * * *".into(), time_zone: "Europe/Berlin".into() };
        [plain, NewSchedule { name: "nightly".into(), timing, task, missed: MissedFire::All }]
    }

    #[test]
    fn schedules_round_trip() {
        for definition in definitions() {
            let request = PutScheduleRequest::from(&definition);
            assert_eq!(round_trip(&request).into_schedule(&definition.name).unwrap(), definition);
            for paused_at in [None, Some(Timestamp::from_micros(2))] {
                let schedule = postrider_core::task::Schedule {
                    definition: definition.clone(),
                    created_at: Timestamp::from_micros(1),
                    paused_at,
                    next_run_at: Some(Timestamp::from_micros(3)).filter(|_| paused_at.is_none()),
                    last_run_at: Some(Timestamp::from_micros(4)),
                    last_task: Some(TaskId::generate()),
                    version: 0,
                };
                let list = Schedules { schedules: vec![schedule.clone().into()] };
                let back = round_trip(&list).schedules.remove(0);
                assert_eq!(postrider_core::task::Schedule::try_from(back).unwrap(), schedule);
            }
        }
    }

    #[test]
    fn a_schedule_has_one_kind_of_timing() {
        let read = |json: &str| {
            let request: PutScheduleRequest = serde_json::from_str(json).unwrap();
            request.into_schedule("daily").map(|schedule| schedule.timing)
        };
        let utc = ScheduleTiming::Cron { expression: "* * * * *".into(), time_zone: "UTC".into() };
        assert_eq!(read(r#"{"type":"a","payload":"","cron":"* * * * *"}"#).unwrap(), utc);
        for bad in ["", r#","cron":"* * * * *","every":"5s""#, r#","every":"5s","time_zone":"UTC""#] {
            assert!(read(&format!(r#"{{"type":"a","payload":""{bad}}}"#)).is_err(), "{bad}");
        }
        assert!(is_refused::<PutScheduleRequest>(r#"{"type":"a","payload":"","name":"b"}"#));
        let [plain, _] = definitions();
        let expected = serde_json::json!({"type": "mail", "payload": "{}", "every": "1m30s", "missed": "skip"});
        assert_eq!(json(&PutScheduleRequest::from(&plain)), expected);
    }
}
