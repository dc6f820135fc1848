//! `postrider schedule`

use postrider::Timestamp;
use serde_json::{Value, json};

use super::home::{Home, eventually};
use crate::scratch::text;
use crate::stderr;

fn time(value: &Value) -> Timestamp {
    text(value).parse().unwrap()
}

#[test]
fn a_schedule_creates_tasks_while_a_worker_runs() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let args =
            ["schedule", "create", "beat", "--type", "ping", "--every", "1s", "hello", "--tag", "t", "--priority", "8"];
        let made = scratch.row(&args);
        assert_eq!((&made["every"], &made["paused"], &made["is_new"]), (&json!("1s"), &json!(false), &json!(true)));
        assert!(made.get("last_run_at").is_none() && made.get("cron").is_none(), "{made}");
        let worker = scratch.start(&["--type", "ping"], "cat");
        let done = || scratch.rows(&["task", "list", "--schedule", "beat", "--state", "SUCCEEDED"]);
        let tasks = eventually("it has fired twice", || Some(done()).filter(|tasks| tasks.len() >= 2));
        assert_eq!((&tasks[0]["tags"], &tasks[0]["priority"]), (&json!(["t"]), &json!(8)), "{mode}");
        let shown = scratch.row(&["schedule", "show", "beat"]);
        assert!(time(&shown["next_run_at"]) > time(&shown["last_run_at"]), "{shown}");
        assert!(time(&shown["last_run_at"]) > time(&made["created_at"]), "{shown}");
        let last = text(&shown["last_task"]);
        eventually("the last one is done", || (scratch.state(&last) == "SUCCEEDED").then_some(()));
        assert_eq!(scratch.get(&last)["result"], "hello");

        let paused = scratch.row(&["schedule", "pause", "beat"]);
        assert_eq!(paused["paused"], true);
        assert!(paused.get("next_run_at").is_none(), "{paused}");
        // A paused schedule creates no tasks, but a trigger does.
        let made = scratch.row(&["schedule", "trigger", "beat"]);
        assert_eq!((&made["type"], &made["is_new"]), (&json!("ping"), &json!(true)));
        let id = text(&made["id"]);
        eventually("it is done", || (scratch.state(&id) == "SUCCEEDED").then_some(()));
        assert_eq!(scratch.get(&id)["schedule"], "beat");
        let shown = scratch.row(&["schedule", "show", "beat"]);
        assert_eq!(shown["last_run_at"], paused["last_run_at"], "{mode}");

        let resumed = scratch.row(&["schedule", "resume", "beat"]);
        let fired = |row: &Value| time(&row["last_run_at"]) >= time(&resumed["next_run_at"]);
        eventually("it goes on", || Some(scratch.row(&["schedule", "show", "beat"])).filter(fired));
        let output = worker.stop();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn a_schedule_is_stored_and_replaced_by_its_name() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let create = [
            "schedule",
            "create",
            "nightly",
            "--type",
            "report",
            "{}",
            "--cron",
            "30 2 * * *",
            "--time-zone",
            "Europe/Berlin",
            "--missed",
            "all",
            "--max-attempts",
            "5",
            "--key",
            "k",
            "--retry",
            "constant,delay=5s",
            "--deadline-in",
            "1h",
        ];
        let run = scratch.run(&create).done();
        assert!(
            run.stdout.starts_with("nightly  next run at ") && run.stderr.lines().all(|line| line.contains("created")),
            "{run:?}"
        );
        let shown = scratch.row(&["schedule", "show", "nightly"]);
        for (field, value) in [
            ("name", json!("nightly")),
            ("type", json!("report")),
            ("cron", json!("30 2 * * *")),
            ("time_zone", json!("Europe/Berlin")),
            ("missed", json!("all")),
            ("paused", json!(false)),
            ("payload", json!("{}")),
            ("max_attempts", json!(5)),
            ("ordering_key", json!("k")),
            ("deadline_in", json!("1h")),
            ("priority", json!(4)),
            ("tags", json!([])),
        ] {
            assert_eq!(shown[field], value, "{field}");
        }
        assert!(text(&shown["next_run_at"]).ends_with(":30:00Z"), "{shown}");
        assert_eq!(shown["retry_strategy"]["strategy"], "constant");

        scratch.run(&["schedule", "pause", "nightly"]).done();
        let change = ["--json", "schedule", "create", "nightly", "--type", "other", "--every", "1h"];
        let run = scratch.run_with(&change, b"from stdin").done();
        assert_eq!(run.stderr, "postrider: schedule 'nightly' existed and was replaced\n");
        let row = &run.rows()[0];
        assert_eq!(
            (&row["type"], &row["every"], &row["payload"]),
            (&json!("other"), &json!("1h"), &json!("from stdin"))
        );
        assert_eq!((&row["is_new"], &row["paused"], row.get("cron")), (&json!(false), &json!(true), None));
        assert!(row.get("max_attempts").is_none(), "an omitted option returns to its default: {row}");

        scratch.run(&["schedule", "create", "a", "--type", "x", "--every", "1d", ""]).done();
        let names: Vec<_> = scratch.rows(&["schedule", "list"]).iter().map(|row| text(&row["name"])).collect();
        assert_eq!(names, ["a", "nightly"]);
        let table = scratch.run(&["schedule", "list"]).done().stdout;
        let line = table.lines().find(|line| line.starts_with("nightly ")).unwrap();
        assert!(line.starts_with("nightly  other  every 1h") && line.ends_with("paused"), "{table}");

        assert_eq!(scratch.row(&["schedule", "delete", "nightly"]), json!({"name": "nightly", "outcome": "deleted"}));
        for command in ["show", "pause", "resume", "trigger", "delete"] {
            let run = scratch.run(&["schedule", command, "nightly"]).failed(1);
            assert!(run.stdout.is_empty() && run.stderr.contains("there is no schedule 'nightly'"), "{run:?}");
        }
    }
}

