//! `postrider dlq`

mod bulk;
mod edit;
mod groups;
mod list;
mod record;
mod selection;

use clap::Subcommand;

use crate::args::Global;
use crate::failure::Failure;

/// List, edit, redrive and remove dead letters of a queue
///
/// QUEUE is the original queue of the messages. 'postrider receive QUEUE_dlq' leases dead letters like other messages.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Dlq {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Reasons:
  max_receive_count   delivered too often without being settled
  expired             not handled before the end of its --expires-in
  rejected            refused by its handler ('work': exit code 65)
  retries_exhausted   no attempt left in the retry strategy
  undecodable         its bytes cannot be decoded
  others              the REASON of 'nack --dead REASON' or of an application

Examples:
  postrider dlq list orders --reason max_receive_count
  postrider dlq groups orders
  postrider dlq purge orders --error-contains 'no litres' --since 2h --dry-run
  postrider dlq edit orders ID --body '{\"id\": 7}'
  postrider dlq redrive orders --all --dry-run
  postrider --json dlq list orders | jq -r .id | xargs postrider dlq redrive orders";

#[derive(Debug, Subcommand)]
enum Command {
    List(list::List),
    Groups(groups::Groups),
    Show(list::Show),
    Edit(edit::Edit),
    Redrive(bulk::Redrive),
    Purge(bulk::Purge),
}

pub(crate) async fn run(global: &Global, command: Dlq) -> Result<(), Failure> {
    match command.command {
        Command::List(command) => list::list(global, command).await,
        Command::Groups(command) => groups::run(global, command).await,
        Command::Show(command) => list::show(global, command).await,
        Command::Edit(command) => edit::run(global, command).await,
        Command::Redrive(command) => bulk::redrive(global, command).await,
        Command::Purge(command) => bulk::purge(global, command).await,
    }
}
