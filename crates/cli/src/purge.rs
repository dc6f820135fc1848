//! `postrider purge`

use postrider::{Deadline, QueueAdmin, QueueName};
use serde::Serialize;

use crate::args::Global;
use crate::confirm::confirm;
use crate::failure::Failure;
use crate::queues::must_exist;
use crate::text::counted;
use crate::values;

/// Remove all messages of a queue that are not leased
///
/// Dead letters stay; 'postrider dlq purge' removes them. Asks for confirmation if stdin is a terminal.
#[derive(Debug, clap::Args)]
pub(crate) struct Purge {
    /// The queue
    #[arg(value_parser = values::purged_queue)]
    queue: QueueName,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    queue: &'a QueueName,
    purged: u64,
}

pub(crate) async fn run(global: &Global, command: Purge) -> Result<(), Failure> {
    let session = global.connect().await?;
    let queue = &command.queue;
    must_exist(&session, queue).await?;
    let stats = session.provider.queue_stats(queue, Deadline::default()).await?;
    let question = match stats.ready.value().zip(stats.delayed.value()) {
        Some((ready, delayed)) => {
            let messages = counted(ready + delayed, "message", "messages");
            format!("Remove {messages} from '{queue}' for good?")
        }
        None => format!("Remove all messages from '{queue}' for good?"),
    };
    confirm(&question, command.yes)?;
    // No deadline: a large queue takes long.
    let purged = session.provider.purge(queue, Deadline::never()).await?;
    session.out.row(&Row { queue, purged }, counted(purged, "message was removed", "messages were removed"))?;
    session.close().await
}
