//! `postrider task cancel`, `retry`, `edit`

use std::ffi::OsString;
use std::path::PathBuf;

use postrider::task::{TaskFilter, TaskStore};
use postrider::{Bytes, Deadline, MessagingError, RowResults, TaskId, TaskState};
use serde::Serialize;

use super::filters::{Filters, Pages};
use super::label;
use super::session::TaskSession;
use crate::args::Global;
use crate::confirm::{asks, confirm};
use crate::failure::{Failure, explained};
use crate::input::too_long_for_a_task;
use crate::output::note;
use crate::text::counted;
use crate::values;

/// So many are changed in one transaction.
const CHUNK: usize = 500;

/// Call tasks off, wherever they are in their lives
///
/// A command that runs for one of them is told to stop within a second.
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(super) struct Cancel {
    #[command(flatten)]
    choice: Choice,
}

/// Run tasks now: those that wait for their time do not wait any longer, those that are dead are replayed
#[derive(Debug, clap::Args)]
#[command(after_help = OUTCOMES)]
pub(super) struct Retry {
    #[command(flatten)]
    choice: Choice,
}

#[derive(Debug, clap::Args)]
struct Choice {
    /// The tasks
    #[arg(value_name = "ID", value_parser = values::task_id, conflicts_with_all = ["all", "types", "tags", "schedule", "reason", "error", "since"])]
    ids: Vec<TaskId>,

    /// Every task whose state allows it, or every one of them that is left by what else is said
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    filters: Filters,

    /// Only tell what would be done
    #[arg(long)]
    dry_run: bool,

    /// Do not ask
    #[arg(long)]
    yes: bool,
}

const OUTCOMES: &str = "\
Prints what became of each: what was asked for, or 'conflict' when its state does not allow it, 'not-found', 'unknown' \
when the answer was lost, 'failed' for anything else. Every task is tried. Exits with 1 when one was not done.

Tasks that are chosen by what they have in common are asked for first when stdin is a terminal.";

/// Change the payload of a dead task before it is replayed; the one before is kept
///
/// Prints the number of the new revision.
#[derive(Debug, clap::Args)]
pub(super) struct Edit {
    /// The task
    #[arg(value_parser = values::task_id)]
    id: TaskId,

    /// The new payload; without it, or with '-', what stdin holds
    #[arg(conflicts_with = "file")]
    payload: Option<OsString>,

    /// Take what this file holds
    #[arg(long)]
    file: Option<PathBuf>,
}

/// One line of `--json` of `cancel` and `retry`.
#[derive(Serialize)]
struct Row<'a> {
    id: TaskId,
    outcome: &'static str,
    /// The state that it was in.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<TaskState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// What became of a task: a word, and the state that it left if that is known.
