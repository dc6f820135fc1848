//! Policies and limits.

use std::time::{Duration, Instant};

use postrider::{DeadLetterReason, Message};
use serde_json::Value;

use super::place::{Place, rows};
use super::told;
use crate::stderr;

fn outcomes(rows: &[Value]) -> Vec<(&str, Option<i64>)> {
    rows.iter().map(|row| (row["outcome"].as_str().unwrap(), row["exit_code"].as_i64())).collect()
}

#[test]
fn every_failure_is_final_with_reject_on_error() {
    let place = Place::new();
    for code in ["0", "75", "3"] {
        place.send(Message::new(code));
    }
    let rows = place.rows(&["--drain", "--policy", "reject-on-error"], r#"exit "$(cat)""#);
    let dead = "dead_lettered";
    assert_eq!(outcomes(&rows), [("acked", Some(0)), (dead, Some(75)), (dead, Some(3))]);
    assert!(place.dead_letters().iter().all(|letter| letter.reason == DeadLetterReason::REJECTED));
}

#[test]
fn a_message_is_done_whatever_its_command_says_with_ack() {
    let place = Place::new();
    for code in ["0", "65", "3"] {
        place.send(Message::new(code));
    }
    let output = place.work(&["--json", "--drain", "--ack-policy", "ack"], r#"exit "$(cat)""#).output().unwrap();
    assert_eq!(outcomes(&rows(&output)), [("acked", Some(0)), ("acked", Some(65)), ("acked", Some(3))]);
    assert_eq!(told(&output), "postrider: 3 done (2 of them failed), 0 retried, 0 dead, 0 lost");
    assert_eq!(place.counts(), [0, 0, 0, 0]);
}

#[test]
fn a_message_is_done_before_its_command_begins_with_ack_first() {
    let place = Place::new();
    place.send(Message::new("a"));
    let script = "echo $$ > pid; until test -e go; do sleep 0.02; done; exit 3";
    let worker = place.start(&["--drain", "--ack-policy", "ack_first"], script);
    place.process("pid");
    assert_eq!(place.counts(), [0, 0, 0, 0]);
    std::fs::write(place.file("go"), "").unwrap();
    let output = worker.wait();
    assert_eq!(outcomes(&rows(&output)), [("acked", Some(3))], "{}", stderr(&output));
}

#[test]
fn a_stop_of_the_worker_gives_the_message_back_whatever_the_policy() {
    for policy in ["ack", "reject-on-error", "nack-on-error"] {
        let place = Place::new();
        place.send(Message::new("a"));
        let args = ["--graceful-timeout", "0s", "--ack-policy", policy, "--retry", "none"];
        let worker = place.start(&args, "echo $$ > pid; exec sleep 1000");
        place.process("pid");
        let output = worker.stop();
        assert_eq!(rows(&output)[0]["outcome"], "retried", "{policy}: {}", stderr(&output));
        assert_eq!(place.counts(), [1, 0, 0, 0], "{policy}");
    }
}

#[test]
fn commands_are_begun_no_faster_than_they_may() {
    let place = Place::new();
    for n in 0..4 {
        place.send(Message::new(format!("{n}")));
    }
    let begun = Instant::now();
    assert_eq!(place.rows(&["--drain", "--max-workers", "4", "--rate", "2"], "true").len(), 4);
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
}

#[test]
fn what_waits_for_its_turn_goes_back_uncounted_when_the_worker_stops() {
    let place = Place::new();
    for n in 0..3 {
        place.send(Message::new(format!("{n}")));
    }
    let worker = place.start(&["--workers", "2", "--rate", "1/h", "--graceful-timeout", "1h"], "true");
    // One is done; two have a worker and no leave to begin.
    place.eventually("they wait", || (place.counts() == [0, 2, 0, 0]).then_some(()));
    let output = worker.stop();
    assert_eq!(rows(&output).len(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("1 done, 0 retried, 0 dead, 0 lost, 2 given back"), "{}", stderr(&output));
    let left = place.peek();
    assert!(left.len() == 2 && left.iter().all(|message| message.deliveries_count == 0), "{left:?}");
}

#[test]
fn no_more_commands_of_a_key_run_at_once_than_may() {
    let place = Place::new();
    let send = |tenant: &str| place.send(Message::new("").header("tenant", tenant).unwrap());
    for tenant in ["a", "a", "a", "b", "a"] {
        send(tenant);
    }
    place.send(Message::new(""));
    // A second one of the same tenant would not get the lock. The first of 'a' waits for the one of 'b'.
    let script = r#"
        lock="lock-${POSTRIDER_HEADER_TENANT-$POSTRIDER_MESSAGE_ID}"
        mkdir "$lock" || exit 65
        case "$POSTRIDER_HEADER_TENANT" in
            a) until test -e b; do sleep 0.02; done;;
            b) touch b;;
        esac
        rmdir "$lock""#;
    let rows = place.rows(&["--drain", "--workers", "3", "--per-key", "tenant=1"], script);
    assert_eq!(outcomes(&rows), [("acked", Some(0)); 6]);
}

#[test]
fn a_message_is_tried_no_more_often_than_it_may_be_delivered() {
    let place = Place::new();
    place.send(Message::new("a"));
    let args = ["--drain", "--retry", "constant,delay=0s,attempts=5", "--max-deliveries", "2"];
    assert_eq!(outcomes(&place.rows(&args, "exit 1")), [("retried", Some(1)), ("dead_lettered", Some(1))]);
}
