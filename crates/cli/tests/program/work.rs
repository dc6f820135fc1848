//! `postrider work`
#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic")]

mod frozen;
mod killed;
mod options;
mod outage;
mod processes;
pub(crate) mod scratch;
mod stopping;
mod terminal;

use std::process::{Output, Stdio};

use postrider::{DeadLetterReason, Message};
use serde_json::Value;

use crate::{seen, stderr, stdout};
use scratch::{Scratch, Worker};

/// The program's own lines on stderr, without the duration at the end of the last one.
fn notices(output: &Output) -> String {
    let all = stderr(output);
    let (notices, took) = all.rsplit_once(" in ").unwrap();
    let seconds = took.split(" s").next().unwrap();
    assert!(seconds.parse::<f64>().is_ok() && took.ends_with('\n') && took.lines().count() == 1, "{took:?}");
    // Other tests check the outcomes of messages.
    notices.split_inclusive('\n').filter(|line| !line.starts_with("postrider_subscriber: ")).collect()
}

#[test]
fn help_and_usage() {
    insta::assert_snapshot!("help_work", seen(&["work", "--help"]));
    insta::assert_snapshot!("usage_work_no_command", seen(&["work", "orders"]));
    insta::assert_snapshot!("usage_work_retry", seen(&["work", "orders", "--retry", "sometimes", "--", "true"]));
    insta::assert_snapshot!("usage_work_policy", seen(&["work", "orders", "--ack-policy", "manual", "--", "true"]));
    insta::assert_snapshot!("usage_work_timeout", seen(&["work", "orders", "--timeout", "0s", "--", "true"]));
    let first = ["work", "orders", "--ack-policy", "ack-first", "--retry", "none", "--", "true"];
    insta::assert_snapshot!("usage_work_ack_first", seen(&first));
    insta::assert_snapshot!("usage_work_rate", seen(&["work", "orders", "--rate", "5/d", "--", "true"]));
    insta::assert_snapshot!("usage_work_per_key", seen(&["work", "orders", "--per-key", "tenant", "--", "true"]));
}

