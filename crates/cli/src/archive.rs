//! `postrider archive`

mod list;
mod send_again;

use clap::Subcommand;

use crate::args::Global;
use crate::failure::Failure;

/// List, show and resend archived messages
///
/// The archive keeps acknowledged messages and purged dead letters for 7 days. The configuration keys archive and
/// archive_retention change that.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Archive {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  postrider archive list orders --since 2h
  postrider archive list orders --header customer=anna --state completed
  postrider archive show orders ID
  postrider archive send-again orders ID";

#[derive(Debug, Subcommand)]
enum Command {
    List(list::List),
    Show(list::Show),
    SendAgain(send_again::SendAgain),
}

pub(crate) async fn run(global: &Global, command: Archive) -> Result<(), Failure> {
    match command.command {
        Command::List(command) => list::list(global, command).await,
        Command::Show(command) => list::show(global, command).await,
        Command::SendAgain(command) => send_again::run(global, command).await,
    }
}
