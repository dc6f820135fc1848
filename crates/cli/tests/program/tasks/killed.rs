//! The commands and tasks of a worker that is killed at any moment.

use std::time::Duration;

use rustix::process::Signal;

use super::home::{Home, eventually};
use crate::stderr;
use crate::work::scratch::{long, pids, runs};

#[test]
fn the_task_of_a_killed_worker_is_retried() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let id = scratch.create(&["a", "", "--retry", "constant,delay=0s"]);
        let worker = scratch.start(&["--type", "a", "--lease", "1s"], "echo $$ > pid; exec sleep 1000");
        let command = scratch.process("pid");
        worker.signal(Signal::KILL);
        worker.wait();
        let worker = scratch.start(&["--type", "a"], "echo again");
        eventually("it is done", || (scratch.state(&id) == "SUCCEEDED").then_some(()));
        let output = worker.stop();
        // The keeper reports it.
        let is_told = stderr(&output).contains("a worker was lost");
        assert_eq!(is_told, !home.is_served(), "{mode}: {}", stderr(&output));
        let task = scratch.get(&id);
        let outcomes: Vec<_> = task["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["outcome"]).collect();
        assert_eq!(outcomes, ["lease_lost", "succeeded"], "{mode}");
        assert!(!runs(command), "{mode}: it was killed and its command was not");
    }
}

#[test]
fn the_commands_of_a_killed_worker_die_with_everything_they_started() {
    let scratch = Home::sqlite().scratch;
    scratch.create(&["a", ""]);
    let worker = scratch.start(&["--type", "a"], "exec timeout 1000 sh -c 'echo $$ > pid; exec sleep 1000'");
    let started = scratch.process("pid");
    worker.signal(Signal::KILL);
    worker.wait();
    eventually("it is ended", || (!runs(started)).then_some(()));
}

/// With `POSTRIDER_LONG` ten times as many rounds.
#[test]
fn a_storm_of_kills_leaves_no_command_running_and_no_payload_read_in_part() {
    // More than a pipe holds.
    const LENGTH: usize = 120_000;
    let scratch = Home::sqlite().scratch;
    let payload = "x".repeat(LENGTH);
    for _ in 0..4 {
        scratch.create(&["a", &payload, "--retry", "constant,delay=0s", "--max-attempts", "10000"]);
    }
    // The sleep lets many commands be killed before they read.
    let script = "echo $$ >> begun; sleep 0.03; wc -c >> read; exit 75";
    let read = |file: &str| std::fs::read_to_string(scratch.file(file)).unwrap_or_default();
    let begun = || pids(&read("begun"));
    for round in 0..long(8, 80) {
        let before = begun().len();
        let worker = scratch.start(&["--type", "a", "--workers", "4", "--lease", "1s"], script);
        eventually("commands have begun", || (begun().len() > before).then_some(()));
        // A different moment in each round.
        std::thread::sleep(Duration::from_millis(round * 7 % 60));
        worker.signal(Signal::KILL);
        worker.wait();
        eventually("its commands have ended", || (!begun().into_iter().skip(before).any(runs)).then_some(()));
    }
    let lengths: Vec<usize> = read("read").lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(lengths.iter().all(|length| *length == LENGTH), "{lengths:?}");
}
