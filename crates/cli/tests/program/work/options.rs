//! Policies and limits.

use std::time::{Duration, Instant};

use postrider::{DeadLetterReason, Message};
use serde_json::Value;

use super::notices;
use super::scratch::{Scratch, rows};
use crate::stderr;

fn outcomes(rows: &[Value]) -> Vec<(&str, Option<i64>)> {
    rows.iter().map(|row| (row["outcome"].as_str().unwrap(), row["exit_code"].as_i64())).collect()
}

#[test]
fn every_failure_is_final_with_reject_on_error() {
    let scratch = Scratch::new();
    for code in ["0", "75", "3"] {
        scratch.send(Message::new(code));
    }
    let rows = scratch.rows(&["--drain", "--policy", "reject-on-error"], r#"exit "$(cat)""#);
    let dead = "dead_lettered";
    assert_eq!(outcomes(&rows), [("acked", Some(0)), (dead, Some(75)), (dead, Some(3))]);
    assert!(scratch.dead_letters().iter().all(|letter| letter.reason == DeadLetterReason::REJECTED));
}

#[test]
fn with_ack_a_message_is_done_with_any_exit_code() {
    let scratch = Scratch::new();
    for code in ["0", "65", "3"] {
        scratch.send(Message::new(code));
    }
    let output = scratch.work(&["--json", "--drain", "--ack-policy", "ack"], r#"exit "$(cat)""#).output().unwrap();
    assert_eq!(outcomes(&rows(&output)), [("acked", Some(0)), ("acked", Some(65)), ("acked", Some(3))]);
    assert_eq!(notices(&output), "postrider: 3 done (2 of them failed), 0 retried, 0 dead, 0 lost");
    assert_eq!(scratch.counts(), [0, 0, 0, 0]);
}

#[test]
fn with_ack_first_a_message_is_done_before_its_command_starts() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let script = "echo $$ > pid; until test -e go; do sleep 0.02; done; exit 3";
    let worker = scratch.start(&["--drain", "--ack-policy", "ack_first"], script);
    scratch.process("pid");
    assert_eq!(scratch.counts(), [0, 0, 0, 0]);
    std::fs::write(scratch.file("go"), "").unwrap();
    let output = worker.wait();
    assert_eq!(outcomes(&rows(&output)), [("acked", Some(3))], "{}", stderr(&output));
}

#[test]
fn a_stop_of_the_worker_retries_the_message_under_every_policy() {
    for policy in ["ack", "reject-on-error", "nack-on-error"] {
        let scratch = Scratch::new();
        scratch.send(Message::new("a"));
        let args = ["--graceful-timeout", "0s", "--ack-policy", policy, "--retry", "none"];
        let worker = scratch.start(&args, "echo $$ > pid; exec sleep 1000");
        scratch.process("pid");
        let output = worker.stop();
        assert_eq!(rows(&output)[0]["outcome"], "retried", "{policy}: {}", stderr(&output));
        assert_eq!(scratch.counts(), [1, 0, 0, 0], "{policy}");
    }
}

#[test]
fn commands_start_no_faster_than_the_rate() {
    let scratch = Scratch::new();
    for n in 0..4 {
        scratch.send(Message::new(format!("{n}")));
    }
    let begun = Instant::now();
    assert_eq!(scratch.rows(&["--drain", "--max-workers", "4", "--rate", "2"], "true").len(), 4);
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
}

#[test]
fn messages_that_wait_for_the_rate_are_released_when_the_worker_stops() {
    let scratch = Scratch::new();
    for n in 0..3 {
        scratch.send(Message::new(format!("{n}")));
    }
    let worker = scratch.start(&["--workers", "2", "--rate", "1/h", "--graceful-timeout", "1h"], "true");
    // One is done; two have a worker and wait for the rate.
    scratch.eventually("they wait", || (scratch.counts() == [0, 2, 0, 0]).then_some(()));
    let output = worker.stop();
    assert_eq!(rows(&output).len(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("1 done, 0 retried, 0 dead, 0 lost, 2 released"), "{}", stderr(&output));
    let left = scratch.peek();
    assert!(left.len() == 2 && left.iter().all(|message| message.deliveries_count == 0), "{left:?}");
}

#[test]
fn the_limit_per_key_is_kept() {
    let scratch = Scratch::new();
    let send = |tenant: &str| scratch.send(Message::new("").header("tenant", tenant).unwrap());
    for tenant in ["a", "a", "a", "b", "a"] {
        send(tenant);
    }
    scratch.send(Message::new(""));
    // A second command of one tenant would not get the lock. The first of 'a' waits for the one of 'b'.
    let script = r#"
        lock="lock-${POSTRIDER_HEADER_TENANT-$POSTRIDER_MESSAGE_ID}"
        mkdir "$lock" || exit 65
        case "$POSTRIDER_HEADER_TENANT" in
            a) until test -e b; do sleep 0.02; done;;
            b) touch b;;
        esac
        rmdir "$lock""#;
    let rows = scratch.rows(&["--drain", "--workers", "3", "--per-key", "tenant=1"], script);
    assert_eq!(outcomes(&rows), [("acked", Some(0)); 6]);
}

#[test]
fn the_limit_of_deliveries_limits_the_attempts() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let args = ["--drain", "--retry", "constant,delay=0s,attempts=5", "--max-deliveries", "2"];
    assert_eq!(outcomes(&scratch.rows(&args, "exit 1")), [("retried", Some(1)), ("dead_lettered", Some(1))]);
}
