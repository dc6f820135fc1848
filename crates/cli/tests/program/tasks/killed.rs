//! A worker that is killed, at any moment: what becomes of its commands and of its task.

use std::time::Duration;

use rustix::process::Signal;

use super::home::{Home, eventually};
use crate::stderr;
use crate::work::place::{long, pids, runs};

#[test]
fn the_task_of_a_worker_that_was_killed_is_tried_again() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        let id = place.create(&["a", "", "--retry", "constant,delay=0s"]);
        let worker = place.start(&["--type", "a", "--lease", "1s"], "echo $$ > pid; exec sleep 1000");
        let command = place.process("pid");
        worker.signal(Signal::KILL);
        worker.wait();
        let worker = place.start(&["--type", "a"], "echo again");
        eventually("it is done", || (place.state(&id) == "SUCCEEDED").then_some(()));
        let output = worker.stop();
        // Whoever keeps the tasks says so.
        let is_told = stderr(&output).contains("a worker was lost");
        assert_eq!(is_told, !home.is_served(), "{mode}: {}", stderr(&output));
        let task = place.get(&id);
        let outcomes: Vec<_> = task["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["outcome"]).collect();
        assert_eq!(outcomes, ["lease_lost", "succeeded"], "{mode}");
        assert!(!runs(command), "{mode}: it was killed and its command was not");
    }
}

#[test]
fn a_worker_that_is_killed_takes_all_with_it_that_its_command_started() {
    let place = Home::sqlite().place;
    place.create(&["a", ""]);
    let worker = place.start(&["--type", "a"], "exec timeout 1000 sh -c 'echo $$ > pid; exec sleep 1000'");
    let started = place.process("pid");
    worker.signal(Signal::KILL);
    worker.wait();
    eventually("it is ended", || (!runs(started)).then_some(()));
}

/// With `POSTRIDER_LONG` ten times as many rounds.
#[test]
fn a_storm_of_kills_leaves_no_command_running_and_none_that_saw_a_part_of_its_payload() {
    // More than a pipe holds.
    const LENGTH: usize = 120_000;
    let place = Home::sqlite().place;
    let payload = "x".repeat(LENGTH);
    for _ in 0..4 {
        place.create(&["a", &payload, "--retry", "constant,delay=0s", "--max-attempts", "10000"]);
    }
    // It waits before it reads, so that many are killed at that point.
    let script = "echo $$ >> begun; sleep 0.03; wc -c >> read; exit 75";
    let read = |file: &str| std::fs::read_to_string(place.file(file)).unwrap_or_default();
    let begun = || pids(&read("begun"));
    for round in 0..long(8, 80) {
        let before = begun().len();
        let worker = place.start(&["--type", "a", "--workers", "4", "--lease", "1s"], script);
        eventually("commands have begun", || (begun().len() > before).then_some(()));
        // Another moment each time.
        std::thread::sleep(Duration::from_millis(round * 7 % 60));
        worker.signal(Signal::KILL);
        worker.wait();
        eventually("its commands have ended", || (!begun().into_iter().skip(before).any(runs)).then_some(()));
    }
    let lengths: Vec<usize> = read("read").lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(lengths.iter().all(|length| *length == LENGTH), "{lengths:?}");
}
