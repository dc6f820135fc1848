//! `postrider schedule`

mod create;
mod record;

use clap::Subcommand;
use postrider::task::{Schedule as StoredSchedule, TaskFilter, TaskQuery};
use postrider::{Deadline, MessagingError, Timestamp};
use serde::Serialize;

use crate::args::Global;
use crate::confirm::confirm;
use crate::failure::Failure;
use crate::output::note;
use crate::table::{Column, Table};
use crate::task::session::TaskSession;
use crate::task::{Row as TaskRow, session::Client};
use crate::text;
use record::{Record, RecordText, WithHistory};

/// Create tasks at regular times
///
/// A schedule creates one task at each of its times, while at least one 'postrider task worker' or 'postrider task keeper'
/// runs. Several of them still create one task.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Schedule {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  postrider schedule create nightly --type report.build --cron '30 2 * * *' '{}'
  postrider schedule create heartbeat --type ping --every 30s ''
  postrider schedule show nightly
  postrider task list --schedule nightly";

#[derive(Debug, Subcommand)]
enum Command {
    Create(Box<create::Create>),
    List(List),
    #[command(alias = "get")]
    Show(Show),
    Pause(Pause),
    Resume(Resume),
    Trigger(Trigger),
    Delete(Delete),
}

/// Number of tasks shown with a schedule.
const RUNS: usize = 10;

/// List all schedules by name, each with its next five times
#[derive(Debug, clap::Args)]
struct List {}

/// Show a schedule with its next five times and its last ten tasks, newest first
///
/// 'postrider task list --schedule NAME' lists all of its tasks.
#[derive(Debug, clap::Args)]
struct Show {
    /// Name of the schedule
    name: String,
}

/// Pause a schedule; times during the pause are skipped for good
#[derive(Debug, clap::Args)]
struct Pause {
    /// Name of the schedule
    name: String,
}

/// Resume a paused schedule at its next time from now
#[derive(Debug, clap::Args)]
struct Resume {
    /// Name of the schedule
    name: String,
}

/// Create a task of a schedule now, even if it is paused, and print the task's id
///
/// The times of the schedule do not change.
#[derive(Debug, clap::Args)]
struct Trigger {
    /// Name of the schedule
    name: String,
}

/// Delete a schedule; its tasks stay
///
/// Asks for confirmation if stdin is a terminal.
#[derive(Debug, clap::Args)]
struct Delete {
    /// Name of the schedule
    name: String,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(global: &Global, command: Schedule) -> Result<(), Failure> {
    match command.command {
        Command::Create(command) => create::run(global, *command).await,
        Command::List(List {}) => list(global).await,
        Command::Show(Show { name }) => show(global, &name).await,
        Command::Pause(Pause { name }) => set_paused(global, &name, true).await,
        Command::Resume(Resume { name }) => set_paused(global, &name, false).await,
        Command::Trigger(Trigger { name }) => trigger(global, &name).await,
        Command::Delete(command) => delete(global, command).await,
    }
}

/// Maps a missing schedule to a failure, not to wrong usage: it may have existed before.
fn failure(error: MessagingError) -> Failure {
    match error {
        MessagingError::InvalidInput { what: "schedule", why } => Failure::failed(why),
        error => error.into(),
    }
}

async fn get(client: &Client, name: &str) -> Result<StoredSchedule, Failure> {
    client.get_schedule(name, Deadline::default()).await.map_err(failure)
}

/// Prints a schedule on one line.
fn print(session: &TaskSession, schedule: &StoredSchedule) -> Result<(), Failure> {
    session.out.row(&Record::of(schedule), record::line(schedule))
}

async fn list(global: &Global) -> Result<(), Failure> {
    let session = global.connect_to_tasks().await?;
    let schedules = session.client().list_schedules(Deadline::default()).await?;
    if session.out.is_json() {
        session.out.rows(schedules.iter().map(|schedule| (Record::of(schedule), "")))?;
    } else {
        session.out.text(&table(&schedules))?;
    }
    session.close().await
}

fn table(schedules: &[StoredSchedule]) -> String {
    let mut table = Table::new([
        Column::Text("NAME"),
        Column::Text("TYPE"),
        Column::Text("WHEN"),
        Column::Text("NEXT"),
        Column::Text("LAST"),
        Column::Text("NOTE"),
    ]);
    let time = |time: Option<Timestamp>| time.map_or_else(|| "-".into(), |time| time.to_string());
    for schedule in schedules {
        let is_paused = schedule.paused_at.is_some();
        let mut next = record::times(schedule).into_iter();
        table.push([
            schedule.definition.name.clone(),
            schedule.definition.task.task_type.to_string(),
            text::shortened(&record::timing(&schedule.definition.timing), 40),
            next.next().unwrap_or_else(|| "-".into()),
            time(schedule.last_run_at),
            if is_paused { "paused".into() } else { String::new() },
        ]);
        // Each further time has a row of its own.
        for time in next {
            table.push([String::new(), String::new(), String::new(), time, String::new(), String::new()]);
        }
    }
    table.render()
}

async fn show(global: &Global, name: &str) -> Result<(), Failure> {
    let session = global.connect_to_tasks().await?;
    let client = session.client();
    let schedule = get(&client, name).await?;
    let filter = TaskFilter { schedule: Some(schedule.definition.name.clone()), ..TaskFilter::default() };
    let query = TaskQuery { filter, limit: RUNS, after: None };
    let runs = client.list(&query, Deadline::default()).await?.tasks;
    session.out.row(&WithHistory::of(&schedule, &runs), RecordText { schedule: &schedule, runs: &runs })?;
    session.close().await
}

async fn set_paused(global: &Global, name: &str, is_paused: bool) -> Result<(), Failure> {
    let session = global.connect_to_tasks().await?;
    let client = session.client();
    if get(&client, name).await?.paused_at.is_some() == is_paused {
        note(format_args!("schedule '{name}' {}", if is_paused { "is paused already" } else { "is not paused" }));
    }
    let deadline = Deadline::default();
    let schedule = match is_paused {
        true => client.pause_schedule(name, deadline).await,
        false => client.resume_schedule(name, deadline).await,
    };
    print(&session, &schedule.map_err(failure)?)?;
    session.close().await
}

async fn trigger(global: &Global, name: &str) -> Result<(), Failure> {
    let session = global.connect_to_tasks().await?;
    let schedule = get(&session.client(), name).await?;
    let task = schedule.definition.task.task(name)?;
    let task_type = task.task_type.clone();
    let created = session.creator().await?.create_one(task).await?;
    let printed = session.out.row(&TaskRow::of(created, &task_type), created.id);
    let closed = session.close().await;
    printed.map_err(|failure| failure.after(format_args!("task {} was created", created.id)))?;
    closed
}

/// One line of `--json` of `delete`.
#[derive(Serialize)]
struct Deleted<'a> {
    name: &'a str,
    outcome: &'static str,
}

async fn delete(global: &Global, command: Delete) -> Result<(), Failure> {
    let Delete { name, yes } = command;
    let session = global.connect_to_tasks().await?;
    let client = session.client();
    // A missing schedule fails before the confirmation.
    get(&client, &name).await?;
    confirm(&format!("Delete schedule '{name}'? Its tasks stay."), yes)?;
    client.delete_schedule(&name, Deadline::default()).await.map_err(failure)?;
    session.out.row(&Deleted { name: &name, outcome: "deleted" }, format_args!("{name} was deleted"))?;
    session.close().await
}
