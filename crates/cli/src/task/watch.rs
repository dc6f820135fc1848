//! `postrider task watch`

use std::time::Duration;

use postrider::task::{Progress, TaskInfo};
use postrider::{Deadline, MessagingError, TaskId, TaskState, Timestamp};

use super::record::{self, Info};
use crate::args::Global;
use crate::command::RepeatedWarning;
use crate::failure::Failure;
use crate::output::note;
use crate::text::one_line;
use crate::values;

/// Poll interval.
const POLL: Duration = Duration::from_millis(500);

/// Follow a task until it ends
///
/// Reads the task twice a second and prints a line for each change of its state, attempts or progress. Exits with 0 if the
/// task succeeds, with 1 if it dies or is canceled.
#[derive(Debug, clap::Args)]
pub(super) struct Watch {
    /// The task id
    #[arg(value_parser = values::task_id)]
    id: TaskId,
}

pub(super) async fn run(global: &Global, command: Watch) -> Result<(), Failure> {
    let session = global.connect_to_tasks().await?;
    let client = session.client();
    let (mut seen, warning) = (None, RepeatedWarning::default());
    let state = loop {
        match client.get(command.id, Deadline::default()).await {
            Ok(task) => {
                let now = Some(Seen::of(&task.info));
                if now != seen {
                    session.out.row(&Info::of(&task.info), line(&task.info))?;
                    seen = now;
                }
                if task.info.state.is_terminal() {
                    break task.info.state;
                }
                if warning.clear() {
                    note("the store answers again");
                }
            }
            // The task exists, so a temporary failure does not end the watch.
            Err(error) if seen.is_some() && is_temporary(&error) => {
                if warning.is_due() {
                    note(format_args!("cannot read the task, trying again: {error}"));
                }
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(POLL).await;
    };
    session.close().await?;
    if state == TaskState::Succeeded { Ok(()) } else { Err(Failure::Reported) }
}

fn is_temporary(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

/// The fields whose changes are printed.
#[derive(Debug, PartialEq)]
struct Seen {
    state: TaskState,
    attempt: (u32, u32),
    progress: Option<Progress>,
    due: Timestamp,
}

impl Seen {
    fn of(task: &TaskInfo) -> Self {
        let attempt = (task.replay_count, task.attempt_count);
        Self { state: task.state, attempt, progress: task.progress.clone(), due: task.scheduled_for }
    }
}

fn line(task: &TaskInfo) -> String {
    let now = Timestamp::now();
    let state = task.state;
    let due = match task.scheduled_for.since(now) {
        Duration::ZERO => "due".to_owned(),
        wait => format!("due in {}", crate::text::age(wait)),
    };
    let error = task.last_error.as_deref().map(one_line).unwrap_or_default();
    let rest = match state {
        TaskState::Pending | TaskState::Enqueued if task.attempt_count > 0 && task.last_error.is_some() => {
            format!("attempt {} failed, {due}: {error}", record::attempts(task))
        }
        TaskState::Pending | TaskState::Enqueued => due,
        TaskState::Processing => {
            let attempt = format!("attempt {}", record::attempts(task));
            match &task.progress {
                Some(progress) => format!("{attempt}, {}", record::progress(progress)),
                None => attempt,
            }
        }
        TaskState::Dead => {
            let reason = task.dead_reason.map(|reason| reason.to_string()).unwrap_or_default();
            format!("{reason}, attempt {}: {error}", record::attempts(task))
        }
        TaskState::Succeeded => format!("attempt {}", record::attempts(task)),
        TaskState::Canceled => String::new(),
    };
    format!("{:<10} {rest}", state.as_str()).trim_end().to_owned()
}