type Became = Result<(&'static str, Option<TaskState>), MessagingError>;

/// What is done to tasks, in the words of the question, and to tasks of which states.
struct Change {
    verb: &'static str,
    /// What it would do, as an outcome.
    would: &'static str,
    operation: &'static str,
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
    /// The tasks that are meant, the oldest first; `None` when it was only told which.
    async fn meant(self, session: &TaskSession, change: &Change) -> Result<Option<Vec<TaskId>>, Failure> {
        let Self { ids, all: _, filters, dry_run, yes } = self;
        let is_bulk = ids.is_empty();
        let chosen = match is_bulk {
            false => single(ids),
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
            return rehearse(session, &chosen, is_bulk, change).await.map(|()| None);
        }
        if is_bulk && !chosen.is_empty() && asks(yes) {
            confirm(&format!("{} {}?", change.verb, counted(chosen.len() as u64, "task", "tasks")), yes)?;
        }
        Ok(Some(chosen))
    }

    /// Refuses a command that says nothing: nothing is not everything.
    fn check(&self) -> Result<(), Failure> {
        match self.ids.is_empty() && !self.all && self.filters.are_empty() {
            true => Err(Failure::usage(
                "no tasks are chosen; name them by their ids, or say --all, or what they have in common, like --type TYPE",
            )),
            false => Ok(()),
        }
    }
}

/// Tells what would be done. Tasks that were named may be in another state; those that were found are not.
async fn rehearse(session: &TaskSession, ids: &[TaskId], is_bulk: bool, change: &Change) -> Result<(), Failure> {
    let mut report = Report::default();
    for id in ids {
        let state = match is_bulk {
            true => Ok(None),
            false => session.client().get(*id, Deadline::default()).await.map(|task| Some(task.info.state)),
        };
        let became = match state {
            Ok(Some(state)) if !change.states.contains(&state) => {
                Err(MessagingError::TaskConflict { id: *id, state, operation: change.operation })
            }
            Ok(state) => Ok((change.would, state)),
            Err(error) => Err(error),
        };
        report.tell(session, &[*id], vec![became])?;
    }
    report.result()
}

pub(super) async fn cancel(global: &Global, command: Cancel) -> Result<(), Failure> {
    command.choice.check()?;
    let session = global.connect_to_tasks().await?;
    let Some(chosen) = command.choice.meant(&session, &CANCEL).await? else { return session.close().await };
    let mut report = Report::default();
    for ids in chosen.chunks(CHUNK) {
        let rows = each(ids, session.store.cancel(ids, Deadline::default()).await);
        let became = rows.into_iter().map(|row| row.map(|was| ("canceled", Some(was)))).collect();
        report.tell(&session, ids, became)?;
    }
    session.close().await.and(report.result())
}

pub(super) async fn retry(global: &Global, command: Retry) -> Result<(), Failure> {
    command.choice.check()?;
    let session = global.connect_to_tasks().await?;
    let Some(chosen) = command.choice.meant(&session, &RETRY).await? else { return session.close().await };
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
        let became = rows.into_iter().map(|row| match row {
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
        let became = became.collect();
        report.tell(&session, ids, became)?;
    }
    session.close().await.and(report.result())
}

/// Each task once, in the order in which they were named.
pub(super) fn single(mut ids: Vec<TaskId>) -> Vec<TaskId> {
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    ids
}

/// A call that failed failed for each of its rows.
fn each<T: Clone>(ids: &[TaskId], rows: Result<RowResults<T>, MessagingError>) -> RowResults<T> {
    rows.unwrap_or_else(|error| ids.iter().map(|_| Err(error.clone())).collect())
}

/// What has been told so far.
#[derive(Default)]
struct Report {
    is_incomplete: bool,
    told: Vec<String>,
}

impl Report {
    fn tell(&mut self, session: &TaskSession, ids: &[TaskId], became: Vec<Became>) -> Result<(), Failure> {
        for (id, became) in ids.iter().copied().zip(became) {
            let (outcome, was) = match &became {
                Ok((outcome, was)) => (*outcome, *was),
                Err(MessagingError::TaskConflict { state, .. }) => ("conflict", Some(*state)),
                Err(MessagingError::TaskNotFound { .. }) => ("not_found", None),
                Err(MessagingError::OutcomeUnknown { .. }) => ("unknown", None),
                Err(_) => ("failed", None),
            };
            let why = became.err().map(|error| explained(&error));
            let row = Row { id, outcome, was, error: why.as_deref() };
            session.out.row(&row, format_args!("{id}  {}", outcome.replace('_', "-")))?;
            self.is_incomplete |= why.is_some();
            // A store that fails says the same for every row.
            if let Some(why) = why.filter(|why| !self.told.contains(why)) {
                note(&why);
                self.told.push(why);
            }
        }
        Ok(())
    }

    fn result(self) -> Result<(), Failure> {
        if self.is_incomplete { Err(Failure::Told) } else { Ok(()) }
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
        label::check_payload(payload.as_ref())?;
    }
    let session = global.connect_to_tasks().await?;
    let most = session.store.max_payload_bytes();
    let payload = match file {
        Some(file) => read(&file, most)?,
        None => label::payload(payload, most).await?,
    };
    let revision = session.client().edit(id, payload, Deadline::default()).await?;
    let printed = session.out.row(&Edited { id, revision }, format_args!("{id}  revision {revision}"));
    let closed = session.close().await;
    printed.map_err(|failure| failure.after(format_args!("task {id} has revision {revision}")))?;
    closed
}

fn read(file: &std::path::Path, most: usize) -> Result<Bytes, Failure> {
    use std::io::Read;
    let shown = file.display();
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|open| open.take(most as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| Failure::failed(format!("cannot read '{shown}': {error}; nothing was done")))?;
    if bytes.len() > most {
        return Err(Failure::usage(too_long_for_a_task(&format!("'{shown}'"), most)));
    }
    Ok(bytes.into())
}
