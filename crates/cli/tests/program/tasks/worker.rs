//! `postrider task worker` and the outcomes of its commands.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::home::{Home, TaskScratch, eventually};
use crate::scratch::text;
use crate::work::scratch::{rows, runs};
use crate::{stderr, stdout};

#[test]
fn a_task_that_always_fails_gets_all_attempts_and_dies_with_its_error() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let id = scratch.create(&["poison", "x", "--retry", "constant,delay=0s", "--max-attempts", "3"]);
        let script = r#"
            echo "$POSTRIDER_TASK_ATTEMPT of $POSTRIDER_TASK_MAX_ATTEMPTS" >> attempts
            for n in $(seq 30); do echo "line $n"; done >&2; exit 4"#;
        let run = scratch.drain("poison", script);
        assert_eq!(run.outcomes(), ["retried", "retried", "dead"], "{mode}");
        assert_eq!(run.rows()[2]["dead_reason"], "max_attempts");
        assert_eq!(std::fs::read_to_string(scratch.file("attempts")).unwrap(), "1 of 3\n2 of 3\n3 of 3\n");
        let task = scratch.get(&id);
        assert_eq!((&task["state"], &task["dead_reason"]), (&json!("DEAD"), &json!("max_attempts")));
        let error = text(&task["last_error"]);
        let lines: Vec<_> = error.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[1], lines[20]), (21, "exit code 4", "line 11", "line 30"));
        let attempts = task["attempts"].as_array().unwrap();
        assert!(attempts.len() == 3 && attempts.iter().all(|attempt| attempt["outcome"] == "failed"), "{task}");
        assert_eq!(attempts[2]["error"], task["last_error"]);
    }
}

#[test]
fn the_exit_code_decides_the_outcome() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        for script in ["exit 0", "exit 75", "exit 65", "exit 3", "kill -9 $$"] {
            scratch.create(&["any", script, "--retry", "constant,delay=1h"]);
        }
        let run = scratch.drain("any", r#"eval "$(cat)""#);
        let noted = |row: &Value| (text(&row["outcome"]), row["exit_code"].as_i64(), row["signal"].as_i64());
        let mut ends: Vec<_> = run.rows().iter().map(noted).collect();
        ends.sort();
        let end = |outcome: &str, code, signal| (outcome.to_owned(), code, signal);
        let expected = [
            end("dead", Some(65), None),
            end("retried", None, Some(9)),
            end("retried", Some(3), None),
            end("retried", Some(75), None),
            end("succeeded", Some(0), None),
        ];
        assert_eq!(ends, expected);
        assert!(run.stderr.contains("1 succeeded, 3 retried, 1 dead, 0 lost in "), "{run:?}");
        assert_eq!(scratch.row(&["task", "list", "--state", "DEAD"])["dead_reason"], "permanent");
        // A task that waits for its retry can be run now.
        let waiting = scratch.rows(&["task", "list", "--state", "ENQUEUED"]);
        assert_eq!(waiting.len(), 3);
        scratch.run(&["task", "retry", &text(&waiting[0]["id"])]).done();
        assert_eq!(scratch.drain("any", "true").outcomes(), ["succeeded"]);
    }
}

#[test]
fn progress_is_seen_while_the_command_runs_and_a_watch_ends_with_the_task() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let id = scratch.create(&["slow", ""]);
        let script = r#"
            echo "a log line" >&2
            echo "postrider:progress 0.4 two of five" >&2
            until test -e go; do sleep 0.02; done
            echo "postrider:progress half" >&2
            echo done"#;
        let worker = scratch.start(&["--type", "slow"], script);
        let task =
            eventually("progress is told", || Some(scratch.get(&id)).filter(|task| task.get("progress").is_some()));
        assert_eq!(task["progress"], json!({"fraction": 0.4, "text": "two of five"}));
        assert_eq!(task["state"], "PROCESSING");
        let mut watch = scratch.command(crate::scratch::PROGRAM);
        let watch = watch.args(["--json", "task", "watch", &id]).spawn().unwrap();
        scratch.touch("go");
        let watched = watch.wait_with_output().unwrap();
        assert!(watched.status.success(), "{}", stderr(&watched));
        let seen: Vec<Value> = rows(&watched);
        assert_eq!(seen.last().unwrap()["state"], "SUCCEEDED", "{mode}: {seen:?}");
        let output = worker.stop();
        let noted = stderr(&output);
        assert!(noted.contains("a log line\n") && !noted.contains("two of five"), "{noted}");
        // An invalid progress line passes as ordinary output.
        assert!(noted.contains("postrider:progress half\n"), "{noted}");
        assert!(noted.contains(&format!("the progress of task {id} cannot be read")), "{noted}");
        let task = scratch.get(&id);
        assert_eq!((&task["result"], &task["progress"]["fraction"]), (&json!("done\n"), &json!(0.4)));
    }
}

