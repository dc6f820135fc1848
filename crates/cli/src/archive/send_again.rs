//! `postrider archive send-again`

use postrider::{Deadline, MessageId, QueueAdmin, QueueName};
use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::values;

/// Send archived messages to their queue again and print the new ids
///
/// The copy has the same body, content type, headers, ordering key and priority. Its header sent-again-from holds the
/// id of the archived message.
#[derive(Debug, clap::Args)]
pub(super) struct SendAgain {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    /// Ids of the archived messages
    #[arg(value_name = "ID", required = true, value_parser = values::id)]
    ids: Vec<MessageId>,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row {
    id: MessageId,
    queue: QueueName,
    sent_again_from: MessageId,
}

pub(super) async fn run(global: &Global, command: SendAgain) -> Result<(), Failure> {
    let session = global.connect().await?;
    for sent_again_from in command.ids {
        let id = session.provider.send_again(&command.queue, sent_again_from, Deadline::default()).await?;
        session.out.row(&Row { id, queue: command.queue.origin(), sent_again_from }, id)?;
    }
    session.close().await
}
