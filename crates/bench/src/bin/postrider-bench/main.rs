//! The `postrider-bench` program: the workloads on the providers, and the same work directly on their drivers.
//!
//! Provider and driver alternate on the same disk, so that other load of the machine affects both.

mod args;
mod backlog;
mod case;
mod check;
mod compare;
mod http;
mod raw;
mod report;
mod server;
mod spool;
mod tasks;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use args::Args;
use case::Case;
use compare::Comparison;

/// Any error: it is printed and ends the program.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("postrider-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.backlog_in_this_process {
        backlog::run(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = &args.serve_in_this_process {
        compare::runtime()?.block_on(http::serve(file))?;
        return Ok(ExitCode::SUCCESS);
    }
    for case in args.cases() {
        if let Some(server) = case.server() {
            // Checked before the first measurement, not after minutes.
            server.url()?;
        }
    }
    if args.check {
        return check::run(args);
    }
    let comparison = Comparison::new(args)?;
    report::begin(args);
    for case in args.cases() {
        let row = match case {
            Case::Backlog => backlog::in_child_process(args, args.backlog_messages)?,
            _ => comparison.median(case)?,
        };
        report::row(args, &row)?;
    }
    Ok(ExitCode::SUCCESS)
}
