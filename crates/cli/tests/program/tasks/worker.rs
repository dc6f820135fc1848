//! What a worker makes of its commands.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::home::{Home, TaskPlace, eventually};
use crate::place::text;
use crate::work::place::{rows, runs};
use crate::{stderr, stdout};

#[test]
fn a_task_that_always_fails_is_tried_as_often_as_it_may_be_and_dead_with_its_last_words() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        let id = place.create(&["poison", "x", "--retry", "constant,delay=0s", "--max-attempts", "3"]);
        let script = r#"
            echo "$POSTRIDER_TASK_ATTEMPT of $POSTRIDER_TASK_MAX_ATTEMPTS" >> attempts
            for n in $(seq 30); do echo "line $n"; done >&2; exit 4"#;
        let run = place.drain("poison", script);
        assert_eq!(run.outcomes(), ["retried", "retried", "dead"], "{mode}");
        assert_eq!(run.rows()[2]["dead_reason"], "max_attempts");
        assert_eq!(std::fs::read_to_string(place.file("attempts")).unwrap(), "1 of 3\n2 of 3\n3 of 3\n");
        let task = place.get(&id);
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
fn the_end_of_the_command_decides() {
    for home in Home::everywhere() {
        let place = &home.place;
        for script in ["exit 0", "exit 75", "exit 65", "exit 3", "kill -9 $$"] {
            place.create(&["any", script, "--retry", "constant,delay=1h"]);
        }
        let run = place.drain("any", r#"eval "$(cat)""#);
        let told = |row: &Value| (text(&row["outcome"]), row["exit_code"].as_i64(), row["signal"].as_i64());
        let mut ends: Vec<_> = run.rows().iter().map(told).collect();
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
        assert_eq!(place.row(&["task", "list", "--state", "DEAD"])["dead_reason"], "permanent");
        // What waits for its retry is tried when somebody says so.
        let waiting = place.rows(&["task", "list", "--state", "ENQUEUED"]);
        assert_eq!(waiting.len(), 3);
        place.run(&["task", "retry", &text(&waiting[0]["id"])]).done();
        assert_eq!(place.drain("any", "true").outcomes(), ["succeeded"]);
    }
}

#[test]
fn progress_is_seen_while_the_command_runs_and_a_watch_ends_with_the_task() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        let id = place.create(&["slow", ""]);
        let script = r#"
            echo "a log line" >&2
            echo "postrider:progress 0.4 two of five" >&2
            until test -e go; do sleep 0.02; done
            echo "postrider:progress half" >&2
            echo done"#;
        let worker = place.start(&["--type", "slow"], script);
        let task =
            eventually("progress is told", || Some(place.get(&id)).filter(|task| task.get("progress").is_some()));
        assert_eq!(task["progress"], json!({"fraction": 0.4, "text": "two of five"}));
        assert_eq!(task["state"], "PROCESSING");
        let mut watch = place.command(crate::place::PROGRAM);
        let watch = watch.args(["--json", "task", "watch", &id]).spawn().unwrap();
        place.touch("go");
        let watched = watch.wait_with_output().unwrap();
        assert!(watched.status.success(), "{}", stderr(&watched));
        let seen: Vec<Value> = rows(&watched);
        assert_eq!(seen.last().unwrap()["state"], "SUCCEEDED", "{mode}: {seen:?}");
        let output = worker.stop();
        let told = stderr(&output);
        assert!(told.contains("a log line\n") && !told.contains("two of five"), "{told}");
        // What cannot be read as progress is a line like any other.
        assert!(told.contains("postrider:progress half\n"), "{told}");
        assert!(told.contains(&format!("the progress of task {id} cannot be read")), "{told}");
        let task = place.get(&id);
        assert_eq!((&task["result"], &task["progress"]["fraction"]), (&json!("done\n"), &json!(0.4)));
    }
}

