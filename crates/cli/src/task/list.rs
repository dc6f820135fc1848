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
    /// Only those in this state, like PENDING or dead; may be given several times, and then means any of them
    #[arg(long = "state", value_name = "STATE", value_parser = values::task_state)]
    states: Vec<TaskState>,

    #[command(flatten)]
    filters: Filters,

    /// At most this many
    #[arg(long, value_name = "N", default_value = "100", value_parser = values::count, allow_negative_numbers = true)]
    limit: usize,

    /// As many as there are
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub(super) async fn run(global: &Global, command: List) -> Result<(), Failure> {
    let session = global.connect_to_tasks().await?;
    let filter = TaskFilter { states: command.states, ..command.filters.filter(&session).await? };
    let mut pages = Pages::of(&session, filter);
    let mut left = if command.all { usize::MAX } else { command.limit };
    let mut is_first = true;
    // One more than is wanted, to know whether there are more.
    while let Some(mut tasks) = pages.next(left.saturating_add(1)).await? {
        let are_more = tasks.len() > left;
        tasks.truncate(left);
        left -= tasks.len();
        if session.out.is_json() {
            session.out.rows(tasks.iter().map(|task| (Info::of(task), "")))?;
        } else if !tasks.is_empty() {
            session.out.text(page(&tasks).lines(is_first))?;
            is_first = false;
        }
        if are_more {
            note("there are more; --all lists them, --limit N more of them");
            break;
        }
    }
    session.close().await
}

/// A page of the table. Only the first has the names of the columns.
struct Page(String);

impl Page {
    fn lines(&self, with_names: bool) -> &str {
        match self.0.split_once('\n') {
            Some((_, rows)) if !with_names => rows,
            _ => &self.0,
        }
    }
}

fn page(tasks: &[TaskInfo]) -> Page {
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
    Page(table.render())
}

/// What somebody would want to know of a task in that state.
fn remark(task: &TaskInfo, now: Timestamp) -> String {
    let error = || task.last_error.clone().unwrap_or_default();
    match task.state {
        TaskState::Pending | TaskState::Enqueued if task.is_blocked => "waits behind its key".into(),
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
