//! The stop of a worker and the outcome of its running tasks.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use super::home::{Home, eventually};
use crate::listening_program;
use crate::scratch::text;
use crate::stderr;
use crate::work::scratch::{Worker, rows, runs};

#[test]
fn running_commands_may_finish_and_no_new_one_starts() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let (one, two) = (scratch.create(&["a", "", "--priority", "9"]), scratch.create(&["a", "", "--priority", "0"]));
        let script = "echo $$ > pid; until test -e go; do sleep 0.02; done; echo finished";
        let mut worker = scratch.start(&["--type", "a"], script);
        scratch.process("pid");
        let printed = worker.finish_notice();
        scratch.touch("go");
        let output = worker.wait();
        assert!(output.status.success(), "{mode}: {}", stderr(&output));
        assert_eq!(rows(&output).len(), 1, "{mode}");
        assert!(
            printed.contains("finishing running work; a second signal ends it at once"),
            "{printed}{}",
            stderr(&output)
        );
        assert_eq!(scratch.get(&one)["result"], "finished\n");
        let left = scratch.get(&two);
        assert_eq!((&left["attempt_count"], &left["attempts"]), (&json!(0), &json!([])), "{mode}: {left}");
    }
}

#[test]
fn a_command_that_does_not_finish_in_time_is_a_failed_attempt_even_the_last() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let (first, last) = (scratch.create(&["a", ""]), scratch.create(&["a", "", "--max-attempts", "1"]));
        // The command exits with 0 on SIGTERM.
        let script = r#"trap 'exit 0' TERM; touch "begun-$POSTRIDER_TASK_ID"; while :; do sleep 0.02; done"#;
        let worker = scratch.start(&["--type", "a", "--workers", "2", "--graceful-timeout", "100ms"], script);
        for id in [&first, &last] {
            eventually("it runs", || scratch.file(&format!("begun-{id}")).exists().then_some(()));
        }
        let output = worker.stop();
        assert!(output.status.success(), "{mode}: {}", stderr(&output));
        let task = scratch.get(&first);
        assert_eq!(task["state"], "ENQUEUED", "{mode}");
        assert!(text(&task["last_error"]).starts_with("stopped with the worker"), "{task}");
        let task = scratch.get(&last);
        assert_eq!((&task["state"], &task["dead_reason"]), (&json!("DEAD"), &json!("max_attempts")), "{mode}");
    }
}

#[test]
fn the_second_signal_kills_running_commands() {
    let scratch = Home::sqlite().scratch;
    let id = scratch.create(&["a", ""]);
    let script = "trap '' TERM; sleep 1000 & echo $! > pid; wait; sleep 1000";
    let worker = scratch.start(&["--type", "a", "--graceful-timeout", "1h"], script);
    let grandchild = scratch.process("pid");
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
    assert_eq!(scratch.state(&id), "ENQUEUED");
}

#[test]
fn a_keeper_runs_without_a_worker() {
    for home in Home::in_databases() {
        let home = home.in_mode("queue");
        let scratch = &home.scratch;
        let id = scratch.create(&["a", ""]);
        let worker = scratch.start(&["--type", "a", "--no-keeper"], "true");
        let mut command = scratch.command("env");
        command.args(listening_program().get_args()).args(["task", "keeper"]);
        // Without a keeper the task is not enqueued.
        assert_eq!(scratch.state(&id), "PENDING");
        let keeper = Worker::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        eventually("it is done", || (scratch.state(&id) == "SUCCEEDED").then_some(()));
        assert_eq!(rows(&worker.stop()).len(), 1);
        let output = keeper.stop();
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(stderr(&output).contains("mode 'queue'"), "{}", stderr(&output));
    }
}

#[test]
fn a_server_runs_the_chores_of_its_tasks_and_refuses_a_keeper() {
    for (mode, home) in Home::in_every_mode().into_iter().filter(|(_, home)| home.is_served()) {
        let scratch = &home.scratch;
        let run = scratch.run(&["task", "keeper"]).failed(2);
        assert!(run.stderr.contains("is a server, which runs the chores of its tasks itself"), "{run:?}");
        // The drain handles tasks that the server enqueues, and prints no warning about chores.
        let id = scratch.create(&["a", ""]);
        for args in [&["--drain"][..], &["--drain", "--no-keeper"]] {
            let worker = [&["--json", "task", "worker", "--type", "a"], args, &["--", "true"]].concat();
            let run = scratch.run(&worker).done();
            assert!(run.stderr.starts_with("postrider: ") && run.stderr.lines().count() == 1, "{run:?}");
        }
        assert_eq!(scratch.state(&id), "SUCCEEDED", "{mode}");
    }
}

#[test]
fn a_drain_without_a_keeper_leaves_tasks_that_are_not_enqueued() {
    let home = Home::sqlite().in_mode("queue");
    let scratch = &home.scratch;
    let id = scratch.create(&["a", ""]);
    let run = scratch.run(&["task", "worker", "--type", "a", "--drain", "--no-keeper", "--", "true"]).done();
    assert!(run.stdout.is_empty() && run.stderr.contains("0 succeeded"), "{run:?}");
    assert_eq!(scratch.state(&id), "PENDING");
}
