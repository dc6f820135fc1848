//! `postrider task`

mod change;
mod create;
mod filters;
mod get;
mod keeper;
mod list;
pub(crate) mod options;
mod record;
mod replay;
pub(crate) mod session;
mod watch;
mod worker;

use clap::Subcommand;

use crate::args::Global;
use crate::failure::Failure;

pub(crate) use create::Row;

/// Create, run, list, cancel and replay tasks
///
/// A task is durable work that a database tracks from its creation to its end. Tasks are stored where state.url says; by
/// default in the database of the messages, if that is SQLite or PostgreSQL.
#[derive(Debug, clap::Args)]
#[command(after_help = MORE)]
pub(crate) struct Task {
    #[command(subcommand)]
    command: Command,
}

const MORE: &str = "\
States:
  PENDING     created; it may not be due yet
  ENQUEUED    on its way to a worker, or waiting for a retry
  PROCESSING  a worker has leased it
  SUCCEEDED   done
  DEAD        failed for good; 'task replay' makes it runnable again
  CANCELED    canceled

Reasons of death:
  max_attempts        its last attempt failed
  permanent           its handler refused it ('task worker': exit code 65)
  lease_lost          the worker of its last attempt was lost
  deadline            its deadline passed
  retries_exhausted   no attempt left in its retry strategy

Examples:
  postrider task create mail.send '{\"to\": \"anna@example.org\"}'
  postrider task worker --type mail.send -- ./send-mail
  postrider task list --state DEAD --since 1d
  postrider task replay --all --type mail.send --rate 10/s";

#[derive(Debug, Subcommand)]
enum Command {
    Create(create::Create),
    Get(get::Get),
    List(list::List),
    Watch(watch::Watch),
    Cancel(change::Cancel),
    Retry(change::Retry),
    Edit(change::Edit),
    Replay(replay::Replay),
    Worker(worker::Worker),
    Keeper(keeper::Keeper),
}

pub(crate) async fn run(global: &Global, command: Task) -> Result<(), Failure> {
    // Boxed, because the futures together would be large.
    match command.command {
        Command::Create(command) => Box::pin(create::run(global, command)).await,
        Command::Get(command) => Box::pin(get::run(global, command)).await,
        Command::List(command) => Box::pin(list::run(global, command)).await,
        Command::Watch(command) => Box::pin(watch::run(global, command)).await,
        Command::Cancel(command) => Box::pin(change::cancel(global, command)).await,
        Command::Retry(command) => Box::pin(change::retry(global, command)).await,
        Command::Edit(command) => Box::pin(change::edit(global, command)).await,
        Command::Replay(command) => Box::pin(replay::run(global, command)).await,
        Command::Worker(command) => Box::pin(worker::run(global, command)).await,
        Command::Keeper(command) => Box::pin(keeper::run(global, command)).await,
    }
}
