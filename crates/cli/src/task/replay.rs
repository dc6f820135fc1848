//! `postrider task replay`

use std::ffi::OsString;

use indicatif::ProgressBar;
use postrider::tasks::{ReplayOptions, ReplayReport};
use postrider::{Deadline, MessagingError, TaskId, TaskStore};
use serde::Serialize;

use super::change::unique;
use super::filters::Filters;
use super::options;
use super::session::TaskSession;
use crate::args::Global;
use crate::confirm::{confirm, should_ask};
use crate::failure::{Failure, explained};
use crate::output::note;
use crate::progress;
use crate::text::counted;
use crate::values::{self, Rate};

/// Make dead tasks runnable again, with a fresh set of attempts
///
/// They are due at once, lose their deadline, and go to the end of their ordering key. Options select the tasks that are
/// dead at the start; a task that dies again meanwhile is not replayed twice. Asks for confirmation if no ids are given and
/// stdin is a terminal.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Replay {
    /// Ids of the tasks
    #[arg(value_name = "ID", value_parser = values::task_id, conflicts_with_all = ["all", "types", "tags", "schedule", "reason", "error", "since"])]
    ids: Vec<TaskId>,

    /// Every dead task that matches the other options
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    filters: Filters,

    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Maximum rate, spread evenly: 10 or 10/s per second, 100/m per minute, 5/h per hour [default: unlimited]
    #[arg(long, value_name = "N[/UNIT]", value_parser = values::rate, allow_hyphen_values = true)]
    rate: Option<Rate>,

    /// Maximum number of tasks, the oldest first [default: all]
    #[arg(long, value_name = "N", value_parser = values::count, allow_negative_numbers = true, conflicts_with = "ids")]
    limit: Option<usize>,

    /// Change the payload of the task first; needs exactly one ID; '-' reads the payload from stdin
    #[arg(long, value_name = "PAYLOAD", requires = "ids", conflicts_with = "dry_run")]
    edit: Option<OsString>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

const EXAMPLES: &str = "\
Examples:
  postrider task replay ID --edit '{\"to\": \"anna@example.org\"}'
  postrider task replay --all --reason max_attempts --error 'timed out' --dry-run
  postrider task replay --all --type mail.send --rate 10/s --yes
  postrider --json task list --state DEAD --limit 5 | jq -r .id | xargs postrider task replay";

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    id: TaskId,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

pub(super) async fn run(global: &Global, command: Replay) -> Result<(), Failure> {
    let Replay { ids, all, filters, dry_run, rate, limit, edit, yes } = command;
    let is_bulk = ids.is_empty();
    if is_bulk && !all && filters.are_empty() {
        return Err(Failure::usage("no tasks are selected; pass their ids, a filter like --type TYPE, or --all"));
    }
    if edit.is_some() && ids.len() != 1 {
        return Err(Failure::usage("--edit changes one task; pass exactly one id"));
    }
    let session = global.connect_to_tasks().await?;
    let client = session.client();
    let chosen = if is_bulk {
        let only_list = ReplayOptions { dry_run: true, limit, ..ReplayOptions::default() };
        client.replay_matching(filters.filter(&session).await?, &only_list, |_| {}).await?.replayed
    } else {
        unique(ids)
    };
    if dry_run {
        let result = dry_run_of(&session, &chosen, is_bulk).await;
        return session.close().await.and(result);
    }
    if is_bulk && !chosen.is_empty() && should_ask(yes) {
        confirm(&format!("Replay {}?", counted(chosen.len() as u64, "dead task", "dead tasks")), yes)?;
    }
    if let (Some(payload), [id]) = (edit, &chosen[..]) {
        let payload = options::payload(Some(payload), session.store.max_payload_bytes()).await?;
        client.edit(*id, payload, Deadline::default()).await?;
    }
    let mut printer = Printer::begin(&session, chosen.len());
    let replayed = client.replay_each(&chosen, rate.map(Rate::per_second), |report| printer.print(report)).await;
    let report = match replayed {
        Ok(report) => report,
        Err(error) => return Err(printer.stopped(error)),
    };
    let result = printer.end(&report).await;
    session.close().await.and(result)
}

