//! A schedule with its full record, as JSON and as text.

use std::fmt;
use std::num::NonZeroU32;

use postrider::task::{MissedFire, Schedule, ScheduleTiming, TaskInfo};
use postrider::tasks::{NextRun, in_words, next_runs};
use postrider::{Bytes, RetryStrategy, TaskId, TaskState, TaskType, Timestamp, duration_text};
use serde::Serialize;

use crate::text::{self, one_line};

/// Number of next times shown.
pub(super) const SHOWN: usize = 5;

/// A future time.
#[derive(Debug, Serialize)]
struct Run {
    at: Timestamp,
    local: String,
}

/// One line of `--json` of `show`.
#[derive(Debug, Serialize)]
pub(super) struct WithHistory<'a> {
    #[serde(flatten)]
    pub(super) record: Record<'a>,
    runs: Vec<PastRun<'a>>,
}

/// A task that the schedule created.
#[derive(Debug, Serialize)]
struct PastRun<'a> {
    task: TaskId,
    scheduled_for: Timestamp,
    state: TaskState,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
}

impl<'a> WithHistory<'a> {
    pub(super) fn of(schedule: &'a Schedule, runs: &'a [TaskInfo]) -> Self {
        let run = |task: &'a TaskInfo| PastRun {
            task: task.id,
            scheduled_for: task.scheduled_for,
            state: task.state,
            last_error: task.last_error.as_deref(),
        };
        Self { record: Record::of(schedule), runs: runs.iter().map(run).collect() }
    }
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    task_type: &'a TaskType,
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<String>,
    missed: MissedFire,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_at: Option<Timestamp>,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_run_at: Option<Timestamp>,
    next_runs: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_task: Option<TaskId>,
    payload: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<NonZeroU32>,
    priority: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_strategy: Option<&'a RetryStrategy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_in: Option<String>,
    tags: &'a [String],
}

impl<'a> Record<'a> {
    pub(super) fn of(schedule: &'a Schedule) -> Self {
        let definition = &schedule.definition;
        let task = &definition.task;
        let (cron, time_zone, every) = match &definition.timing {
            ScheduleTiming::Cron { expression, time_zone } => (Some(&**expression), Some(&**time_zone), None),
            ScheduleTiming::Every(interval) => (None, None, Some(duration_text::show(*interval))),
        };
        Self {
            name: &definition.name,
            task_type: &task.task_type,
            cron,
            time_zone,
            every,
            missed: definition.missed,
            paused: schedule.paused_at.is_some(),
            paused_at: schedule.paused_at,
            created_at: schedule.created_at,
            next_run_at: next_run_at(schedule),
            next_runs: next_runs(schedule, SHOWN)
                .into_iter()
                .map(|NextRun { at, local, .. }| Run { at, local })
                .collect(),
            last_run_at: schedule.last_run_at,
            last_task: schedule.last_task,
            payload: &task.payload,
            max_attempts: task.max_attempts,
            priority: task.priority.get(),
            ordering_key: task.ordering_key.as_deref(),
            retry_strategy: task.retry_strategy.as_ref(),
            deadline_in: task.deadline.map(duration_text::show),
            tags: &task.tags,
        }
    }
}

/// The next time; `None` while paused.
fn next_run_at(schedule: &Schedule) -> Option<Timestamp> {
    schedule.next_run_at.filter(|_| schedule.paused_at.is_none())
}

/// The timing as text.
pub(super) fn timing(timing: &ScheduleTiming) -> String {
    match timing {
        ScheduleTiming::Cron { expression, time_zone } => format!("{} {}", one_line(expression), one_line(time_zone)),
        ScheduleTiming::Every(interval) => format!("every {}", duration_text::show(*interval)),
    }
}

/// The name and the next time.
pub(super) fn line(schedule: &Schedule) -> String {
    let name = &schedule.definition.name;
    match (schedule.paused_at, schedule.next_run_at) {
        (Some(_), _) => format!("{name}  paused"),
        (None, Some(next)) => format!("{name}  next run at {next}"),
        (None, None) => format!("{name}  never runs again"),
    }
}

/// The next times as text, each with the time until it.
pub(super) fn times(schedule: &Schedule) -> Vec<String> {
    let now = Timestamp::now();
    let shown = |run: NextRun| format!("{}, in {}", run.local, text::until(run.at.since(now)));
    next_runs(schedule, SHOWN).into_iter().map(shown).collect()
}

/// The record as text: one line per field, the last tasks, newest first, then the payload.
pub(super) struct RecordText<'a> {
    pub(super) schedule: &'a Schedule,
    pub(super) runs: &'a [TaskInfo],
}

impl fmt::Display for RecordText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedule, runs } = self;
        let (definition, task) = (&schedule.definition, &schedule.definition.task);
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let strategy = task.retry_strategy.as_ref().and_then(|strategy| serde_json::to_string(strategy).ok());
        let fields = [
            ("name", Some(definition.name.clone())),
            ("type", Some(task.task_type.to_string())),
            ("when", Some(timing(&definition.timing))),
            ("missed times", Some(definition.missed.to_string())),
            ("paused since", time(schedule.paused_at)),
            ("in words", in_words(&definition.timing)),
            ("next runs", Some(times(schedule).join("\n")).filter(|times| !times.is_empty())),
            ("last run", time(schedule.last_run_at)),
            ("last task", schedule.last_task.map(|task| task.to_string())),
            ("created", time(Some(schedule.created_at))),
            ("max attempts", task.max_attempts.map(|max| max.to_string())),
            ("priority", Some(task.priority.get().to_string())),
            ("ordering key", task.ordering_key.as_deref().map(one_line)),
            ("retry", strategy),
            ("deadline in", task.deadline.map(duration_text::show)),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                f.write_str(&text::field(name, &value))?;
            }
        }
        for tag in &task.tags {
            writeln!(f, "{:<16} {}", "tag", one_line(tag))?;
        }
        for task in *runs {
            let error = task.last_error.as_deref().map(|error| format!(": {}", text::shortened(error, 60)));
            let run = format!("{}  {}  {}{}", task.scheduled_for, task.id, task.state, error.unwrap_or_default());
            f.write_str(&text::field("run", &run))?;
        }
        write!(f, "\npayload\n{}", text::body(&Bytes::copy_from_slice(task.payload.as_bytes())))
    }
}
