//! Schedules, which create tasks.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::names::{TaskId, TaskType};
use super::new_task::{NewTask, When, check_tags};
use crate::clock::Timestamp;
use crate::deadline::Deadline;
use crate::duration_text;
use crate::error::MessagingError;
use crate::message::{Key, MAX_DURATION, Priority, check_duration};
use crate::queue_name::is_path_step;
use crate::retry::RetryStrategy;

/// When a schedule fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleTiming {
    /// At the times of a cron expression.
    Cron {
        /// Five fields, or six with seconds first.
        expression: String,
        /// The IANA time zone of the expression, like `Europe/Berlin`.
        time_zone: String,
    },
    /// At a constant interval after the last time.
    Every(#[serde(with = "duration_text::Text")] Duration),
}

/// What to do about times that passed while no scheduler was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum MissedFire {
    /// Skips them. A time that is noticed within 15 seconds is not missed.
    Skip,
    /// Creates one task for all of them.
    #[default]
    One,
    /// Creates one task for each.
    All,
}

impl MissedFire {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Skip, Self::One, Self::All];

    /// The name of the policy in configurations and texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::One => "one",
            Self::All => "all",
        }
    }
}

impl fmt::Display for MissedFire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MissedFire {
    type Err = MessagingError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            MessagingError::invalid(
                "missed-fire policy",
                format!("'{}' is not a policy; use skip, one or all", name.escape_debug()),
            )
        })
    }
}

/// The template of the tasks of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskTemplate {
    /// The task type.
    pub task_type: TaskType,
    /// The payload. Text, so that a schedule can be read and edited.
    pub payload: String,
    /// Upper bound of the attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<NonZeroU32>,
    /// The priority.
    #[serde(default)]
    pub priority: Priority,
    /// The ordering key: with it, one task runs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// The retry strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// The time from the creation of a task to its deadline.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// The tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

impl TaskTemplate {
    /// A template with a type and a payload only.
    pub fn new(task_type: TaskType, payload: impl Into<String>) -> Self {
        Self {
            task_type,
            payload: payload.into(),
            max_attempts: None,
            priority: Priority::default(),
            ordering_key: None,
            retry_strategy: None,
            deadline: None,
            tags: Vec::new(),
        }
    }

    /// Creates a task from the template, for a schedule.
    pub fn task(&self, schedule: &str) -> Result<NewTask, MessagingError> {
        let mut task = NewTask::of(self.task_type.clone(), self.payload.clone());
        task.max_attempts = self.max_attempts;
        task.priority = self.priority;
        task.ordering_key = self.ordering_key.as_deref().map(|key| Key::new("ordering key", key)).transpose()?;
        task.retry_strategy.clone_from(&self.retry_strategy);
        task.deadline = self.deadline.map(When::In);
        task.tags.clone_from(&self.tags);
        task.schedule = Some(schedule.to_owned());
        Ok(task)
    }
}

/// A schedule to be created, or to replace the one with its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewSchedule {
    /// The name: 1 to 64 characters, as in the name of a type, but neither `.` nor `..`.
    pub name: String,
    /// When it fires.
    pub timing: ScheduleTiming,
    /// The template of its tasks.
    pub task: TaskTemplate,
    /// What to do about missed times.
    #[serde(default)]
    pub missed: MissedFire,
}

impl NewSchedule {
    /// Checks the name of a schedule.
    pub fn check_name(name: &str) -> Result<(), MessagingError> {
        let why = match TaskType::new(name) {
            Ok(_) if !is_path_step(name) => return Ok(()),
            Ok(_) => "the name has another meaning in URLs; choose another",
            Err(_) => "use 1 to 64 letters, digits, '_', '.' and '-'",
        };
        Err(MessagingError::invalid("schedule name", format!("'{}': {why}", name.escape_debug())))
    }

    /// Checks the schedule, except the cron expression, which the scheduler parses.
    pub fn check(&self, max_payload_bytes: usize) -> Result<(), MessagingError> {
        Self::check_name(&self.name)?;
        if let ScheduleTiming::Every(interval) = &self.timing {
            if *interval < Duration::from_secs(1) {
                return Err(MessagingError::invalid("interval", "it is shorter than a second; use 1s or more"));
            }
            check_duration("interval", *interval, MAX_DURATION)?;
        }
        check_tags(&self.task.tags)?;
        self.task.task(&self.name)?.check(max_payload_bytes)
    }
}

/// A schedule, as its store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The schedule as it was created.
    pub definition: NewSchedule,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was paused, if it is.
    pub paused_at: Option<Timestamp>,
    /// The next time to fire; `None` if there is none.
    pub next_run_at: Option<Timestamp>,
    /// The last time for which it fired.
    pub last_run_at: Option<Timestamp>,
    /// The last task that it created.
    pub last_task: Option<TaskId>,
    /// The version. It rises with every change, and every change names the version that it replaces.
    pub version: i64,
}

/// A store of schedules. Times are by the store's clock.
#[async_trait]
pub trait ScheduleStore: Send + Sync + 'static {
    /// The current time of the store.
    async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, MessagingError>;

    /// Creates or replaces a schedule. A replaced one stays paused if it was. It fires next at `next_run_at`.
    async fn put_schedule(
        &self,
        schedule: &NewSchedule,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Schedule, MessagingError>;

    /// Reads a schedule.
    async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, MessagingError>;

    /// All schedules, by name.
    async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError>;

    /// Removes a schedule; returns whether it existed. Its tasks stay.
    async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, MessagingError>;

    /// Pauses a schedule, or resumes it with `next_run_at`, if it still has this version. Returns whether it had.
    async fn set_schedule_paused(
        &self,
        name: &str,
        version: i64,
        is_paused: bool,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<bool, MessagingError>;

    /// Due schedules that are not paused, the longest due first.
    async fn due_schedules(&self, limit: usize, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError>;

    /// Creates the tasks of the due times of a schedule and sets its next time, in one transaction, if it still has
    /// this version and is not paused. Otherwise returns `None`: another scheduler has fired it. `last_run_at` is the
    /// last of the fired times; `None` if all of them were skipped.
    async fn fire_schedule(
        &self,
        name: &str,
        version: i64,
        tasks: Vec<NewTask>,
        last_run_at: Option<Timestamp>,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Option<Vec<TaskId>>, MessagingError>;

    /// The time until the next schedule is due; `None` if none will be.
    async fn next_schedule_due(&self, deadline: Deadline) -> Result<Option<Duration>, MessagingError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_names_are_valid_in_paths() {
        for good in ["daily", "mail.eu-1", ".a", "..."] {
            assert!(NewSchedule::check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", ".", ".."] {
            let refused = NewSchedule::check_name(bad);
            assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "schedule name", .. })), "{bad}");
        }
    }
}
