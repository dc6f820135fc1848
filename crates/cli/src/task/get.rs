//! `postrider task get`

use postrider::{Deadline, TaskId};

use super::record::{ForPeople, Record};
use crate::args::Global;
use crate::failure::Failure;
use crate::values;

/// Show a task with its whole record
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Get {
    /// The task
    #[arg(value_parser = values::task_id)]
    id: TaskId,

    /// Every attempt as well; in JSON they are always there
    #[arg(long, conflicts_with_all = ["payload", "result"])]
    attempts: bool,

    /// Only the payload, as it is
    #[arg(long, conflicts_with = "result")]
    payload: bool,

    /// Only the result, as it is
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
        return Err(Failure::usage("--payload and --result print bytes, and --json an object; leave one of them out"));
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
            let people = ForPeople { task: &task, attempts: command.attempts.then_some(&attempts) };
            session.out.row(&Record::of(&task, &attempts), people)?;
        }
    }
    session.close().await
}
