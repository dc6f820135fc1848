//! `postrider task` and `postrider schedule`
#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic")]

mod elsewhere;
mod frozen;
mod home;
mod killed;
mod listing;
mod replay;
mod schedules;
mod stopping;
mod worker;

use serde_json::json;

use crate::scratch::{Run, Scratch, text};
use home::Home;
pub(crate) use home::eventually;

#[test]
fn a_task_is_created_run_and_has_its_result() {
    for (mode, home) in Home::in_every_mode() {
        let scratch = &home.scratch;
        let made = scratch.row(&["task", "create", "greet", "Anna", "--tag", "a", "--tag", "b", "--priority", "7"]);
        let id = text(&made["id"]);
        assert_eq!(made, json!({"id": id, "type": "greet", "state": "PENDING", "is_new": true}));
        let before = scratch.row(&["task", "get", &id]);
        assert_eq!(before["attempts"], json!([]));
        for absent in ["result", "worker", "started_at", "finished_at", "last_error", "deadline", "ordering_key"] {
            assert!(before.get(absent).is_none(), "{absent} in {before}");
        }

        let run = scratch.drain("greet", r#"printf 'hello %s' "$(cat)"; echo to the log >&2"#);
        let row = &run.rows()[0];
        assert_eq!((&row["id"], &row["type"], &row["outcome"]), (&json!(id), &json!("greet"), &json!("succeeded")));
        assert_eq!((&row["attempt"], &row["exit_code"]), (&json!(1), &json!(0)));
        let (log, summary) = run.stderr.split_once('\n').unwrap();
        assert_eq!(log, "to the log");
        assert!(summary.starts_with("postrider: 1 succeeded, 0 retried, 0 dead, 0 lost in "), "{run:?}");

        let task = scratch.row(&["task", "get", &id]);
        assert_eq!((&task["state"], &task["result"]), (&json!("SUCCEEDED"), &json!("hello Anna")), "{mode}");
        assert_eq!(
            (&task["payload"], &task["priority"], &task["tags"]),
            (&json!("Anna"), &json!(7), &json!(["a", "b"]))
        );
        assert_eq!((&task["attempt_count"], &task["max_attempts"]), (&json!(1), &json!(24)));
        let times = ["created_at", "started_at", "finished_at"].map(|time| text(&task[time]));
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(task.get("enqueued_at").is_some(), mode == "queue", "{task}");
        let attempt = &task["attempts"][0];
        assert_eq!((&attempt["attempt"], &attempt["outcome"]), (&json!(1), &json!("succeeded")));
        assert_eq!(attempt["worker"], task["worker"]);
        assert_eq!(scratch.run(&["task", "get", &id, "--result"]).done().stdout, "hello Anna");
        assert_eq!(scratch.run(&["task", "get", &id, "--payload"]).done().stdout, "Anna");
    }
}

#[test]
fn a_command_gets_all_fields_of_its_task() {
    let home = Home::sqlite();
    let scratch = &home.scratch.with("POSTRIDER_TASK_OUTER", "from an outer handler");
    let id =
        scratch.create(&["mail.send", "hello", "--tag", "a b", "--key", "k", "--priority", "2", "--max-attempts", "9"]);
    let script = r#"
        printf '%s|' "$(cat)" "$POSTRIDER_TASK_ID" "$POSTRIDER_TASK_TYPE" "$POSTRIDER_TASK_ATTEMPT" \
            "$POSTRIDER_TASK_MAX_ATTEMPTS" "$POSTRIDER_TASK_TAGS" "$POSTRIDER_TASK_ORDERING_KEY" \
            "$POSTRIDER_TASK_PRIORITY" "${POSTRIDER_TASK_OUTER-none}"
        test -n "$POSTRIDER_TASK_CREATED_AT" -a -n "$POSTRIDER_TASK_SCHEDULED_FOR" -a -n "$POSTRIDER_TASK_WORKER" &&
            test "$POSTRIDER_URL" = "sqlite:$PWD/queues.db""#;
    scratch.drain("mail.send", script);
    let task = scratch.row(&["task", "get", &id]);
    assert_eq!(task["result"], format!(r#"hello|{id}|mail.send|1|9|["a b"]|k|2|none|"#), "{task}");
}

#[test]
fn any_bytes_are_a_payload_and_a_result() {
    let scratch = Home::sqlite().scratch;
    let run = scratch.run_with(&["--json", "task", "create", "copy"], b"\xff\0\n").done();
    let id = text(&run.rows()[0]["id"]);
    scratch.drain("copy", "cat");
    let task = scratch.row(&["task", "get", &id]);
    assert_eq!((&task["payload_base64"], &task["result_base64"]), (&json!("/wAK"), &json!("/wAK")));
    assert!(task.get("payload").is_none() && task.get("result").is_none(), "{task}");
    let mut get = scratch.command(crate::scratch::PROGRAM);
    assert_eq!(get.args(["task", "get", &id, "--result"]).output().unwrap().stdout, b"\xff\0\n");
    // Without output there is no result.
    let id = scratch.create(&["quiet", ""]);
    scratch.drain("quiet", "true");
    assert!(scratch.row(&["task", "get", &id]).get("result").is_none());
    let run = scratch.run(&["task", "get", &id, "--result"]).failed(1);
    assert!(run.stdout.is_empty() && run.stderr.contains("is SUCCEEDED and has no result"), "{run:?}");
    assert!(scratch.run(&["--json", "task", "get", &id, "--payload"]).failed(2).stderr.contains("omit one of them"));
}

#[test]
fn an_idempotency_key_makes_one_task_even_after_it_ended() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let create = ["--json", "task", "create", "charge", "7", "--idempotency-key", "order-7"];
        let first = scratch.run(&create).done();
        assert_eq!(
            (first.rows()[0]["is_new"].clone(), first.stderr.contains("no task was created")),
            (json!(true), false)
        );
        scratch.drain("charge", "true");
        let second = scratch.run(&create).done();
        let id = text(&first.rows()[0]["id"]);
        let row = json!({"id": id, "type": "charge", "state": "SUCCEEDED", "is_new": false});
        assert_eq!(second.rows(), [row]);
        let note = format!("postrider: task {id} has this idempotency key and is SUCCEEDED; no task was created\n");
        assert_eq!(second.stderr, note);
        // A key belongs to its type.
        let other = scratch.row(&["task", "create", "refund", "7", "--idempotency-key", "order-7"]);
        assert_eq!(other["is_new"], true);
        assert_eq!(scratch.row(&["task", "get", &id])["idempotency_key"], "order-7");
    }
}

#[test]
fn times_and_limits_are_stored_as_given() {
    let scratch = Home::sqlite().scratch;
    let id = scratch.create(&[
        "report",
        "{}",
        "--at",
        "2099-01-01T00:00:00Z",
        "--deadline",
        "2099-01-02T00:00:00+01:00",
        "--retry",
        "constant,delay=5s,attempts=7",
        "--id",
        "0190163d-8694-739b-aea5-966c26f8ad91",
    ]);
    assert_eq!(id, "0190163d-8694-739b-aea5-966c26f8ad91");
    let task = scratch.row(&["task", "get", &id]);
    assert_eq!(task["scheduled_for"], "2099-01-01T00:00:00Z");
    assert_eq!((&task["deadline"], &task["max_attempts"]), (&json!("2099-01-01T23:00:00Z"), &json!(7)));
    assert_eq!(task["retry_strategy"]["strategy"], "constant");
    scratch.drain("report", "true");
    assert_eq!(scratch.row(&["task", "get", &id])["state"], "PENDING", "it is not due");
    assert_eq!(scratch.row(&["task", "retry", &id]), json!({"id": id, "outcome": "due_now"}));
    scratch.drain("report", "true");
    assert_eq!(scratch.row(&["task", "get", &id])["state"], "SUCCEEDED");

    let late = scratch.create(&["report", "{}", "--in", "1h", "--deadline-in", "0s"]);
    scratch.drain("report", "true");
    let task = scratch.row(&["task", "get", &late]);
    assert_eq!((&task["state"], &task["dead_reason"]), (&json!("DEAD"), &json!("deadline")));
    let endless = scratch.create(&["report", "{}", "--in", "1h", "--retry", "constant,delay=5s,attempts=forever"]);
    assert_eq!(scratch.row(&["task", "get", &endless])["max_attempts"], u32::MAX);
    let shown = scratch.run(&["task", "list", "--state", "pending"]).done().stdout;
    assert!(shown.lines().nth(1).unwrap().contains("PENDING         0 "), "{shown}");
}

#[test]
fn a_canceled_task_stays_canceled_and_conflicts_are_reported() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let (one, done) = (scratch.create(&["a", ""]), scratch.create(&["b", ""]));
        scratch.drain("b", "true");
        let unknown = "0190163d-8694-739b-aea5-966c26f8ad91";
        let run = scratch.run(&["--json", "task", "cancel", &one, &done, unknown, &one]).failed(1);
        assert_eq!(run.outcomes(), ["canceled", "conflict", "not_found"]);
        let rows = run.rows();
        assert_eq!((&rows[0]["was"], &rows[1]["was"]), (&json!("PENDING"), &json!("SUCCEEDED")));
        assert!(run.stderr.contains("is SUCCEEDED and cannot be canceled; nothing was changed"), "{run:?}");
        scratch.drain("a", "true");
        let task = scratch.row(&["task", "get", &one]);
        assert_eq!((&task["state"], &task["attempt_count"]), (&json!("CANCELED"), &json!(0)));
        let run = scratch.run(&["--json", "task", "retry", &one]).failed(1);
        assert!(run.stderr.contains("is CANCELED and cannot be retried"), "{run:?}");
        assert_eq!(scratch.run(&["task", "watch", &one]).failed(1).stdout, "CANCELED\n");
    }
}

