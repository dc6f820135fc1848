//! The `postrider` program.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.

mod archive;
mod args;
mod bench;
mod command;
mod completions;
mod config;
mod confirm;
mod demo;
mod dlq;
mod doctor;
mod failure;
mod input;
mod lines;
mod log;
mod message;
mod migrate;
mod output;
mod peek;
mod progress;
mod purge;
mod queues;
mod receive;
mod retry;
mod schedule;
mod send;
mod serve;
mod session;
mod settle;
mod signals;
mod table;
mod task;
mod text;
mod token;
mod values;
mod verify;
mod work;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use failure::Failure;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == command::GUARD) {
        return command::guard();
    }
    let args = Args::parse();
    let global = &args.global;
    let result = match args.command {
        Command::Send(command) => on_runtime(|| send::run(global, command)),
        Command::Receive(command) => on_runtime(|| receive::run(global, command)),
        Command::Ack(command) => on_runtime(|| settle::ack(global, command)),
        Command::Nack(command) => on_runtime(|| settle::nack(global, command)),
        Command::Release(command) => on_runtime(|| settle::release(global, command)),
        Command::Extend(command) => on_runtime(|| settle::extend(global, command)),
        Command::Work(command) => on_runtime(|| work::run(global, command)),
        Command::Queues(command) => on_runtime(|| queues::run(global, command)),
        Command::Stats(command) => on_runtime(|| queues::stats(global, command)),
        Command::Peek(command) => on_runtime(|| peek::run(global, command)),
        Command::Purge(command) => on_runtime(|| purge::run(global, command)),
        Command::Message(command) => on_runtime(|| message::run(global, command)),
        Command::Pause(command) => on_runtime(|| queues::pause(global, command)),
        Command::Resume(command) => on_runtime(|| queues::resume(global, command)),
        Command::Dlq(command) => on_runtime(|| dlq::run(global, command)),
        Command::Archive(command) => on_runtime(|| archive::run(global, command)),
        Command::Task(command) => on_runtime(|| task::run(global, command)),
        Command::Schedule(command) => on_runtime(|| schedule::run(global, command)),
        Command::Serve(command) => on_runtime(|| serve::run(global, command)),
        Command::Token(command) => on_runtime(|| token::run(global, command)),
        Command::Config(command) => config::run(global, &command),
        Command::Migrate(command) => on_runtime(|| migrate::run(global, &command)),
        Command::Demo(command) => on_runtime(|| demo::run(global, command)),
        Command::Bench(command) => on_runtime(|| bench::run(global, &command)),
        Command::Doctor(command) => on_runtime(|| doctor::run(global, &command)),
        Command::Verify(command) => on_runtime(|| verify::run(global, &command)),
        Command::Completions(command) => completions::run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.global.log_format),
    }
}

/// Runs a command on a new runtime. The future is made in a frame of its own and boxed, because the futures of all commands
/// together are larger than a small stack. A new thread has a full stack; a shell limit may shrink that of the main thread.
fn on_runtime<F: Future<Output = Result<(), Failure>>>(command: impl FnOnce() -> F + Send) -> Result<(), Failure> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?.block_on(Box::pin(command()))
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
