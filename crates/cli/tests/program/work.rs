//! `postrider work`
#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic")]

mod frozen;
mod killed;
mod options;
mod outage;
pub(crate) mod place;
mod processes;
mod stopping;
mod terminal;

use std::process::{Output, Stdio};

use postrider::{DeadLetterReason, Message};
use serde_json::Value;

use crate::{seen, stderr, stdout};
use place::{Place, Worker};

/// Everything on stderr, without how long it took, which ends the last line.
fn told(output: &Output) -> String {
    let all = stderr(output);
    let (told, took) = all.rsplit_once(" in ").unwrap();
    let seconds = took.split(" s").next().unwrap();
    assert!(seconds.parse::<f64>().is_ok() && took.ends_with('\n') && took.lines().count() == 1, "{took:?}");
    // What became of each message is tried elsewhere.
    told.split_inclusive('\n').filter(|line| !line.starts_with("postrider_subscriber: ")).collect()
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
fn a_command_learns_everything_about_its_message() {
    let place = Place::new();
    let message = Message::new("hello").header("trace-id", "a=b \"c\"").unwrap();
    let message = message.ordering_key("customer-7").unwrap().content_type(postrider::ContentType::JSON);
    let id = place.send(message);
    let script = r#"
        printf '%s|' "$(cat)" "$POSTRIDER_MESSAGE_ID" "$POSTRIDER_QUEUE" "$POSTRIDER_RECEIVE_COUNT" \
            "$POSTRIDER_ATTEMPT" "$POSTRIDER_ORDERING_KEY" "$POSTRIDER_CONTENT_TYPE" "$POSTRIDER_HEADERS" \
            "$POSTRIDER_HEADER_TRACE_ID" "${POSTRIDER_DEDUP_KEY-none}" "${POSTRIDER_HEADER_OUTER-none}" > seen
        test -n "$POSTRIDER_ENQUEUED_AT" && test "$POSTRIDER_URL" = "$EXPECTED_URL""#;
    let output = place
        .work(&["--drain"], script)
        .env("EXPECTED_URL", place.url())
        .env("POSTRIDER_HEADER_OUTER", "from an outer handler")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let expected =
        format!(r#"hello|{id}|orders|1|1|customer-7|application/json|{{"trace-id":"a=b \"c\""}}|a=b "c"|none|none|"#);
    assert_eq!(place.read("seen"), expected);
    assert!(stdout(&output).starts_with(&format!("{id} acked: exit code 0, ")), "{}", stdout(&output));
    assert_eq!(place.counts(), [0, 0, 0, 0]);
}

#[test]
fn any_bytes_arrive_as_they_were_sent() {
    let place = Place::new();
    let body: Vec<u8> = (0..1024 * 1024).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    place.send(Message::new(body.clone()));
    assert!(place.work(&["--drain"], "cat > body").status().unwrap().success());
    assert!(std::fs::read(place.file("body")).unwrap() == body);
}

#[test]
fn the_end_of_the_command_decides() {
    let place = Place::new();
    for script in ["exit 0", "exit 75", "exit 65", "exit 3", "kill -9 $$"] {
        place.send(Message::new(script));
    }
    let rows = place.rows(&["--drain", "--retry", "constant,delay=1h,attempts=2"], r#"eval "$(cat)""#);
    let told =
        |row: &Value| (row["outcome"].as_str().unwrap().to_owned(), row["exit_code"].as_i64(), row["signal"].as_i64());
    assert_eq!(
        rows.iter().map(told).collect::<Vec<_>>(),
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
    assert_eq!(place.counts(), [0, 0, 3, 1]);
    assert_eq!(place.dead_letters()[0].reason, DeadLetterReason::REJECTED);
}

#[test]
fn a_message_that_always_fails_is_tried_as_often_as_the_strategy_says() {
    for code in [4, 75] {
        let place = Place::new();
        let id = place.send(Message::new("poison"));
        let script = format!(
            r#"echo "$POSTRIDER_ATTEMPT $POSTRIDER_RECEIVE_COUNT" >> attempts; for n in $(seq 30); do echo "line $n"; done >&2; exit {code}"#
        );
        let rows = place.rows(&["--drain", "--retry", "constant,delay=0s,attempts=4"], &script);
        assert_eq!(rows.len(), 4);
        assert_eq!(place.read("attempts"), "1 1\n2 2\n3 3\n4 4\n");
        let letter = place.dead_letters().remove(0);
        assert_eq!((letter.id, letter.reason), (id, DeadLetterReason::RETRIES_EXHAUSTED));
        let error = letter.error.unwrap();
        let lines: Vec<_> = error.lines().collect();
        assert!(lines[0].starts_with(&format!("exit code {code}")), "{error}");
        assert_eq!((lines.len(), lines[1], lines[20]), (21, "line 11", "line 30"));
    }
}

#[test]
fn without_retries_the_first_failure_is_the_last() {
    let place = Place::new();
    place.send(Message::new("a"));
    let rows = place.rows(&["--drain", "--retry", "none"], "exit 1");
    assert_eq!(rows.len(), 1);
    assert_eq!(place.counts(), [0, 0, 0, 1]);
}

#[test]
fn messages_of_one_key_are_handled_in_order_by_any_number_of_workers() {
    let place = Place::new();
    for n in 0..5 {
        place.send(Message::new(format!("{n}\n")).ordering_key("k").unwrap());
    }
    assert_eq!(place.rows(&["--drain", "--workers", "3"], "cat >> order").len(), 5);
    assert_eq!(place.read("order"), "0\n1\n2\n3\n4\n");
}

#[test]
fn as_many_commands_run_at_once_as_there_are_workers_and_no_message_waits_behind_them() {
    let place = Place::new();
    for n in 0..4 {
        place.send(Message::new(format!("{n}")));
    }
    let script = r#"touch "begun-$(cat)"; until test -e go; do sleep 0.02; done"#;
    let worker = place.start(&["--workers", "3"], script);
    place.eventually("three have begun", || (place.files("begun-") == 3).then_some(()));
    // The fourth is not leased, so another worker could have it.
    assert_eq!(place.counts(), [1, 3, 0, 0]);
    std::fs::write(place.file("go"), "").unwrap();
    place.eventually("all are done", || (place.counts() == [0, 0, 0, 0]).then_some(()));
    assert!(worker.stop().status.success());
}

#[test]
fn a_command_that_cannot_be_run_costs_no_message_anything() {
    let place = Place::new();
    place.send(Message::new("a"));
    let output = place.run(&["work", "orders", "--drain", "--", "no-such-command-here"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("no such command in PATH"));
    assert_eq!(place.peek()[0].deliveries_count, 0);
}

#[test]
fn a_command_that_goes_away_ends_the_worker_and_gives_the_message_back() {
    let place = Place::new();
    let program = place.file("handler");
    std::fs::write(&program, "#!/bin/sh\nrm \"$0\"\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    place.send(Message::new("a"));
    place.send(Message::new("b"));
    let output = place.run(&["work", "orders", "--drain", "--", program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot run '"), "{}", stderr(&output));
    let left = place.peek();
    assert_eq!((left.len(), left[0].deliveries_count, left[0].attempts_count), (1, 0, 0));
}

#[test]
fn the_queue_is_made_unless_that_is_forbidden() {
    let place = Place::new();
    assert!(place.work(&["--drain"], "true").status().unwrap().success());
    assert_eq!(place.queues(), ["orders"]);

    let place = Place::new();
    let mut work = place.work(&["--drain"], "true");
    let output = work.env("POSTRIDER__COMMON__MESSAGING__CREATE_QUEUES", "false").output().unwrap();
    assert!(
        output.status.success() && stderr(&output).contains("is off; there is nothing to do"),
        "{}",
        stderr(&output)
    );
    assert_eq!(place.queues(), [""; 0]);

    let mut work = place.work(&[], "true");
    let log = std::fs::File::create(place.file("log")).unwrap();
    work.env("POSTRIDER__COMMON__MESSAGING__CREATE_QUEUES", "false").stdout(Stdio::null()).stderr(log);
    let _worker = Worker::start(&mut work);
    place.eventually("it waits", || place.read("log").contains("waiting until it is made").then_some(()));
    place.send(Message::new("a"));
    place.eventually("it works", || (place.counts() == [0, 0, 0, 0]).then_some(()));
}

#[test]
fn a_paused_queue_is_told_when_it_begins_and_when_it_ends() {
    let place = Place::new();
    place.send(Message::new("a"));
    place.pause();
    let output = place.work(&["--drain"], "true").output().unwrap();
    assert!(output.status.success());
    let paused = "postrider: queue 'orders' is paused and gives nothing; 'postrider resume orders' lets it go on\n";
    assert_eq!(told(&output), format!("{paused}postrider: 0 done, 0 retried, 0 dead, 0 lost"));
    place.resume();
    let output = place.work(&["--drain"], "true").output().unwrap();
    assert_eq!(told(&output), "postrider: 1 done, 0 retried, 0 dead, 0 lost");
}

#[test]
fn a_command_finds_the_store_wherever_it_goes() {
    let place = Place::new();
    place.send(Message::new("a"));
    let mut work = std::process::Command::new(crate::place::PROGRAM);
    work.args(["--url", "sqlite:queue.db", "work", "orders", "--drain", "--", "sh", "-c"]);
    work.arg("cd /; echo \"$POSTRIDER_URL\" >&2").current_dir(place.file("."));
    let output = work.output().unwrap();
    assert!(stderr(&output).contains(&place.url()), "{}", stderr(&output));
}
