//! `postrider task list`

use postrider::task::{TaskFilter, TaskInfo};
use postrider::{TaskState, Timestamp};

use super::filters::{Filters, Pages};
use super::record::{self, Info};
use crate::args::Global;
use crate::failure::Failure;
use crate::output::note;
use crate::table::{Column, Table};
use crate::text;
use crate::values;

/// List tasks, newest first
#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// Only tasks in this state, like PENDING or dead; repeatable, to match any of the states
    #[arg(long = "state", value_name = "STATE", value_parser = values::task_state)]
    states: Vec<TaskState>,

    #[command(flatten)]
    filters: Filters,

    /// Maximum number of tasks
    #[arg(long, value_name = "N", default_value = "100", value_parser = values::count, allow_negative_numbers = true)]
    limit: usize,

    /// List all tasks
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub(super) async fn run(global: &Global, command: List) -> Result<(), Failure> {
    let session = global.connect_to_tasks().await?;
    let filter = TaskFilter { states: command.states, ..command.filters.filter(&session).await? };
    let mut pages = Pages::of(&session, filter);
    let mut left = if command.all { usize::MAX } else { command.limit };
    let mut is_first = true;
    // Reads one task beyond the limit, to see whether there are more.
    while let Some(mut tasks) = pages.next(left.saturating_add(1)).await? {
        let are_more = tasks.len() > left;
        tasks.truncate(left);
        left -= tasks.len();
        if session.out.is_json() {
            session.out.rows(tasks.iter().map(|task| (Info::of(task), "")))?;
        } else if !tasks.is_empty() {
            session.out.text(&table(&tasks).render_part(is_first))?;
            is_first = false;
        }
        if are_more {
            note("there are more tasks; pass --all or a larger --limit");
            break;
        }
    }
    session.close().await
}

fn table(tasks: &[TaskInfo]) -> Table<6> {
    let mut table = Table::new([
        Column::Text("ID"),
        Column::Text("TYPE"),
        Column::Text("STATE"),
        Column::Number("ATTEMPTS"),
        Column::Number("AGE"),
        Column::Text("NOTE"),
    ]);
    let now = Timestamp::now();
    for task in tasks {
        table.push([
            task.id.to_string(),
            task.task_type.to_string(),
            task.state.to_string(),
            record::attempts(task),
            text::age(now.since(task.created_at)),
            text::shortened(&remark(task, now), 60),
        ]);
    }
    table
}

/// The most useful remark for the state of the task.
fn remark(task: &TaskInfo, now: Timestamp) -> String {
    let error = || task.last_error.clone().unwrap_or_default();
    match task.state {
        TaskState::Pending | TaskState::Enqueued if task.is_blocked => "waits for an earlier task of its key".into(),
        TaskState::Pending | TaskState::Enqueued => {
            let wait = task.scheduled_for.since(now);
            let due = if wait.is_zero() { "due".to_owned() } else { format!("due in {}", text::until(wait)) };
            if task.last_error.is_some() { format!("{due}; {}", error()) } else { due }
        }
        TaskState::Processing => match &task.progress {
            Some(progress) => record::progress(progress),
            None => task.worker.clone().unwrap_or_default(),
        },
        TaskState::Dead => match task.dead_reason {
            Some(reason) => format!("{reason}: {}", error()),
            None => error(),
        },
        TaskState::Succeeded | TaskState::Canceled => String::new(),
    }
}
