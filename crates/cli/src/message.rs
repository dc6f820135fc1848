//! `postrider message`

mod act;
mod choice;

use clap::Subcommand;

use crate::args::Global;
use crate::failure::Failure;

/// Deliver, dead-letter or delete waiting messages
///
/// Leased messages are skipped. 'postrider peek QUEUE' shows the messages of a queue and their ids. Not every store
/// supports this; 'postrider doctor' shows what a store supports.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Message {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  postrider message deliver-now orders ID
  postrider message deliver-now orders --all --state delayed --dry-run
  postrider message dead-letter orders --key customer-7 --reason 'wrong address'
  postrider message delete orders --header tenant=test --before 1d --yes";

#[derive(Debug, Subcommand)]
enum Command {
    DeliverNow(act::DeliverNow),
    DeadLetter(act::DeadLetter),
    Delete(act::Delete),
}

pub(crate) async fn run(global: &Global, command: Message) -> Result<(), Failure> {
    match command.command {
        Command::DeliverNow(command) => act::deliver_now(global, command).await,
        Command::DeadLetter(command) => act::dead_letter(global, command).await,
        Command::Delete(command) => act::delete(global, command).await,
    }
}
