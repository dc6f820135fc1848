//! The program as a user meets it: what it prints where, and how it ends.

mod bad_files;
mod bad_input;
mod bench;
mod configuration;
mod dead_letters;
mod demo;
mod help;
mod place;
mod queues;
mod readme;
mod receiving;
mod sending;
mod settling;
mod verifying;
mod work;

use std::process::Output;

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Everything that a user sees of a run with nothing from outside.
fn seen(args: &[&str]) -> String {
    place::Place::bare().run(args).seen()
}