#[test]
fn a_watch_prints_every_change_and_the_end() {
    let scratch = Home::sqlite().scratch;
    let id = scratch.create(&["slow", "", "--retry", "constant,delay=0s", "--max-attempts", "2"]);
    let mut watch = scratch.command(crate::scratch::PROGRAM);
    let log = std::fs::File::create(scratch.file("watched")).unwrap();
    let mut watch = watch.args(["task", "watch", &id]).stdout(log).spawn().unwrap();
    let watched = || std::fs::read_to_string(scratch.file("watched")).unwrap();
    eventually("it is due", || (watched() == "PENDING    due\n").then_some(()));
    let script = r#"
        echo "postrider:progress 0.$POSTRIDER_TASK_ATTEMPT step" >&2
        until test -e "go$POSTRIDER_TASK_ATTEMPT"; do sleep 0.02; done; exit 3"#;
    let worker = scratch.start(&["--type", "slow"], script);
    for attempt in [1, 2] {
        let line = format!("PROCESSING attempt {attempt}/2, {attempt}0 % step\n");
        eventually("the attempt is seen", || watched().contains(&line).then_some(()));
        scratch.touch(&format!("go{attempt}"));
    }
    assert_eq!(watch.wait().unwrap().code(), Some(1));
    let watched = watched();
    assert_eq!(watched.lines().last(), Some("DEAD       max_attempts, attempt 2/2: exit code 3"), "{watched}");
    worker.stop();
}

#[test]
fn a_command_whose_task_is_canceled_is_stopped_within_a_second() {
    for (mode, home) in Home::in_every_mode() {
        let mut waits = Vec::new();
        // Measured from before the call, which takes time itself. On a busy machine it may take longer, but not each time.
        while waits.last().is_none_or(|wait| *wait >= Duration::from_secs(2)) {
            assert!(waits.len() < 5, "{mode}: {waits:?}");
            waits.push(time_to_cancel(mode, &home.scratch));
        }
    }
}

/// The time from the cancel of a running task to the SIGTERM of its command.
fn time_to_cancel(mode: &str, scratch: &TaskScratch) -> Duration {
    let id = scratch.create(&["slow", ""]);
    let script = "trap 'date +%s%N > told; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let worker = scratch.start(&["--type", "slow", "--workers", "2"], script);
    let command = scratch.process("pid");
    let canceled = std::time::SystemTime::now();
    scratch.run(&["task", "cancel", &id]).done();
    eventually("the command is stopped", || (!runs(command)).then_some(()));
    let stopped: u128 = std::fs::read_to_string(scratch.file("told")).unwrap().trim().parse().unwrap();
    let requested = canceled.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    // The worker can run another command.
    std::fs::remove_file(scratch.file("pid")).unwrap();
    let other = scratch.create(&["slow", ""]);
    scratch.process("pid");
    scratch.run(&["task", "cancel", &other]).done();
    let output = worker.stop();
    let rows = rows(&output);
    assert_eq!(rows[0]["outcome"], "canceled", "{mode}: {rows:?}");
    assert!(stderr(&output).contains("0 lost, 2 canceled"), "{}", stderr(&output));
    let task = scratch.get(&id);
    assert_eq!((&task["state"], &task["attempts"][0]["outcome"]), (&json!("CANCELED"), &json!("canceled")));
    assert!(task.get("result").is_none(), "{task}");
    std::fs::remove_file(scratch.file("pid")).unwrap();
    Duration::from_nanos((stopped - requested) as u64)
}

#[test]
fn a_command_that_times_out_is_stopped_with_everything_it_started() {
    let scratch = Home::sqlite().scratch;
    let id = scratch.create(&["slow", "", "--max-attempts", "1"]);
    let script = "sleep 1000 & echo $! > pid; echo working >&2; wait";
    let args = ["--json", "task", "worker", "--type", "slow", "--drain", "--timeout", "2s", "--", "sh", "-c", script];
    let run = scratch.run(&args).done();
    assert_eq!((run.outcomes(), run.rows()[0]["signal"].as_i64()), (vec!["dead".to_owned()], Some(15)));
    assert!(!runs(scratch.process("pid")));
    assert_eq!(scratch.get(&id)["last_error"], "stopped after 2s, its --timeout\nworking");
}

