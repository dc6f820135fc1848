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
use crate::task::label::{self, Label};
use crate::values;

/// Make a schedule, or change the one of this name
///
/// What is not said is not kept of a schedule that is changed, but for its being paused.
#[derive(Debug, clap::Args)]
#[command(after_help = MORE, group = clap::ArgGroup::new("when").required(true).args(["cron", "every"]))]
pub(super) struct Create {
    /// Its name: 1 to 64 letters, digits, '_', '.' and '-'
    name: String,

    /// What its tasks' handler is given, as text; without it, or with '-', what stdin holds
    payload: Option<OsString>,

    /// The type of its tasks
    #[arg(long = "type", value_name = "TYPE", value_parser = values::task_type)]
    task_type: TaskType,

    /// At the times of a cron expression: minute, hour, day, month and weekday, or six fields with seconds first
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,

    /// The time zone of the cron expression, by its name in the IANA database, like Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC", conflicts_with = "every")]
    time_zone: String,

    /// Again and again after this long, like 30s, 5m or 1h30m; a second at least
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    every: Option<Duration>,

    /// What is done about times that passed while no keeper ran: skip makes no task for what is seen more than 15 s late, one
    /// makes one for all of them, all makes one for each
    #[arg(long, value_name = "POLICY", value_parser = values::missed, default_value = "one")]
    missed: MissedFire,

    #[command(flatten)]
    label: Label,
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
    label::check_payload(command.payload.as_ref())?;
    let Create { name, payload, task_type, cron, time_zone, every, missed, label } = command;
    let timing = match (cron, every) {
        (Some(expression), _) => ScheduleTiming::Cron { expression, time_zone },
        (None, Some(interval)) => ScheduleTiming::Every(interval),
        (None, None) => return Err(Failure::usage("say when: --cron EXPRESSION or --every DURATION")),
    };
    let mut schedule = NewSchedule { name, timing, task: label.template(task_type, String::new()), missed };
    // Before anything is made.
    schedule.check(usize::MAX)?;
    let session = global.connect_to_tasks().await?;
    let payload = label::payload(payload, session.store.max_payload_bytes()).await?;
    schedule.task.payload = String::from_utf8(payload.to_vec()).map_err(|_| {
        Failure::usage("the payload of a schedule is text, so that it can be read and edited, and this is no UTF-8")
    })?;
    let is_new = session.store.get_schedule(&schedule.name, Deadline::default()).await?.is_none();
    let kept = session.client().put_schedule(&schedule, Deadline::default()).await?;
    session.out.row(&Row { record: Record::of(&kept), is_new }, record::in_a_line(&kept))?;
    if !is_new {
        note(format_args!("schedule '{}' was there and is changed", schedule.name));
    }
    session.close().await
}