#[test]
fn a_watch_tells_every_change_and_how_it_ended() {
    let place = Home::sqlite().place;
    let id = place.create(&["slow", "", "--retry", "constant,delay=0s", "--max-attempts", "2"]);
    let mut watch = place.command(crate::place::PROGRAM);
    let log = std::fs::File::create(place.file("watched")).unwrap();
    let mut watch = watch.args(["task", "watch", &id]).stdout(log).spawn().unwrap();
    let watched = || std::fs::read_to_string(place.file("watched")).unwrap();
    eventually("it is due", || (watched() == "PENDING    due\n").then_some(()));
    let script = r#"
        echo "postrider:progress 0.$POSTRIDER_TASK_ATTEMPT step" >&2
        until test -e "go$POSTRIDER_TASK_ATTEMPT"; do sleep 0.02; done; exit 3"#;
    let worker = place.start(&["--type", "slow"], script);
    for attempt in [1, 2] {
        let line = format!("PROCESSING attempt {attempt}/2, {attempt}0 % step\n");
        eventually("the attempt is seen", || watched().contains(&line).then_some(()));
        place.touch(&format!("go{attempt}"));
    }
    assert_eq!(watch.wait().unwrap().code(), Some(1));
    let watched = watched();
    assert_eq!(watched.lines().last(), Some("DEAD       max_attempts, attempt 2/2: exit code 3"), "{watched}");
    worker.stop();
}

#[test]
fn a_command_whose_task_is_canceled_is_told_within_a_second() {
    for (mode, home) in Home::in_every_mode() {
        let mut waits = Vec::new();
        // From before the call, which takes some time of its own. On a busy machine it may take longer, but not each time.
        while waits.last().is_none_or(|wait| *wait >= Duration::from_secs(2)) {
            assert!(waits.len() < 5, "{mode}: {waits:?}");
            waits.push(told_of_a_cancel(mode, &home.place));
        }
    }
}

/// How long the command of a running task took to be told that the task was canceled.
fn told_of_a_cancel(mode: &str, place: &TaskPlace) -> Duration {
    let id = place.create(&["slow", ""]);
    let script = "trap 'date +%s%N > told; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let worker = place.start(&["--type", "slow", "--workers", "2"], script);
    let command = place.process("pid");
    let canceled = std::time::SystemTime::now();
    place.run(&["task", "cancel", &id]).done();
    eventually("the command is stopped", || (!runs(command)).then_some(()));
    let told: u128 = std::fs::read_to_string(place.file("told")).unwrap().trim().parse().unwrap();
    let asked = canceled.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    // The worker has its place free again.
    std::fs::remove_file(place.file("pid")).unwrap();
    let other = place.create(&["slow", ""]);
    place.process("pid");
    place.run(&["task", "cancel", &other]).done();
    let output = worker.stop();
    let rows = rows(&output);
    assert_eq!(rows[0]["outcome"], "canceled", "{mode}: {rows:?}");
    assert!(stderr(&output).contains("0 lost, 2 canceled"), "{}", stderr(&output));
    let task = place.get(&id);
    assert_eq!((&task["state"], &task["attempts"][0]["outcome"]), (&json!("CANCELED"), &json!("canceled")));
    assert!(task.get("result").is_none(), "{task}");
    std::fs::remove_file(place.file("pid")).unwrap();
    Duration::from_nanos((told - asked) as u64)
}

#[test]
fn a_command_that_runs_too_long_is_stopped_with_all_that_it_started() {
    let place = Home::sqlite().place;
    let id = place.create(&["slow", "", "--max-attempts", "1"]);
    let script = "sleep 1000 & echo $! > pid; echo working >&2; wait";
    let args = ["--json", "task", "worker", "--type", "slow", "--drain", "--timeout", "2s", "--", "sh", "-c", script];
    let run = place.run(&args).done();
    assert_eq!((run.outcomes(), run.rows()[0]["signal"].as_i64()), (vec!["dead".to_owned()], Some(15)));
    assert!(!runs(place.process("pid")));
    assert_eq!(place.get(&id)["last_error"], "stopped after 2s, its --timeout\nworking");
}

