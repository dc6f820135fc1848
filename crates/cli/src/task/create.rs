//! `postrider task create`

use std::ffi::OsString;
use std::time::Duration;

use postrider::task::{Created, TaskState, When};
use postrider::{IdempotencyKey, MessagingError, NewTask, TaskId, TaskStore, TaskType, Timestamp};
use serde::Serialize;

use super::options::{self, TaskOptions};
use super::session::{self, TaskSession};
use crate::args::Global;
use crate::failure::Failure;
use crate::input::too_long_for_a_task;
use crate::lines::{self, NotCreated, Words, create_from_stdin};
use crate::output::note;
use crate::values;

/// Create a task
///
/// Prints the task's id once it is durable.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Create {
    /// Type of the task, which selects its handler
    #[arg(value_name = "TYPE", value_parser = values::task_type)]
    task_type: TaskType,

    /// Payload for the handler [default: read from stdin, as with '-']
    payload: Option<OsString>,

    /// Create a task from each line of stdin, without its newline (LF or CR LF); an empty line is an empty payload
    #[arg(long, conflicts_with_all = ["payload", "id", "idempotency_key"])]
    lines: bool,

    /// Time at which the task is due, like 2026-03-01T09:30:00Z [default: now]
    #[arg(long, value_name = "TIME", value_parser = values::time, conflicts_with = "after")]
    at: Option<Timestamp>,

    /// Time until the task is due, like 500ms, 5s, 2m, 1h30m or 3d [default: 0s]
    #[arg(long = "in", value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    after: Option<Duration>,

    #[command(flatten)]
    options: TaskOptions,

    /// The task dies if it has not ended by this time, like 2026-03-01T09:30:00Z [default: no deadline]
    #[arg(long, value_name = "TIME", value_parser = values::time, conflicts_with = "deadline_in")]
    deadline: Option<Timestamp>,

    /// Create the task only if its type has no task with this key, in any state; otherwise print that task's id
    #[arg(long, value_name = "KEY", value_parser = values::idempotency_key)]
    idempotency_key: Option<IdempotencyKey>,

    /// The task's id [default: a new one]
    #[arg(long, value_name = "UUID", value_parser = values::task_id)]
    id: Option<TaskId>,
}

const EXAMPLES: &str = "\
Examples:
  postrider task create mail.send '{\"to\": \"anna@example.org\"}'
  postrider task create invoice.send --idempotency-key order-7 --deadline-in 1h < order.json
  postrider task create report.build '{}' --in 5m --max-attempts 5 --tag nightly
  seq 1000 | postrider task create thumbnail --lines";

/// One line of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Row<'a> {
    id: TaskId,
    #[serde(rename = "type")]
    task_type: &'a TaskType,
    state: TaskState,
    is_new: bool,
}

impl<'a> Row<'a> {
    pub(crate) fn of(created: Created, task_type: &'a TaskType) -> Self {
        Self { id: created.id, task_type, state: created.state, is_new: created.is_new }
    }
}

impl Create {
    fn task(&self, payload: impl Into<postrider::Bytes>) -> NewTask {
        let mut task = self.options.task(self.task_type.clone(), payload);
        task.scheduled_for = match (self.at, self.after) {
            (Some(time), _) => When::At(time),
            (None, after) => When::In(after.unwrap_or_default()),
        };
        if let Some(deadline) = self.deadline {
            task.deadline = Some(When::At(deadline));
        }
        task.idempotency_key.clone_from(&self.idempotency_key);
        task.id = self.id.unwrap_or(task.id);
        task
    }
}

pub(super) async fn run(global: &Global, command: Create) -> Result<(), Failure> {
    if !command.lines {
        options::check_payload(command.payload.as_ref())?;
    }
    // Checked before anything is created.
    command.task("").check(usize::MAX)?;
    let session = global.connect_to_tasks().await?;
    let creator = session.creator().await?;
    if command.lines {
        let from_lines = FromLines { session: &session, creator: &creator, command: &command };
        let result = create_from_stdin(&from_lines, session.out).await;
        let closed = session.close().await;
        return result.and(closed);
    }
    let payload = options::payload(command.payload.clone(), session.store.max_payload_bytes()).await?;
    let created = creator.create_one(command.task(payload)).await?;
    let Created { id, is_new, state } = created;
    let printed = session.out.row(&Row::of(created, &command.task_type), id);
    if !is_new {
        note(format_args!("task {id} has this idempotency key and is {state}; no task was created"));
    }
    let closed = session.close().await;
    printed.map_err(|failure| failure.after(format_args!("task {id} was created")))?;
    closed
}

/// Creates a task from each line.
struct FromLines<'a> {
    session: &'a TaskSession,
    creator: &'a session::Creator,
    command: &'a Create,
}

impl<'a> lines::Creator for FromLines<'a> {
    type Row = Row<'a>;

    const WORDS: Words = Words { thing: "task", verb: "create", done: "created" };

    fn max_line(&self) -> usize {
        self.session.store.max_payload_bytes()
    }

    fn too_long(&self, what: &str) -> String {
        too_long_for_a_task(what, self.max_line())
    }

    async fn create(&self, lines: Vec<Vec<u8>>) -> Result<Vec<lines::Created<Self::Row>>, Failure> {
        let tasks: Vec<_> = lines.into_iter().map(|payload| self.command.task(payload)).collect();
        let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
        let rows = match self.creator.create(tasks).await {
            Ok(rows) => rows,
            Err(error @ MessagingError::InvalidInput { .. }) => return Err(error.into()),
            Err(error) => vec![Err(error); ids.len()],
        };
        let outcomes = ids.into_iter().zip(rows).map(|(id, row)| match row {
            Ok(created) => Ok((Row::of(created, &self.command.task_type), created.id.to_string())),
            Err(error) => {
                let is_unknown = matches!(error, MessagingError::OutcomeUnknown { .. });
                Err(NotCreated { id: id.to_string(), is_unknown, error })
            }
        });
        Ok(outcomes.collect())
    }
}
