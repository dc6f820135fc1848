//! `postrider receive`

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::place::{PROGRAM, Place, text};

#[test]
fn a_row_has_what_is_promised() {
    let place = Place::new();
    let id = place.send(&["orders", "hello"]);
    let row = place.row(&["receive", "orders", "--visibility", "5m"]);
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
fn what_is_leased_is_not_received_again_and_an_empty_queue_is_no_failure() {
    let place = Place::new();
    place.send(&["orders", "one"]);
    place.receive(&["orders"]);
    for queue in ["orders", "orders_dlq"] {
        let run = place.run(&["receive", queue]).done();
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""), "{queue}");
    }
}

#[test]
fn at_most_one_is_received_unless_more_are_asked_for() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n4\n").done();
    assert_eq!(place.rows(&["receive", "orders"]).len(), 1);
    assert_eq!(place.rows(&["receive", "orders", "--max", "10"]).len(), 3);
}

#[test]
fn a_wait_ends_with_the_first_message() {
    let place = Place::new();
    place.send(&["orders", "soon", "--delay", "300ms"]);
    assert_eq!(place.row(&["receive", "orders", "--wait", "60s"])["body"], "soon");
}

#[test]
fn ack_leaves_nothing_behind() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let bodies: Vec<_> =
        place.rows(&["receive", "orders", "--max", "5", "--ack"]).iter().map(|row| text(&row["body"])).collect();
    assert_eq!(bodies, ["1", "2"]);
    let stats = place.row(&["stats", "orders"]);
    assert_eq!((&stats["ready"], &stats["in_flight"]), (&json!(0), &json!(0)));
}

#[test]
fn people_see_no_control_characters() {
    let place = Place::new();
    let body = "first\nsecond \u{1b}[31m";
    place.run_with(&["send", "orders", "--header", "note=a\u{7}b", "--key", "c7"], body.as_bytes()).done();
    let seen = place.run(&["receive", "orders"]).done().seen();
    let age = seen.find("sent ").map(|at| seen[at + 5..].split(' ').next().unwrap().to_owned()).unwrap();
    insta::assert_snapshot!("receive", seen.replace(&format!("sent {age}"), "sent AGE"));
}

#[test]
fn what_nobody_could_read_is_released() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = place.command(PROGRAM);
    let mut child = command.args(["receive", "orders", "--max", "3", "--ack"]).stdout(writer).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let rows = place.rows(&["peek", "orders"]);
    let states: Vec<_> = rows.iter().map(|row| (text(&row["state"]), row["receive_count"].clone())).collect();
    assert_eq!(states, vec![("PENDING".to_owned(), json!(0)); 3]);
}

#[test]
fn what_was_read_before_the_reader_left_is_settled() {
    let place = Place::new();
    // More than a pipe holds, so that the program still writes when the reader leaves.
    let large = "x".repeat(60_000);
    for _ in 0..5 {
        place.run_with(&["send", "orders"], large.as_bytes()).done();
    }
    let mut command = place.command(PROGRAM);
    command.args(["--json", "receive", "orders", "--max", "5", "--ack"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_until(b'\n', &mut Vec::new()).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let left = place.rows(&["peek", "orders"]);
    // The pipe may have taken a second one, never a third.
    assert!((3..5).contains(&left.len()), "{}", left.len());
    assert!(left.iter().all(|row| row["state"] == "PENDING" && row["receive_count"] == 0));
}

#[test]
fn more_than_the_configured_batch_is_refused() {
    let run = Place::new().run(&["receive", "orders", "--max", "101"]).failed(2);
    insta::assert_snapshot!("receive_too_many", run.seen());
}

#[test]
fn a_message_that_was_read_too_often_is_dead() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    let read = |most: &str| {
        place.rows(&["receive", "orders", "--visibility", "1ms", "--wait", "1s", "--max-deliveries", most])
    };
    assert_eq!(read("2").len(), 1);
    assert_eq!(read("2")[0]["receive_count"], 2);
    assert_eq!(read("5")[0]["receive_count"], 3);
    assert_eq!(read("3").len(), 0);
    assert_eq!(place.row(&["dlq", "list", "orders"])["reason"], "max_receive_count");
    assert_eq!(place.row(&["receive", "orders_dlq"])["body"], "1");
}
