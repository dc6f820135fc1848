//! How a worker ends, and what becomes of what it was doing.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use super::home::{Home, eventually};
use crate::listening_program;
use crate::place::text;
use crate::stderr;
use crate::work::place::{Worker, rows, runs};

#[test]
fn what_runs_may_finish_and_nothing_new_is_begun() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        let (one, two) = (place.create(&["a", "", "--priority", "9"]), place.create(&["a", "", "--priority", "0"]));
        let script = "echo $$ > pid; until test -e go; do sleep 0.02; done; echo finished";
        let mut worker = place.start(&["--type", "a"], script);
        place.process("pid");
        let said = worker.told_to_finish();
        place.touch("go");
        let output = worker.wait();
        assert!(output.status.success(), "{mode}: {}", stderr(&output));
        assert_eq!(rows(&output).len(), 1, "{mode}");
        assert!(said.contains("finishing what runs; once more to end it at once"), "{said}{}", stderr(&output));
        assert_eq!(place.get(&one)["result"], "finished\n");
        let left = place.get(&two);
        assert_eq!((&left["attempt_count"], &left["attempts"]), (&json!(0), &json!([])), "{mode}: {left}");
    }
}

#[test]
fn what_does_not_finish_in_time_is_a_failed_attempt_and_the_last_one_too() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        let (first, last) = (place.create(&["a", ""]), place.create(&["a", "", "--max-attempts", "1"]));
        // The command says that all is well when it is told to stop.
        let script = r#"trap 'exit 0' TERM; touch "begun-$POSTRIDER_TASK_ID"; while :; do sleep 0.02; done"#;
        let worker = place.start(&["--type", "a", "--workers", "2", "--graceful-timeout", "100ms"], script);
        for id in [&first, &last] {
            eventually("it runs", || place.file(&format!("begun-{id}")).exists().then_some(()));
        }
        let output = worker.stop();
        assert!(output.status.success(), "{mode}: {}", stderr(&output));
        let task = place.get(&first);
        assert_eq!(task["state"], "ENQUEUED", "{mode}");
        assert!(text(&task["last_error"]).starts_with("stopped with the worker"), "{task}");
        let task = place.get(&last);
        assert_eq!((&task["state"], &task["dead_reason"]), (&json!("DEAD"), &json!("max_attempts")), "{mode}");
    }
}

#[test]
fn the_second_signal_ends_everything_at_once() {
    let place = Home::sqlite().place;
    let id = place.create(&["a", ""]);
    let script = "trap '' TERM; sleep 1000 & echo $! > pid; wait; sleep 1000";
    let worker = place.start(&["--type", "a", "--graceful-timeout", "1h"], script);
    let grandchild = place.process("pid");
    worker.signal(Signal::INT);
    // Signals that are sent together may arrive as one.
    eventually("it has ended", || {
        worker.signal(Signal::INT);
        (!runs(grandchild)).then_some(())
    });
    let output = worker.wait();
    assert!(output.status.success(), "{}", stderr(&output));
    let row = &rows(&output)[0];
    assert_eq!((&row["outcome"], row["signal"].as_i64()), (&json!("retried"), Some(9)));
    assert_eq!(place.state(&id), "ENQUEUED");
}

#[test]
fn a_keeper_works_apart_from_workers() {
    for home in Home::in_databases() {
        let home = home.in_mode("queue");
        let place = &home.place;
        let id = place.create(&["a", ""]);
        let worker = place.start(&["--type", "a", "--no-keeper"], "true");
        let mut command = place.command("env");
        command.args(listening_program().get_args()).args(["task", "keeper"]);
        // Nothing is on its way without one.
        assert_eq!(place.state(&id), "PENDING");
        let keeper = Worker::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        eventually("it is done", || (place.state(&id) == "SUCCEEDED").then_some(()));
        assert_eq!(rows(&worker.stop()).len(), 1);
        let output = keeper.stop();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(stderr(&output).contains("mode 'queue'"), "{}", stderr(&output));
    }
}

#[test]
fn a_server_keeps_its_tasks_going_and_wants_no_keeper() {
    for (mode, home) in Home::in_every_mode().into_iter().filter(|(_, home)| home.is_served()) {
        let place = &home.place;
        let run = place.run(&["task", "keeper"]).failed(2);
        assert!(run.stderr.contains("is a server, which keeps its tasks going by itself"), "{run:?}");
        // What the server sends on its way is drained, and nothing wrong is said of chores that are not done here.
        let id = place.create(&["a", ""]);
        for args in [&["--drain"][..], &["--drain", "--no-keeper"]] {
            let worker = [&["--json", "task", "worker", "--type", "a"], args, &["--", "true"]].concat();
            let run = place.run(&worker).done();
            assert!(run.stderr.starts_with("postrider: ") && run.stderr.lines().count() == 1, "{run:?}");
        }
        assert_eq!(place.state(&id), "SUCCEEDED", "{mode}");
    }
}

#[test]
fn a_drain_without_a_keeper_leaves_what_nobody_has_sent() {
    let home = Home::sqlite().in_mode("queue");
    let place = &home.place;
    let id = place.create(&["a", ""]);
    let run = place.run(&["task", "worker", "--type", "a", "--drain", "--no-keeper", "--", "true"]).done();
    assert!(run.stdout.is_empty() && run.stderr.contains("0 succeeded"), "{run:?}");
    assert_eq!(place.state(&id), "PENDING");
}
