//! `postrider queues create` and `delete`

use postrider::{Deadline, MessagingService, QueueAdmin, QueueName};
use serde::Serialize;

use super::{hint_for_missing, is_missing};
use crate::args::Global;
use crate::confirm::{confirm, should_ask};
use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::text::counted;
use crate::values;

/// Create queues
///
/// Existing queues are not changed. A send creates its queue by itself, unless common.messaging.create_queues is off.
#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// Names of the queues
    #[arg(required = true, value_name = "QUEUE", value_parser = values::own_queue)]
    queues: Vec<QueueName>,
}

/// Delete queues with all their messages and dead letters
///
/// Leases on the messages end. Asks for confirmation if stdin is a terminal.
#[derive(Debug, clap::Args)]
pub(super) struct Delete {
    /// Names of the queues
    #[arg(required = true, value_name = "QUEUE", value_parser = values::own_queue)]
    queues: Vec<QueueName>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    queue: &'a QueueName,
    outcome: &'static str,
}

pub(super) async fn create(global: &Global, command: Create) -> Result<(), Failure> {
    let session = global.connect().await?;
    for queue in &command.queues {
        let (outcome, words) = match is_missing(&session, queue).await? {
            true => ("created", "was created"),
            false => ("existed", "already exists"),
        };
        session.provider.ensure_queue(queue, Deadline::default()).await?;
        session.out.row(&Row { queue, outcome }, format_args!("{queue} {words}"))?;
    }
    session.close().await
}

pub(super) async fn delete(global: &Global, command: Delete) -> Result<(), Failure> {
    let session = global.connect().await?;
    let mut missing = 0;
    for queue in &command.queues {
        if is_missing(&session, queue).await? {
            note(format!("there is no queue '{queue}'; {}", hint_for_missing(&session, queue).await));
            session.out.row(&Row { queue, outcome: "not_found" }, format_args!("{queue} does not exist"))?;
            missing += 1;
            continue;
        }
        if should_ask(command.yes) {
            confirm(&format!("Delete '{queue}' with {} for good?", contents(&session, queue).await?), command.yes)?;
        }
        // No deadline: a large queue takes long.
        session.provider.delete_queue(queue, Deadline::never()).await?;
        session.out.row(&Row { queue, outcome: "deleted" }, format_args!("{queue} was deleted"))?;
    }
    session.close().await?;
    if missing == 0 { Ok(()) } else { Err(Failure::Reported) }
}

/// The contents of a queue, for the confirmation.
async fn contents(session: &Session, queue: &QueueName) -> Result<String, Failure> {
    let stats = session.provider.queue_stats(queue, Deadline::default()).await?;
    let living = [stats.ready, stats.in_flight, stats.delayed].map(|count| count.value());
    let living = living.into_iter().sum::<Option<u64>>();
    Ok(match living.zip(stats.dead.value()) {
        Some((living, dead)) => {
            let dead = counted(dead, "dead letter", "dead letters");
            format!("{} and {dead}", counted(living, "message", "messages"))
        }
        None => "everything in it".into(),
    })
}
