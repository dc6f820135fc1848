//! `postrider receive`

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::scratch::{PROGRAM, Scratch, text};

#[test]
fn a_row_has_its_fields() {
    let scratch = Scratch::new();
    let id = scratch.send(&["orders", "hello"]);
    let row = scratch.row(&["receive", "orders", "--visibility", "5m"]);
    assert_eq!(row["id"], id.as_str());
    assert_eq!(row["queue"], "orders");
    assert!(text(&row["receipt"]).starts_with("pr1."));
    assert_eq!((&row["ordering_key"], &row["headers"]), (&Value::Null, &json!({})));
    assert_eq!(row["receive_count"], 1);
    let [enqueued, ends] = ["enqueued_at", "lease_expires_at"]
        .map(|field| text(&row[field]).parse::<postrider::Timestamp>().expect("an RFC 3339 time"));
    let lease = ends.since(enqueued).as_secs();
    assert!((300..400).contains(&lease), "{lease}");
}

#[test]
fn a_leased_message_is_not_received_again_and_an_empty_queue_is_no_failure() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "one"]);
    scratch.receive(&["orders"]);
    for queue in ["orders", "orders_dlq"] {
        let run = scratch.run(&["receive", queue]).done();
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""), "{queue}");
    }
}

#[test]
fn one_message_is_received_by_default() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n4\n").done();
    assert_eq!(scratch.rows(&["receive", "orders"]).len(), 1);
    assert_eq!(scratch.rows(&["receive", "orders", "--max", "10"]).len(), 3);
}

#[test]
fn a_wait_ends_with_the_first_message() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "soon", "--delay", "300ms"]);
    assert_eq!(scratch.row(&["receive", "orders", "--wait", "60s"])["body"], "soon");
}

#[test]
fn ack_leaves_nothing_behind() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let bodies: Vec<_> =
        scratch.rows(&["receive", "orders", "--max", "5", "--ack"]).iter().map(|row| text(&row["body"])).collect();
    assert_eq!(bodies, ["1", "2"]);
    let stats = scratch.row(&["stats", "orders"]);
    assert_eq!((&stats["ready"], &stats["in_flight"]), (&json!(0), &json!(0)));
}

#[test]
fn text_output_has_no_control_characters() {
    let scratch = Scratch::new();
    let body = "first\nsecond \u{1b}[31m";
    scratch.run_with(&["send", "orders", "--header", "note=a\u{7}b", "--key", "c7"], body.as_bytes()).done();
    let seen = scratch.run(&["receive", "orders"]).done().seen();
    let age = seen.find("sent ").map(|at| seen[at + 5..].split(' ').next().unwrap().to_owned()).unwrap();
    insta::assert_snapshot!("receive", seen.replace(&format!("sent {age}"), "sent AGE"));
}

#[test]
fn messages_that_could_not_be_printed_are_released() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = scratch.command(PROGRAM);
    let mut child = command.args(["receive", "orders", "--max", "3", "--ack"]).stdout(writer).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let rows = scratch.rows(&["peek", "orders"]);
    let states: Vec<_> = rows.iter().map(|row| (text(&row["state"]), row["receive_count"].clone())).collect();
    assert_eq!(states, vec![("PENDING".to_owned(), json!(0)); 3]);
}

#[test]
fn messages_printed_before_the_output_was_closed_are_settled() {
    let scratch = Scratch::new();
    // More than a pipe holds, so that the program still writes when the reader closes it.
    let large = "x".repeat(60_000);
    for _ in 0..5 {
        scratch.run_with(&["send", "orders"], large.as_bytes()).done();
    }
    let mut command = scratch.command(PROGRAM);
    command.args(["--json", "receive", "orders", "--max", "5", "--ack"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_until(b'\n', &mut Vec::new()).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let left = scratch.rows(&["peek", "orders"]);
    // The pipe may have taken a second one, never a third.
    assert!((3..5).contains(&left.len()), "{}", left.len());
    assert!(left.iter().all(|row| row["state"] == "PENDING" && row["receive_count"] == 0));
}

#[test]
fn more_than_the_configured_batch_is_refused() {
    let run = Scratch::new().run(&["receive", "orders", "--max", "101"]).failed(2);
    insta::assert_snapshot!("receive_too_many", run.seen());
}

#[test]
fn a_message_that_is_received_too_often_is_dead_lettered() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    let read = |max: &str| {
        scratch.rows(&["receive", "orders", "--visibility", "1ms", "--wait", "1s", "--max-deliveries", max])
    };
    assert_eq!(read("2").len(), 1);
    assert_eq!(read("2")[0]["receive_count"], 2);
    assert_eq!(read("5")[0]["receive_count"], 3);
    assert_eq!(read("3").len(), 0);
    assert_eq!(scratch.row(&["dlq", "list", "orders"])["reason"], "max_receive_count");
    assert_eq!(scratch.row(&["receive", "orders_dlq"])["body"], "1");
}
