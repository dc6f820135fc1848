//! `postrider task get`

use postrider::{Deadline, TaskId};

use super::record::{Record, RecordText};
use crate::args::Global;
use crate::failure::Failure;
use crate::values;

/// Show a task with its full record
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Get {
    /// The task id
    #[arg(value_parser = values::task_id)]
    id: TaskId,

    /// Show every attempt too; --json always includes them
    #[arg(long, conflicts_with_all = ["payload", "result"])]
    attempts: bool,

    /// Print only the payload, as raw bytes
    #[arg(long, conflicts_with = "result")]
    payload: bool,

    /// Print only the result, as raw bytes
    #[arg(long)]
    result: bool,
}

const EXAMPLES: &str = "\
Examples:
  postrider task get ID --attempts
  postrider task get ID --result > report.pdf
  postrider --json task get ID | jq -r .state";

pub(super) async fn run(global: &Global, command: Get) -> Result<(), Failure> {
    let is_bytes = command.payload || command.result;
    if is_bytes && global.json {
        return Err(Failure::usage(
            "--payload and --result print raw bytes and cannot be used with --json; omit one of them",
        ));
    }
    let session = global.connect_to_tasks().await?;
    let client = session.client();
    let task = client.get(command.id, Deadline::default()).await?;
    match (command.payload, command.result) {
        (true, _) => session.out.bytes(&task.payload)?,
        (_, true) => match &task.result {
            Some(result) => session.out.bytes(result)?,
            None => {
                let (id, state) = (task.info.id, task.info.state);
                return Err(Failure::failed(format!("task {id} is {state} and has no result")));
            }
        },
        (false, false) => {
            let attempts = client.attempts(command.id, Deadline::default()).await?;
            let text = RecordText { task: &task, attempts: command.attempts.then_some(&attempts) };
            session.out.row(&Record::of(&task, &attempts), text)?;
        }
    }
    session.close().await
}
