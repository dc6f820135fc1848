//! Times at which tasks are made.

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
        /// The IANA time zone that they are in, like `Europe/Berlin`.
        time_zone: String,
    },
    /// Again and again, that long after the last time.
    Every(#[serde(with = "duration_text")] Duration),
}

/// What is done about times that passed while nobody was there to see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedFire {
    /// Nothing: the next time is the next one to come. A time that is seen within 15 seconds is not missed, and makes its
    /// task.
    Skip,
    /// One task is made for all of them.
    #[default]
    One,
    /// A task is made for each.
    All,
}

impl MissedFire {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Skip, Self::One, Self::All];

    /// The policy's name in configurations and texts.
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
                format!("'{}' is none of skip, one, all", name.escape_debug()),
            )
        })
    }
}

/// What every task of a schedule has in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskTemplate {
    /// The tasks' type.
    pub task_type: TaskType,
    /// Their payload. Text, so that a schedule can be read and edited.
    pub payload: String,
    /// How often each is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<NonZeroU32>,
    /// How urgent they are.
    #[serde(default)]
    pub priority: Priority,
    /// The key that they are ordered by: then one runs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// When a failed attempt is followed by the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// How long after it was made a task is too late.
    #[serde(default, with = "duration_text::optional", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// Words to find them by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

impl TaskTemplate {
    /// A template with nothing but a type and a payload.
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

    /// A task of the template, for a schedule.
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

/// A schedule to be made, or to take the place of the one with its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewSchedule {
    /// Its name: 1 to 64 characters, as in the name of a type, but neither `.` nor `..`.
    pub name: String,
    /// When it fires.
    pub timing: ScheduleTiming,
    /// What is made then.
    pub task: TaskTemplate,
    /// What is done about times that passed unseen.
    #[serde(default)]
    pub missed: MissedFire,
}

impl NewSchedule {
    /// Refuses a name that no schedule can have.
    pub fn check_name(name: &str) -> Result<(), MessagingError> {
        let why = match TaskType::new(name) {
            Ok(_) if !is_path_step(name) => return Ok(()),
            Ok(_) => "in a URL it means a place and not a name; choose another",
            Err(_) => "use 1 to 64 letters, digits, '_', '.' and '-'",
        };
        Err(MessagingError::invalid("schedule name", format!("'{}': {why}", name.escape_debug())))
    }

    /// Refuses what cannot be meant, but for the cron expression, which whoever fires schedules can read.
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

/// A schedule as its store knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// What it was made from.
    pub definition: NewSchedule,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when it is paused.
    pub paused_at: Option<Timestamp>,
    /// The time that it fires for next; `None` when there is none.
    pub next_run_at: Option<Timestamp>,
    /// The last time that it fired for.
    pub last_run_at: Option<Timestamp>,
    /// The last task that it made.
    pub last_task: Option<TaskId>,
    /// Rises with every change: whoever changes it names the version that it has seen.
    pub version: i64,
}

/// Keeps schedules. Times are judged by the store's clock.
#[async_trait]
pub trait ScheduleStore: Send + Sync + 'static {
    /// The store's time.
    async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, MessagingError>;

    /// Makes a schedule, or changes the one of its name, which stays paused if it is. It fires next for `next_run_at`.
    async fn put_schedule(
        &self,
        schedule: &NewSchedule,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Schedule, MessagingError>;

    /// Reads one.
    async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, MessagingError>;

    /// Every schedule, by name.
    async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError>;

    /// Removes one; answers whether it was there. Its tasks stay.
    async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, MessagingError>;

    /// Holds a schedule back, or lets it go on with `next_run_at`, if it still has the version that was seen. Answers
    /// whether it had.
    async fn set_schedule_paused(
        &self,
        name: &str,
        version: i64,
        is_paused: bool,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<bool, MessagingError>;

    /// Schedules whose time has come and that are not paused, the longest due first.
    async fn due_schedules(&self, limit: usize, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError>;

    /// Makes the tasks of a schedule's due times and moves it on, in one transaction, if it still has the version that
    /// was seen and is not paused. Answers `None` when it had not: somebody else has fired it. `last_run_at` is the last
    /// of the times that were fired for; `None` when all of them were skipped.
    async fn fire_schedule(
        &self,
        name: &str,
        version: i64,
        tasks: Vec<NewTask>,
        last_run_at: Option<Timestamp>,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Option<Vec<TaskId>>, MessagingError>;

    /// How long until the next schedule is due; `None` when none will be.
    async fn next_schedule_due(&self, deadline: Deadline) -> Result<Option<Duration>, MessagingError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_has_a_name_that_a_path_can_hold() {
        for good in ["daily", "mail.eu-1", ".a", "..."] {
            assert!(NewSchedule::check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", ".", ".."] {
            let refused = NewSchedule::check_name(bad);
            assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "schedule name", .. })), "{bad}");
        }
    }
}
