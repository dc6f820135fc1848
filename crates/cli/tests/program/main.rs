//! The program as a user runs it: its output and its exit codes.

mod archive;
mod bad_files;
mod bad_input;
mod bench;
mod broker;
mod configuration;
mod dead_letters;
mod demo;
mod help;
mod logging;
mod messages;
mod queues;
mod readme;
mod receiving;
mod scratch;
mod sending;
mod server_page;
mod servers;
mod serving;
mod settling;
mod spool;
mod spool_page;
mod tasks;
mod tasks_page;
mod verifying;
mod work;

use std::process::{Command, Output};

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The text on stderr, without times and levels.
fn stderr(output: &Output) -> String {
    without_levels(&String::from_utf8_lossy(&output.stderr))
}

/// Lines of a log without their times and levels.
fn without_levels(text: &str) -> String {
    let sentence = |line: &str| {
        let (time, rest) = line.split_once(' ')?;
        time.parse::<postrider::Timestamp>().ok()?;
        let (level, sentence) = rest.trim_start().split_once(' ')?;
        ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level).then(|| sentence.to_owned())
    };
    text.split_inclusive('\n').map(|line| sentence(line).unwrap_or_else(|| line.to_owned())).collect()
}

/// The whole output of a run without configuration.
fn seen(args: &[&str]) -> String {
    scratch::Scratch::bare().run(args).seen()
}

/// The program with default signals, even if the tests run as a background job of a shell, which ignores some.
fn listening_program() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,HUP", scratch::PROGRAM]);
    command
}
