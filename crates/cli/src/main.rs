//! The `postrider` program.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.

mod args;
mod completions;
mod failure;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use failure::Failure;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.command {
        Command::Completions(command) => completions::run(&command),
        Command::Verify(command) => on_runtime(verify::run(&args.global, &command)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn on_runtime(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?.block_on(command)
}
