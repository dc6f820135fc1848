//! `postrider schedule create`

use std::ffi::OsString;
use std::time::Duration;

use postrider::task::{MissedFire, NewSchedule, ScheduleStore, ScheduleTiming};
use postrider::{Deadline, TaskStore, TaskType};
use serde::Serialize;

use super::record::{self, Record};
use crate::args::Global;
use crate::failure::Failure;
use crate::output::note;
use crate::task::options::{self, TaskOptions};
use crate::values;

/// Create a schedule, or replace the one with this name
///
/// Options that are left out return to their defaults; a paused schedule stays paused.
#[derive(Debug, clap::Args)]
#[command(after_help = MORE, group = clap::ArgGroup::new("when").required(true).args(["cron", "every"]))]
pub(super) struct Create {
    /// Name of the schedule: 1 to 64 letters, digits, '_', '.' and '-'
    name: String,

    /// Payload of its tasks, as text [default: read from stdin, as with '-']
    payload: Option<OsString>,

    /// Type of its tasks
    #[arg(long = "type", value_name = "TYPE", value_parser = values::task_type)]
    task_type: TaskType,

    /// Create tasks at the times of a cron expression: minute, hour, day, month and weekday, or six fields with seconds
    /// first
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,

    /// IANA time zone of the cron expression, like Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC", conflicts_with = "every")]
    time_zone: String,

    /// Create a task at this interval, like 30s, 5m or 1h30m; at least 1s
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    every: Option<Duration>,

    /// Tasks for times that passed while no keeper ran: skip creates none for a time more than 15 s ago, one creates one
    /// for all of them, all creates one for each
    #[arg(long, value_name = "POLICY", value_parser = values::missed, default_value = "one")]
    missed: MissedFire,

    #[command(flatten)]
    options: TaskOptions,
}

const MORE: &str = "\
Examples:
  postrider schedule create nightly --type report --cron '30 2 * * *' --time-zone Europe/Berlin '{}'
  postrider schedule create heartbeat --type ping --every 30s --missed skip --deadline-in 30s ''
  postrider schedule create sync --type crm.sync --cron '*/15 * * * *' --key crm < filter.json";

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    record: Record<'a>,
    is_new: bool,
}

pub(super) async fn run(global: &Global, command: Create) -> Result<(), Failure> {
    options::check_payload(command.payload.as_ref())?;
    let Create { name, payload, task_type, cron, time_zone, every, missed, options } = command;
    let timing = match (cron, every) {
        (Some(expression), _) => ScheduleTiming::Cron { expression, time_zone },
        (None, Some(interval)) => ScheduleTiming::Every(interval),
        (None, None) => return Err(Failure::usage("no time is given; pass --cron EXPRESSION or --every DURATION")),
    };
    let mut schedule = NewSchedule { name, timing, task: options.template(task_type, String::new()), missed };
    // Checked before anything is created.
    schedule.check(usize::MAX)?;
    let session = global.connect_to_tasks().await?;
    let payload = options::payload(payload, session.store.max_payload_bytes()).await?;
    schedule.task.payload = String::from_utf8(payload.to_vec()).map_err(|_| {
        Failure::usage("the payload is not UTF-8; the payload of a schedule must be text, so that it can be edited")
    })?;
    let is_new = session.store.get_schedule(&schedule.name, Deadline::default()).await?.is_none();
    let stored = session.client().put_schedule(&schedule, Deadline::default()).await?;
    session.out.row(&Row { record: Record::of(&stored), is_new }, record::line(&stored))?;
    if !is_new {
        note(format_args!("schedule '{}' existed and was replaced", schedule.name));
    }
    session.close().await
}