#[test]
fn an_invalid_schedule_is_refused_with_the_valid_form() {
    let scratch = Home::sqlite().scratch;
    let create =
        |args: &[&str]| scratch.run(&[&["schedule", "create", "s", "--type", "x", ""], args].concat()).failed(2).stderr;
    let refused = create(&["--cron", "61 * * * *"]);
    assert!(refused.contains("'61 * * * *' cannot be read (Number out of bounds); write five fields"), "{refused}");
    assert!(create(&["--cron", "* * * * *", "--time-zone", "Mars/Olympus"]).contains("'Mars/Olympus' is not known"));
    let run = scratch.run_with(&["schedule", "create", "s", "--type", "x", "--every", "1s"], b"\xff").failed(2);
    assert!(run.stderr.contains("the payload of a schedule must be text"), "{run:?}");
    assert!(scratch.rows(&["schedule", "list"]).is_empty());
}

#[test]
fn a_drain_fires_what_is_due() {
    let scratch = Home::sqlite().scratch;
    scratch.run(&["schedule", "create", "beat", "--type", "ping", "--every", "1s", ""]).done();
    eventually("its time has come", || {
        let next = time(&scratch.row(&["schedule", "show", "beat"])["next_run_at"]);
        (next < Timestamp::now()).then_some(())
    });
    assert!(scratch.drain("ping", "true").outcomes().iter().any(|outcome| outcome == "succeeded"));
}

#[test]
fn the_next_five_times_and_the_last_runs_of_a_schedule_are_shown() {
    let scratch = Home::sqlite().scratch;
    let berlin = ["--cron", "30 9 * * *", "--time-zone", "Europe/Berlin"];
    scratch.row(&[&["schedule", "create", "daily", "--type", "report", "{}"], &berlin[..]].concat());
    let row = scratch.row(&["schedule", "get", "daily"]);
    let next = row["next_runs"].as_array().unwrap();
    assert_eq!((next.len(), &next[0]["at"], &row["runs"]), (5, &row["next_run_at"], &json!([])));
    for pair in next.windows(2) {
        let hours = time(&pair[1]["at"]).since(time(&pair[0]["at"])).as_secs() / 3600;
        assert!((23..=25).contains(&hours), "{row}");
    }
    assert!(next.iter().all(|run| text(&run["local"]).ends_with(" 09:30 Europe/Berlin")), "{row}");
    assert_eq!(scratch.row(&["schedule", "list"])["next_runs"].as_array().unwrap().len(), 5);
    let shown = scratch.run(&["schedule", "show", "daily"]).done().stdout;
    assert_eq!(shown.matches(" 09:30 Europe/Berlin, in ").count(), 5, "{shown}");
    assert!(shown.contains("\nin words ") && shown.contains("09:30"), "{shown}");
    let listed = scratch.run(&["schedule", "list"]).done().stdout;
    assert_eq!(listed.matches(" 09:30 Europe/Berlin, in ").count(), 5, "{listed}");

    let runs: Vec<_> = (0..2).map(|_| text(&scratch.row(&["schedule", "trigger", "daily"])["id"])).collect();
    scratch.drain("report", "exit 65");
    let row = scratch.row(&["schedule", "show", "daily"]);
    let history: Vec<_> = row["runs"].as_array().unwrap().iter().map(|run| text(&run["task"])).collect();
    assert_eq!(history, [runs[1].as_str(), &runs[0]], "newest first");
    assert_eq!(row["runs"][0]["state"], "DEAD");
    let shown = scratch.run(&["schedule", "show", "daily"]).done().stdout;
    let lines: Vec<_> = shown.lines().filter(|line| line.starts_with("run ")).collect();
    assert!(lines.len() == 2 && lines[0].contains(&runs[1]) && lines[0].contains("DEAD: exit code 65"), "{shown}");
    scratch.run(&["schedule", "pause", "daily"]).done();
    assert_eq!(scratch.row(&["schedule", "show", "daily"])["next_runs"], json!([]));
}