#[test]
fn tasks_are_canceled_and_retried_by_filters() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let ids = |run: &Run| run.rows().iter().map(|row| text(&row["id"])).collect::<Vec<_>>();
        let mails = ["1", "2", "3"].map(|payload| scratch.create(&["mail", payload, "--in", "1h", "--tag", "night"]));
        let others = ["1", "2"].map(|payload| scratch.create(&["other", payload, "--in", "1h"]));
        let cancel = ["--json", "task", "cancel", "--type", "mail", "--tag", "night"];
        let dry_run = scratch.run(&[&cancel[..], &["--dry-run"]].concat()).done();
        assert_eq!((ids(&dry_run), dry_run.outcomes()), (mails.to_vec(), vec!["would_cancel".to_owned(); 3]));
        let named = scratch.run(&["--json", "task", "retry", &others[0], "--dry-run"]).done();
        assert_eq!(named.outcomes(), ["would_retry"]);
        assert_eq!(scratch.rows(&["task", "list", "--state", "PENDING"]).len(), 5, "nothing was done");

        let run = scratch.run(&cancel).done();
        assert_eq!((ids(&run), run.outcomes()), (mails.to_vec(), vec!["canceled".to_owned(); 3]));
        let named = scratch.run(&["--json", "task", "retry", &mails[0], "--dry-run"]).failed(1);
        assert_eq!(named.outcomes(), ["conflict"]);
        let run = scratch.run(&["--json", "task", "retry", "--all"]).done();
        assert_eq!((ids(&run), run.outcomes()), (others.to_vec(), vec!["due_now".to_owned(); 2]));
        scratch.drain("other", "true");
        assert_eq!(scratch.rows(&["task", "list", "--state", "SUCCEEDED"]).len(), 2);
        assert_eq!(scratch.run(&["task", "cancel", "--all", "--yes"]).done().stdout, "", "all have ended");
    }
}