#[test]
fn a_command_gets_all_fields_of_its_message() {
    let scratch = Scratch::new();
    let message = Message::new("hello").header("trace-id", "a=b \"c\"").unwrap();
    let message = message.ordering_key("customer-7").unwrap().content_type(postrider::ContentType::JSON);
    let id = scratch.send(message);
    let script = r#"
        printf '%s|' "$(cat)" "$POSTRIDER_MESSAGE_ID" "$POSTRIDER_QUEUE" "$POSTRIDER_RECEIVE_COUNT" \
            "$POSTRIDER_ATTEMPT" "$POSTRIDER_ORDERING_KEY" "$POSTRIDER_CONTENT_TYPE" "$POSTRIDER_HEADERS" \
            "$POSTRIDER_HEADER_TRACE_ID" "${POSTRIDER_DEDUP_KEY-none}" "${POSTRIDER_HEADER_OUTER-none}" > seen
        test -n "$POSTRIDER_ENQUEUED_AT" && test "$POSTRIDER_URL" = "$EXPECTED_URL""#;
    let output = scratch
        .work(&["--drain"], script)
        .env("EXPECTED_URL", scratch.url())
        .env("POSTRIDER_HEADER_OUTER", "from an outer handler")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let expected =
        format!(r#"hello|{id}|orders|1|1|customer-7|application/json|{{"trace-id":"a=b \"c\""}}|a=b "c"|none|none|"#);
    assert_eq!(scratch.read("seen"), expected);
    assert!(stdout(&output).starts_with(&format!("{id} acked: exit code 0, ")), "{}", stdout(&output));
    assert_eq!(scratch.counts(), [0, 0, 0, 0]);
}

#[test]
fn any_bytes_arrive_as_they_were_sent() {
    let scratch = Scratch::new();
    let body: Vec<u8> = (0..1024 * 1024).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    scratch.send(Message::new(body.clone()));
    assert!(scratch.work(&["--drain"], "cat > body").status().unwrap().success());
    assert!(std::fs::read(scratch.file("body")).unwrap() == body);
}

#[test]
fn the_exit_code_decides_the_outcome() {
    let scratch = Scratch::new();
    for script in ["exit 0", "exit 75", "exit 65", "exit 3", "kill -9 $$"] {
        scratch.send(Message::new(script));
    }
    let rows = scratch.rows(&["--drain", "--retry", "constant,delay=1h,attempts=2"], r#"eval "$(cat)""#);
    let noted =
        |row: &Value| (row["outcome"].as_str().unwrap().to_owned(), row["exit_code"].as_i64(), row["signal"].as_i64());
    assert_eq!(
        rows.iter().map(noted).collect::<Vec<_>>(),
        [
            ("acked".into(), Some(0), None),
            ("retried".into(), Some(75), None),
            ("dead_lettered".into(), Some(65), None),
            ("retried".into(), Some(3), None),
            ("retried".into(), None, Some(9)),
        ]
    );
    assert_eq!(rows[0]["queue"], "orders");
    assert_eq!(rows[0]["receive_count"], 1);
    assert!(rows[0]["seconds"].is_f64() && rows[0]["id"].is_string());
    assert_eq!(scratch.counts(), [0, 0, 3, 1]);
    assert_eq!(scratch.dead_letters()[0].reason, DeadLetterReason::REJECTED);
}

#[test]
fn a_message_that_always_fails_gets_all_attempts_of_the_strategy() {
    for code in [4, 75] {
        let scratch = Scratch::new();
        let id = scratch.send(Message::new("poison"));
        let script = format!(
            r#"echo "$POSTRIDER_ATTEMPT $POSTRIDER_RECEIVE_COUNT" >> attempts; for n in $(seq 30); do echo "line $n"; done >&2; exit {code}"#
        );
        let rows = scratch.rows(&["--drain", "--retry", "constant,delay=0s,attempts=4"], &script);
        assert_eq!(rows.len(), 4);
        assert_eq!(scratch.read("attempts"), "1 1\n2 2\n3 3\n4 4\n");
        let letter = scratch.dead_letters().remove(0);
        assert_eq!((letter.id, letter.reason), (id, DeadLetterReason::RETRIES_EXHAUSTED));
        let error = letter.error.unwrap();
        let lines: Vec<_> = error.lines().collect();
        assert!(lines[0].starts_with(&format!("exit code {code}")), "{error}");
        assert_eq!((lines.len(), lines[1], lines[20]), (21, "line 11", "line 30"));
    }
}

#[test]
fn without_retries_the_first_failure_is_the_last() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let rows = scratch.rows(&["--drain", "--retry", "none"], "exit 1");
    assert_eq!(rows.len(), 1);
    assert_eq!(scratch.counts(), [0, 0, 0, 1]);
}

#[test]
fn messages_of_one_key_are_handled_in_order_by_any_number_of_workers() {
    let scratch = Scratch::new();
    for n in 0..5 {
        scratch.send(Message::new(format!("{n}\n")).ordering_key("k").unwrap());
    }
    assert_eq!(scratch.rows(&["--drain", "--workers", "3"], "cat >> order").len(), 5);
    assert_eq!(scratch.read("order"), "0\n1\n2\n3\n4\n");
}

#[test]
fn each_worker_runs_one_command_and_no_further_message_is_leased() {
    let scratch = Scratch::new();
    for n in 0..4 {
        scratch.send(Message::new(format!("{n}")));
    }
    let script = r#"touch "begun-$(cat)"; until test -e go; do sleep 0.02; done"#;
    let worker = scratch.start(&["--workers", "3"], script);
    scratch.eventually("three have begun", || (scratch.files("begun-") == 3).then_some(()));
    // The fourth message is not leased, so another worker could receive it.
    assert_eq!(scratch.counts(), [1, 3, 0, 0]);
    std::fs::write(scratch.file("go"), "").unwrap();
    scratch.eventually("all are done", || (scratch.counts() == [0, 0, 0, 0]).then_some(()));
    assert!(worker.stop().status.success());
}

#[test]
fn a_command_that_cannot_run_costs_no_delivery() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let output = scratch.run(&["work", "orders", "--drain", "--", "no-such-command-here"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("no such command in PATH"));
    assert_eq!(scratch.peek()[0].deliveries_count, 0);
}

#[test]
fn a_command_that_disappears_stops_the_worker_and_releases_the_message() {
    let scratch = Scratch::new();
    let program = scratch.file("handler");
    std::fs::write(&program, "#!/bin/sh\nrm \"$0\"\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    scratch.send(Message::new("a"));
    scratch.send(Message::new("b"));
    let output = scratch.run(&["work", "orders", "--drain", "--", program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot run '"), "{}", stderr(&output));
    let left = scratch.peek();
    assert_eq!((left.len(), left[0].deliveries_count, left[0].attempts_count), (1, 0, 0));
}

#[test]
fn a_missing_queue_is_created_unless_create_queues_is_off() {
    let scratch = Scratch::new();
    assert!(scratch.work(&["--drain"], "true").status().unwrap().success());
    assert_eq!(scratch.queues(), ["orders"]);

    let scratch = Scratch::new();
    let mut work = scratch.work(&["--drain"], "true");
    let output = work.env("POSTRIDER__COMMON__MESSAGING__CREATE_QUEUES", "false").output().unwrap();
    assert!(
        output.status.success() && stderr(&output).contains("is off; there is nothing to do"),
        "{}",
        stderr(&output)
    );
    assert_eq!(scratch.queues(), [""; 0]);

    let mut work = scratch.work(&[], "true");
    let log = std::fs::File::create(scratch.file("log")).unwrap();
    work.env("POSTRIDER__COMMON__MESSAGING__CREATE_QUEUES", "false").stdout(Stdio::null()).stderr(log);
    let _worker = Worker::start(&mut work);
    scratch.eventually("it waits", || scratch.read("log").contains("waiting until it is created").then_some(()));
    scratch.send(Message::new("a"));
    scratch.eventually("it works", || (scratch.counts() == [0, 0, 0, 0]).then_some(()));
}

#[test]
fn a_worker_notes_that_its_queue_is_paused() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    scratch.pause();
    let output = scratch.work(&["--drain"], "true").output().unwrap();
    assert!(output.status.success());
    let paused = "postrider: queue 'orders' is paused; 'postrider resume orders' resumes it\n";
    assert_eq!(notices(&output), format!("{paused}postrider: 0 done, 0 retried, 0 dead, 0 lost"));
    scratch.resume();
    let output = scratch.work(&["--drain"], "true").output().unwrap();
    assert_eq!(notices(&output), "postrider: 1 done, 0 retried, 0 dead, 0 lost");
}

#[test]
fn a_command_finds_the_store_from_any_folder() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let mut work = std::process::Command::new(crate::scratch::PROGRAM);
    work.args(["--url", "sqlite:queue.db", "work", "orders", "--drain", "--", "sh", "-c"]);
    work.arg("cd /; echo \"$POSTRIDER_URL\" >&2").current_dir(scratch.file("."));
    let output = work.output().unwrap();
    assert!(stderr(&output).contains(&scratch.url()), "{}", stderr(&output));
}
