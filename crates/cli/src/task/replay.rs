//! `postrider task replay`

use std::ffi::OsString;

use indicatif::ProgressBar;
use postrider::tasks::{ReplayOptions, ReplayReport};
use postrider::{Deadline, MessagingError, TaskId, TaskStore};
use serde::Serialize;

use super::change::single;
use super::filters::Filters;
use super::label;
use super::session::TaskSession;
use crate::args::Global;
use crate::confirm::{asks, confirm};
use crate::failure::{Failure, explained};
use crate::output::note;
use crate::progress;
use crate::text::counted;
use crate::values::{self, Rate};

/// Bring dead tasks back, with all their attempts before them
///
/// They are due at once, without the deadline that they may have missed, and join the end of their ordering key. Of those
/// that are chosen by what they have in common, the ones are meant that are dead when it begins: one that dies again
/// meanwhile is not brought back a second time. Asks before that when stdin is a terminal.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Replay {
    /// The tasks
    #[arg(value_name = "ID", value_parser = values::task_id, conflicts_with_all = ["all", "types", "tags", "schedule", "reason", "error", "since"])]
    ids: Vec<TaskId>,

    /// Every dead task, or every one that is left by what else is said
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    filters: Filters,

    /// Only tell what would be done
    #[arg(long)]
    dry_run: bool,

    /// At most so many in a time, spread over it: 10 or 10/s a second, 100/m a minute, 5/h an hour
    #[arg(long, value_name = "N[/UNIT]", value_parser = values::rate, allow_hyphen_values = true)]
    rate: Option<Rate>,

    /// At most so many in all, the oldest first
    #[arg(long, value_name = "N", value_parser = values::count, allow_negative_numbers = true, conflicts_with = "ids")]
    limit: Option<usize>,

    /// Give the task, of which there is exactly one, this payload first; '-' takes what stdin holds
    #[arg(long, value_name = "PAYLOAD", requires = "ids", conflicts_with = "dry_run")]
    edit: Option<OsString>,

    /// Do not ask
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
        return Err(Failure::usage(
            "no tasks are chosen; name them by their ids, or say --all, or what they have in common, like --type TYPE",
        ));
    }
    if edit.is_some() && ids.len() != 1 {
        return Err(Failure::usage("--edit changes one task; name exactly one"));
    }
    let session = global.connect_to_tasks().await?;
    let client = session.client();
    let chosen = if is_bulk {
        let look = ReplayOptions { dry_run: true, limit, ..ReplayOptions::default() };
        client.replay_matching(filters.filter(&session).await?, &look, |_| {}).await?.replayed
    } else {
        single(ids)
    };
    if dry_run {
        let result = rehearse(&session, &chosen, is_bulk).await;
        return session.close().await.and(result);
    }
    if is_bulk && !chosen.is_empty() && asks(yes) {
        confirm(&format!("Replay {}?", counted(chosen.len() as u64, "dead task", "dead tasks")), yes)?;
    }
    if let (Some(payload), [id]) = (edit, &chosen[..]) {
        let payload = label::payload(Some(payload), session.store.max_payload_bytes()).await?;
        client.edit(*id, payload, Deadline::default()).await?;
    }
    let mut told = Told::begin(&session, chosen.len());
    let replayed = client.replay_each(&chosen, rate.map(Rate::per_second), |report| told.tell(report)).await;
    let report = match replayed {
        Ok(report) => report,
        Err(error) => return Err(told.stopped(error)),
    };
    let result = told.end(&report).await;
    session.close().await.and(result)
}

/// Tells what would be done. Tasks that were named may not be dead; those that were found are.
async fn rehearse(session: &TaskSession, chosen: &[TaskId], is_bulk: bool) -> Result<(), Failure> {
    let (mut count, mut stays) = (0, 0);
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
                stays += 1;
                note(&why);
                session.out.row(
                    &Row { id: *id, outcome, error: Some(&why) },
                    format_args!("{id}  {}", outcome.replace('_', "-")),
                )?;
            }
        }
    }
    note(counted(count, "dead task would be replayed", "dead tasks would be replayed"));
    if stays == 0 { Ok(()) } else { Err(Failure::Told) }
}

/// Why a task cannot be replayed, in a word and in a sentence; `None` when it can.
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

/// What has been told so far.
struct Told<'a> {
    session: &'a TaskSession,
    bar: ProgressBar,
    replayed: usize,
    /// Output that nobody takes does not end a replay half-way.
    printed: Result<(), Failure>,
}

impl<'a> Told<'a> {
    fn begin(session: &'a TaskSession, count: usize) -> Self {
        let bar = progress::bar("tasks");
        bar.set_length(count as u64);
        Self { session, bar, replayed: 0, printed: Ok(()) }
    }

    fn tell(&mut self, report: &ReplayReport) {
        let new = &report.replayed[self.replayed..];
        self.replayed = report.replayed.len();
        self.bar.set_position((report.replayed.len() + report.skipped.len()) as u64);
        if self.printed.is_ok() {
            let rows =
                new.iter().map(|id| (Row { id: *id, outcome: "replayed", error: None }, format!("{id}  replayed")));
            self.printed = self.bar.suspend(|| self.session.out.rows(rows));
        }
    }

    /// What is said when it cannot go on.
    fn stopped(self, error: MessagingError) -> Failure {
        self.bar.finish_and_clear();
        if self.replayed > 0 {
            note(format!("{} before this failed:", replayed(self.replayed)));
        }
        Failure::failed(explained(&error))
    }

    /// What was not done, the last line, and whether all was done.
    async fn end(self, report: &ReplayReport) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let mut printed = self.printed;
        for id in &report.skipped {
            // It may have died again since.
            let (outcome, why) = why_not(self.session, *id).await?.unwrap_or_else(|| {
                ("conflict", format!("task {id} was not dead when it was its turn; nothing was changed"))
            });
            note(&why);
            if printed.is_ok() {
                let row = Row { id: *id, outcome, error: Some(&why) };
                printed = self.session.out.row(&row, format_args!("{id}  {}", outcome.replace('_', "-")));
            }
        }
        let done = replayed(report.replayed.len());
        printed.map_err(|failure| failure.after(&done))?;
        note(&done);
        if report.skipped.is_empty() { Ok(()) } else { Err(Failure::Told) }
    }
}

fn replayed(count: usize) -> String {
    counted(count as u64, "dead task was replayed", "dead tasks were replayed")
}