#[test]
fn every_line_is_a_task() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let lines: String = (0..2500).map(|n| format!("{n}\r\n")).collect();
        let run =
            scratch.run_with(&["--json", "task", "create", "bulk", "--lines", "--tag", "t"], lines.as_bytes()).done();
        let rows = run.rows();
        assert_eq!(rows.len(), 2500);
        for n in [0, 999, 1000, 2499] {
            let task = scratch.row(&["task", "get", &text(&rows[n]["id"])]);
            assert_eq!((&task["payload"], &task["tags"]), (&json!(n.to_string()), &json!(["t"])));
        }
    }
    let scratch = Home::sqlite().scratch.with("POSTRIDER__COMMON__MESSAGING__MAX_MESSAGE_BYTES", "10");
    let run = scratch.run_with(&["task", "create", "bulk", "--lines"], b"short\nmuch too long\nshort\n").failed(1);
    assert_eq!(run.stdout.lines().count(), 2);
    insta::assert_snapshot!("task_lines_refused", run.seen());
    let run = scratch.run_with(&["task", "create", "bulk"], b"much too long").failed(2);
    assert!(run.stderr.contains("the payload on stdin has more than 10 bytes"), "{run:?}");
    assert_eq!(scratch.rows(&["task", "list"]).len(), 2);
}

