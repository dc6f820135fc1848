//! The command line.

use clap::{Parser, Subcommand};

use crate::completions::Completions;
use crate::verify::Verify;

/// One durable message lifecycle, on whatever queue you already run.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  postrider verify memory:               try the sixteen rules on a store in memory
  postrider --json verify memory:        the same, one JSON object a rule
  postrider completions bash > ~/.local/share/bash-completion/completions/postrider

URLs:
  memory:                                a store in this process; it ends with the process

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Options of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Where messages are kept
    #[arg(long, global = true, env = "POSTRIDER_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// Print one JSON object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Verify(Verify),
    Completions(Completions),
}