#[test]
fn a_task_past_its_deadline_dies_while_its_command_runs() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let id = scratch.create(&["slow", "", "--deadline-in", "2s"]);
        let worker = scratch.start(&["--type", "slow"], "echo $$ > pid; exec sleep 1000");
        let command = scratch.process("pid");
        eventually("the command is stopped", || (!runs(command)).then_some(()));
        let output = worker.stop();
        assert_eq!(
            (&rows(&output)[0]["outcome"], &rows(&output)[0]["dead_reason"]),
            (&json!("dead"), &json!("deadline"))
        );
        let task = scratch.get(&id);
        assert_eq!((&task["state"], &task["dead_reason"]), (&json!("DEAD"), &json!("deadline")), "{mode}");
    }
}

#[test]
fn a_result_that_is_too_large_is_a_permanent_failure() {
    let scratch = Home::sqlite().scratch.with("POSTRIDER__COMMON__MESSAGING__MAX_MESSAGE_BYTES", "10000");
    let id = scratch.create(&["big", ""]);
    let fits = scratch.create(&["fits", ""]);
    let run = scratch.drain("big", "head -c 3000000 /dev/zero");
    assert_eq!(run.outcomes(), ["dead"]);
    let task = scratch.get(&id);
    let error = "its result has 3000000 bytes, and the limit is 10000; store it elsewhere and print a reference to it";
    assert_eq!((&task["dead_reason"], &task["last_error"]), (&json!("permanent"), &json!(error)));
    scratch.drain("fits", "head -c 10000 /dev/zero | tr '\\0' x");
    assert_eq!(text(&scratch.get(&fits)["result"]).len(), 10_000);
}

#[test]
fn tasks_of_one_key_run_in_order_and_several_types_share_a_worker() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        for n in 0..8 {
            scratch.create(&[if n % 2 == 0 { "even" } else { "odd" }, &format!("{n}\n"), "--key", "k"]);
        }
        let script = r#"cat >> "order-$POSTRIDER_TASK_TYPE""#;
        let args = ["--json", "task", "worker", "--type", "even", "--type", "odd", "--type", "odd", "--workers", "4"];
        let run = scratch.run(&[&args[..], &["--drain", "--", "sh", "-c", script]].concat()).done();
        assert_eq!(run.rows().len(), 8, "{mode}: {run:?}");
        let order = |name: &str| std::fs::read_to_string(scratch.file(name)).unwrap();
        assert_eq!((order("order-even").as_str(), order("order-odd").as_str()), ("0\n2\n4\n6\n", "1\n3\n5\n7\n"));
    }
}

#[test]
fn a_command_that_disappears_stops_the_worker_and_releases_the_task() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let program = scratch.file("handler");
        std::fs::write(&program, "#!/bin/sh\nrm \"$0\"\n").unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let ids = [scratch.create(&["a", ""]), scratch.create(&["a", ""])];
        let run = scratch.run(&["task", "worker", "--type", "a", "--drain", "--", program.to_str().unwrap()]).failed(1);
        assert!(run.stderr.contains("cannot run '") && run.stderr.contains("1 released"), "{mode}: {run:?}");
        let mut tasks = ids.map(|id| scratch.get(&id));
        tasks.sort_by_key(|task| text(&task["state"]));
        let (left, done) = (&tasks[0], &tasks[1]);
        assert_eq!(done["state"], "SUCCEEDED");
        assert_eq!((&left["attempt_count"], &left["attempts"]), (&json!(0), &json!([])), "{mode}: {left}");
    }
}

#[test]
fn a_waiting_worker_gets_a_new_task_soon() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let worker = scratch.start(&["--type", "quick"], "true");
        let first = scratch.create(&["quick", ""]);
        eventually("it works", || (scratch.state(&first) == "SUCCEEDED").then_some(()));
        let begun = Instant::now();
        let id = scratch.create(&["quick", ""]);
        eventually("it is done", || (scratch.state(&id) == "SUCCEEDED").then_some(()));
        assert!(begun.elapsed() < Duration::from_secs(10), "{mode}: {:?}", begun.elapsed());
        let output = worker.stop();
        assert!(output.status.success() && stdout(&output).lines().count() == 2, "{}", stderr(&output));
    }
}
