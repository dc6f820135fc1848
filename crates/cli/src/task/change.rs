//! `postrider task cancel`, `retry`, `edit`

use std::ffi::OsString;
use std::path::PathBuf;

use postrider::task::{TaskFilter, TaskStore};
use postrider::{Bytes, Deadline, MessagingError, RowResults, TaskId, TaskState};
use serde::Serialize;

use super::filters::{Filters, Pages};
use super::options;
use super::session::TaskSession;
use crate::args::Global;
use crate::confirm::{confirm, should_ask};
use crate::failure::{Failure, explained};
use crate::input::too_long_for_a_task;
use crate::output::note;
use crate::text::counted;
use crate::values;

/// Tasks changed in one transaction.
const CHUNK: usize = 500;

/// Cancel tasks in any unfinished state
///
/// The command of a running task is stopped within a second.
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(super) struct Cancel {
    #[command(flatten)]
    choice: Choice,
}

/// Run tasks now: waiting tasks become due, dead tasks are replayed
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(super) struct Retry {
    #[command(flatten)]
    choice: Choice,
}

#[derive(Debug, clap::Args)]
struct Choice {
    /// Ids of the tasks
    #[arg(value_name = "ID", value_parser = values::task_id, conflicts_with_all = ["all", "types", "tags", "schedule", "reason", "error", "since"])]
    ids: Vec<TaskId>,

    /// Every task whose state allows it and that matches the other options
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    filters: Filters,

    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

const OUTCOMES: &str = "\
Prints the outcome for each task: that of the command, or 'conflict' if the task's state does not allow it, 'not-found', \
'unknown' if the answer was lost, 'failed' for any other error. Every task is tried. Exits with 1 if one fails.

Asks for confirmation if no ids are given and stdin is a terminal.";

/// Change the payload of a dead task before it is replayed
///
/// Prints the number of the new revision. Earlier payloads are kept.
#[derive(Debug, clap::Args)]
pub(super) struct Edit {
    /// The task id
    #[arg(value_parser = values::task_id)]
    id: TaskId,

    /// The new payload [default: read from stdin, as with '-']
    #[arg(conflicts_with = "file")]
    payload: Option<OsString>,