#[test]
fn wrong_usage_says_what_to_do() {
    let scratch = Scratch::bare();
    let id = "0190163d-8694-739b-aea5-966c26f8ad91";
    let wrong: &[(&str, &[&str])] = &[
        ("no_command", &["task"]),
        ("type", &["task", "create", "my tasks", "x"]),
        ("time", &["task", "create", "a", "x", "--at", "tomorrow"]),
        ("two_times", &["task", "create", "a", "x", "--in", "5s", "--at", "2026-01-01T00:00:00Z"]),
        ("attempts_none", &["task", "create", "a", "x", "--max-attempts", "0"]),
        (
            "attempts_twice",
            &["task", "create", "a", "x", "--max-attempts", "2", "--retry", "constant,delay=1s,attempts=3"],
        ),
        ("retry", &["task", "create", "a", "x", "--retry", "sometimes"]),
        ("tag", &["task", "create", "a", "x", "--tag", ""]),
        ("lines_with_key", &["task", "create", "a", "--lines", "--idempotency-key", "k"]),
        ("memory", &["--url", "memory:", "task", "create", "a", "x"]),
        ("id", &["task", "get", "7"]),
        ("bytes_of_both", &["task", "get", id, "--payload", "--result"]),
        ("state", &["task", "list", "--state", "DONE"]),
        ("reason", &["task", "list", "--reason", "poison"]),
        ("since", &["task", "list", "--since", "yesterday"]),
        ("limit", &["task", "list", "--limit", "0"]),
        ("cancel_nothing", &["task", "cancel"]),
        ("retry_both", &["task", "retry", id, "--all"]),
        ("replay_nothing", &["task", "replay"]),
        ("replay_both", &["task", "replay", id, "--all"]),
        ("replay_edit_two", &["task", "replay", id, "0190163d-8694-739b-aea5-966c26f8ad92", "--edit", "x"]),
        ("replay_rate", &["task", "replay", "--all", "--rate", "0"]),
        ("worker_no_type", &["task", "worker", "--", "true"]),
        ("worker_no_command", &["task", "worker", "--type", "a"]),
        ("worker_lease", &["task", "worker", "--type", "a", "--lease", "10ms", "--", "true"]),
        ("worker_no_such_command", &["task", "worker", "--type", "a", "--", "no-such-command-here"]),
        ("schedule_no_time", &["schedule", "create", "a", "x", "--type", "a"]),
        (
            "schedule_two_times",
            &["schedule", "create", "a", "x", "--type", "a", "--every", "5s", "--cron", "* * * * *"],
        ),
        ("schedule_name", &["schedule", "create", "a b", "x", "--type", "a", "--every", "5s"]),
        ("schedule_too_often", &["schedule", "create", "a", "x", "--type", "a", "--every", "500ms"]),
        ("schedule_missed", &["schedule", "create", "a", "x", "--type", "a", "--every", "5s", "--missed", "some"]),
    ];
    for (name, args) in wrong {
        insta::assert_snapshot!(format!("usage_task_{name}"), scratch.run(args).failed(2).seen());
    }
}