/// Prints what would be done. Only tasks that are given by id may not be dead.
async fn dry_run_of(session: &TaskSession, chosen: &[TaskId], is_bulk: bool) -> Result<(), Failure> {
    let (mut count, mut skipped) = (0, 0);
    for id in chosen {
        let why = if is_bulk { None } else { why_not(session, *id).await? };
        match why {
            None => {
                count += 1;
                session
                    .out
                    .row(&Row { id: *id, outcome: "would_replay", error: None }, format_args!("{id}  would replay"))?;
            }
            Some((outcome, why)) => {
                skipped += 1;
                note(&why);
                session.out.row(
                    &Row { id: *id, outcome, error: Some(&why) },
                    format_args!("{id}  {}", outcome.replace('_', "-")),
                )?;
            }
        }
    }
    note(counted(count, "dead task would be replayed", "dead tasks would be replayed"));
    if skipped == 0 { Ok(()) } else { Err(Failure::Reported) }
}

/// The outcome and the error of a task that cannot be replayed; `None` if it can.
async fn why_not(session: &TaskSession, id: TaskId) -> Result<Option<(&'static str, String)>, Failure> {
    match session.client().get(id, Deadline::default()).await {
        Ok(task) if task.info.state == postrider::TaskState::Dead => Ok(None),
        Ok(task) => {
            let error = MessagingError::TaskConflict { id, state: task.info.state, operation: "replayed" };
            Ok(Some(("conflict", error.to_string())))
        }
        Err(error @ MessagingError::TaskNotFound { .. }) => Ok(Some(("not_found", error.to_string()))),
        Err(error) => Err(error.into()),
    }
}

/// Prints the replayed tasks.
struct Printer<'a> {
    session: &'a TaskSession,
    bar: ProgressBar,
    replayed: usize,
    /// A failed output does not stop the replay half-way; it is the result at the end.
    printed: Result<(), Failure>,
}

impl<'a> Printer<'a> {
    fn begin(session: &'a TaskSession, count: usize) -> Self {
        let bar = progress::bar("tasks");
        bar.set_length(count as u64);
        Self { session, bar, replayed: 0, printed: Ok(()) }
    }

    fn print(&mut self, report: &ReplayReport) {
        let new = &report.replayed[self.replayed..];
        self.replayed = report.replayed.len();
        self.bar.set_position((report.replayed.len() + report.skipped.len()) as u64);
        if self.printed.is_ok() {
            let rows =
                new.iter().map(|id| (Row { id: *id, outcome: "replayed", error: None }, format!("{id}  replayed")));
            self.printed = self.bar.suspend(|| self.session.out.rows(rows));
        }
    }

    /// Notes what was done before the error.
    fn stopped(self, error: MessagingError) -> Failure {
        self.bar.finish_and_clear();
        if self.replayed > 0 {
            note(format!("{} before this failed:", replayed(self.replayed)));
        }
        Failure::failed(explained(&error))
    }

    /// Prints the skipped tasks and the total; fails if tasks were skipped.
    async fn end(self, report: &ReplayReport) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let mut printed = self.printed;
        for id in &report.skipped {
            // The task may be dead again by now.
            let (outcome, why) = why_not(self.session, *id)
                .await?
                .unwrap_or_else(|| ("conflict", format!("task {id} was not dead at its replay; nothing was changed")));
            note(&why);
            if printed.is_ok() {
                let row = Row { id: *id, outcome, error: Some(&why) };
                printed = self.session.out.row(&row, format_args!("{id}  {}", outcome.replace('_', "-")));
            }
        }
        let done = replayed(report.replayed.len());
        printed.map_err(|failure| failure.after(&done))?;
        note(&done);
        if report.skipped.is_empty() { Ok(()) } else { Err(Failure::Reported) }
    }
}

fn replayed(count: usize) -> String {
    counted(count as u64, "dead task was replayed", "dead tasks were replayed")
}