    /// Read the new payload from this file
    #[arg(long)]
    file: Option<PathBuf>,
}

/// One line of `--json` of `cancel` and `retry`.
#[derive(Serialize)]
struct Row<'a> {
    id: TaskId,
    outcome: &'static str,
    /// The state before.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<TaskState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// The result for a task: the outcome, and the state before if known.
type Outcome = Result<(&'static str, Option<TaskState>), MessagingError>;

/// An operation on tasks.
struct Change {
    /// The verb of the confirmation.
    verb: &'static str,
    /// The outcome of a dry run.
    would: &'static str,
    operation: &'static str,
    /// The states that allow it.
    states: &'static [TaskState],
}

const CANCEL: Change = Change {
    verb: "Cancel",
    would: "would_cancel",
    operation: "canceled",
    states: &[TaskState::Pending, TaskState::Enqueued, TaskState::Processing],
};

const RETRY: Change = Change {
    verb: "Run",
    would: "would_retry",
    operation: "retried",
    states: &[TaskState::Pending, TaskState::Enqueued, TaskState::Dead],
};

impl Choice {
    /// The selected tasks, oldest first; `None` after a dry run.
    async fn select(self, session: &TaskSession, change: &Change) -> Result<Option<Vec<TaskId>>, Failure> {
        let Self { ids, all: _, filters, dry_run, yes } = self;
        let is_bulk = ids.is_empty();
        let chosen = match is_bulk {
            false => unique(ids),
            true => {
                let filter = TaskFilter { states: change.states.to_vec(), ..filters.filter(session).await? };
                let (mut pages, mut found) = (Pages::of(session, filter), Vec::new());
                while let Some(tasks) = pages.next(usize::MAX).await? {
                    found.extend(tasks.iter().map(|task| task.id));
                }
                found.reverse();
                found
            }
        };
        if dry_run {
            return dry_run_of(session, &chosen, is_bulk, change).await.map(|()| None);
        }
        if is_bulk && !chosen.is_empty() && should_ask(yes) {
            confirm(&format!("{} {}?", change.verb, counted(chosen.len() as u64, "task", "tasks")), yes)?;
        }
        Ok(Some(chosen))
    }

    /// Fails without ids, filters and `--all`, which does not mean all.
    fn check(&self) -> Result<(), Failure> {
        match self.ids.is_empty() && !self.all && self.filters.are_empty() {
            true => Err(Failure::usage("no tasks are selected; pass their ids, a filter like --type TYPE, or --all")),
            false => Ok(()),
        }
    }
}

/// Prints what would be done. Only tasks that are given by id may be in another state.
async fn dry_run_of(session: &TaskSession, ids: &[TaskId], is_bulk: bool, change: &Change) -> Result<(), Failure> {
    let mut report = Report::default();
    for id in ids {
        let state = match is_bulk {
            true => Ok(None),
            false => session.client().get(*id, Deadline::default()).await.map(|task| Some(task.info.state)),
        };
        let outcome = match state {
            Ok(Some(state)) if !change.states.contains(&state) => {
                Err(MessagingError::TaskConflict { id: *id, state, operation: change.operation })
            }
            Ok(state) => Ok((change.would, state)),
            Err(error) => Err(error),
        };
        report.print(session, &[*id], vec![outcome])?;
    }
    report.result()
}

pub(super) async fn cancel(global: &Global, command: Cancel) -> Result<(), Failure> {
    command.choice.check()?;
    let session = global.connect_to_tasks().await?;
    let Some(chosen) = command.choice.select(&session, &CANCEL).await? else { return session.close().await };
    let mut report = Report::default();
    for ids in chosen.chunks(CHUNK) {
        let rows = each(ids, session.store.cancel(ids, Deadline::default()).await);
        let outcomes = rows.into_iter().map(|row| row.map(|was| ("canceled", Some(was)))).collect();
        report.print(&session, ids, outcomes)?;
    }
    session.close().await.and(report.result())
}

pub(super) async fn retry(global: &Global, command: Retry) -> Result<(), Failure> {
    command.choice.check()?;
    let session = global.connect_to_tasks().await?;
    let Some(chosen) = command.choice.select(&session, &RETRY).await? else { return session.close().await };
    let mut report = Report::default();
    for ids in chosen.chunks(CHUNK) {
        let rows = each(ids, session.store.run_now(ids, Deadline::default()).await);
        let is_dead =
            |row: &Result<(), _>| matches!(row, Err(MessagingError::TaskConflict { state: TaskState::Dead, .. }));
        let dead: Vec<_> = ids.iter().zip(&rows).filter(|(_, row)| is_dead(row)).map(|(id, _)| *id).collect();
        let mut replayed = match dead.is_empty() {
            true => Vec::new(),
            false => each(&dead, session.store.replay(&dead, Deadline::default()).await),
        }
        .into_iter();
        let outcomes = rows.into_iter().map(|row| match row {
            Ok(()) => Ok(("due_now", None)),
            Err(MessagingError::TaskConflict { state: TaskState::Dead, id, .. }) => {
                let gone = || Err(MessagingError::TaskNotFound { id });
                replayed.next().unwrap_or_else(gone).map(|()| ("replayed", Some(TaskState::Dead)))
            }
            Err(MessagingError::TaskConflict { id, state, .. }) => {
                Err(MessagingError::TaskConflict { id, state, operation: "retried" })
            }
            Err(error) => Err(error),
        });
        let outcomes = outcomes.collect();
        report.print(&session, ids, outcomes)?;
    }
    session.close().await.and(report.result())
}

/// Removes repeated ids and keeps the order.
pub(super) fn unique(mut ids: Vec<TaskId>) -> Vec<TaskId> {
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    ids
}

/// Turns the failure of a call into one for each of its rows.
fn each<T: Clone>(ids: &[TaskId], rows: Result<RowResults<T>, MessagingError>) -> RowResults<T> {
    rows.unwrap_or_else(|error| ids.iter().map(|_| Err(error.clone())).collect())
}

/// Prints outcomes, and each error once.
#[derive(Default)]
struct Report {
    is_incomplete: bool,
    noted: Vec<String>,
}

impl Report {
    fn print(&mut self, session: &TaskSession, ids: &[TaskId], outcomes: Vec<Outcome>) -> Result<(), Failure> {
        for (id, result) in ids.iter().copied().zip(outcomes) {
            let (outcome, was) = match &result {
                Ok((outcome, was)) => (*outcome, *was),
                Err(MessagingError::TaskConflict { state, .. }) => ("conflict", Some(*state)),
                Err(MessagingError::TaskNotFound { .. }) => ("not_found", None),
                Err(MessagingError::OutcomeUnknown { .. }) => ("unknown", None),
                Err(_) => ("failed", None),
            };
            let why = result.err().map(|error| explained(&error));
            let row = Row { id, outcome, was, error: why.as_deref() };
            session.out.row(&row, format_args!("{id}  {}", outcome.replace('_', "-")))?;
            self.is_incomplete |= why.is_some();
            // A failing store has the same error for every row.
            if let Some(why) = why.filter(|why| !self.noted.contains(why)) {
                note(&why);
                self.noted.push(why);
            }
        }
        Ok(())
    }

    fn result(self) -> Result<(), Failure> {
        if self.is_incomplete { Err(Failure::Reported) } else { Ok(()) }
    }
}

/// One line of `--json` of `edit`.
#[derive(Serialize)]
struct Edited {
    id: TaskId,
    revision: u32,
}

pub(super) async fn edit(global: &Global, command: Edit) -> Result<(), Failure> {
    let Edit { id, payload, file } = command;
    if file.is_none() {
        options::check_payload(payload.as_ref())?;
    }
    let session = global.connect_to_tasks().await?;
    let max = session.store.max_payload_bytes();
    let payload = match file {
        Some(file) => read(&file, max)?,
        None => options::payload(payload, max).await?,
    };
    let revision = session.client().edit(id, payload, Deadline::default()).await?;
    let printed = session.out.row(&Edited { id, revision }, format_args!("{id}  revision {revision}"));
    let closed = session.close().await;
    printed.map_err(|failure| failure.after(format_args!("task {id} has revision {revision}")))?;
    closed
}

fn read(file: &std::path::Path, max: usize) -> Result<Bytes, Failure> {
    use std::io::Read;
    let shown = file.display();
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|open| open.take(max as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| Failure::failed(format!("cannot read '{shown}': {error}; nothing was done")))?;
    if bytes.len() > max {
        return Err(Failure::usage(too_long_for_a_task(&format!("'{shown}'"), max)));
    }
    Ok(bytes.into())
}