#[test]
fn a_task_that_is_too_late_is_dead_while_its_command_runs() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        let id = place.create(&["slow", "", "--deadline-in", "2s"]);
        let worker = place.start(&["--type", "slow"], "echo $$ > pid; exec sleep 1000");
        let command = place.process("pid");
        eventually("the command is stopped", || (!runs(command)).then_some(()));
        let output = worker.stop();
        assert_eq!(
            (&rows(&output)[0]["outcome"], &rows(&output)[0]["dead_reason"]),
            (&json!("dead"), &json!("deadline"))
        );
        let task = place.get(&id);
        assert_eq!((&task["state"], &task["dead_reason"]), (&json!("DEAD"), &json!("deadline")), "{mode}");
    }
}

#[test]
fn a_result_that_is_too_large_is_refused_and_told() {
    let place = Home::sqlite().place.with("POSTRIDER__COMMON__MESSAGING__MAX_MESSAGE_BYTES", "10000");
    let id = place.create(&["big", ""]);
    let fits = place.create(&["fits", ""]);
    let run = place.drain("big", "head -c 3000000 /dev/zero");
    assert_eq!(run.outcomes(), ["dead"]);
    let task = place.get(&id);
    let error = "its result has 3000000 bytes, at most 10000 are allowed; print where it is instead";
    assert_eq!((&task["dead_reason"], &task["last_error"]), (&json!("permanent"), &json!(error)));
    place.drain("fits", "head -c 10000 /dev/zero | tr '\\0' x");
    assert_eq!(text(&place.get(&fits)["result"]).len(), 10_000);
}

#[test]
fn tasks_of_one_key_run_in_order_and_several_types_share_a_worker() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        for n in 0..8 {
            place.create(&[if n % 2 == 0 { "even" } else { "odd" }, &format!("{n}\n"), "--key", "k"]);
        }
        let script = r#"cat >> "order-$POSTRIDER_TASK_TYPE""#;
        let args = ["--json", "task", "worker", "--type", "even", "--type", "odd", "--type", "odd", "--workers", "4"];
        let run = place.run(&[&args[..], &["--drain", "--", "sh", "-c", script]].concat()).done();
        assert_eq!(run.rows().len(), 8, "{mode}: {run:?}");
        let order = |name: &str| std::fs::read_to_string(place.file(name)).unwrap();
        assert_eq!((order("order-even").as_str(), order("order-odd").as_str()), ("0\n2\n4\n6\n", "1\n3\n5\n7\n"));
    }
}

#[test]
fn a_command_that_goes_away_ends_the_worker_and_gives_the_task_back() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        let program = place.file("handler");
        std::fs::write(&program, "#!/bin/sh\nrm \"$0\"\n").unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let ids = [place.create(&["a", ""]), place.create(&["a", ""])];
        let run = place.run(&["task", "worker", "--type", "a", "--drain", "--", program.to_str().unwrap()]).failed(1);
        assert!(run.stderr.contains("cannot run '") && run.stderr.contains("1 given back"), "{mode}: {run:?}");
        let mut tasks = ids.map(|id| place.get(&id));
        tasks.sort_by_key(|task| text(&task["state"]));
        let (left, done) = (&tasks[0], &tasks[1]);
        assert_eq!(done["state"], "SUCCEEDED");
        assert_eq!((&left["attempt_count"], &left["attempts"]), (&json!(0), &json!([])), "{mode}: {left}");
    }
}

#[test]
fn a_worker_that_waits_has_a_task_soon_after_it_was_made() {
    for (mode, home) in Home::in_every_mode() {
        let place = &home.place;
        let worker = place.start(&["--type", "quick"], "true");
        let first = place.create(&["quick", ""]);
        eventually("it works", || (place.state(&first) == "SUCCEEDED").then_some(()));
        let begun = Instant::now();
        let id = place.create(&["quick", ""]);
        eventually("it is done", || (place.state(&id) == "SUCCEEDED").then_some(()));
        assert!(begun.elapsed() < Duration::from_secs(10), "{mode}: {:?}", begun.elapsed());
        let output = worker.stop();
        assert!(output.status.success() && stdout(&output).lines().count() == 2, "{}", stderr(&output));
    }
}
