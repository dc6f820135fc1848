//! `postrider send`

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::place::{PROGRAM, Place, Run, text};

#[test]
fn a_message_carries_what_it_was_given() {
    let place = Place::new();
    let id = "0190163d-8694-739b-aea5-966c26f8ad91";
    let sent = place.row(&[
        "send",
        "orders",
        "hello",
        "--header",
        "tenant=acme",
        "--header",
        "query=a=b",
        "--key",
        "c7",
        "--priority",
        "9",
        "--id",
        id,
        "--expires-in",
        "1h",
        "--content-type",
        "text/plain",
    ]);
    assert_eq!(sent, json!({"id": id, "queue": "orders"}));
    let received = place.row(&["receive", "orders"]);
    assert_eq!(received["id"], id);
    assert_eq!(received["body"], "hello");
    assert_eq!(received["headers"], json!({"query": "a=b", "tenant": "acme"}));
    assert_eq!(received["ordering_key"], "c7");
    assert_eq!(received["priority"], 9);
    assert_eq!(received["content_type"], "text/plain");
}

#[test]
fn a_body_comes_from_stdin_byte_for_byte() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..=255).collect();
    for (args, stdin, body) in [
        (&["send", "orders"][..], &bytes[..], None),
        (&["send", "orders", "-"], b"line\n", Some("line\n")),
        (&["send", "orders"], b"", Some("")),
    ] {
        place.run_with(args, stdin).done();
        let received = place.row(&["receive", "orders", "--ack"]);
        match body {
            Some(body) => assert_eq!(received["body"], body),
            None => {
                assert_eq!(received.get("body"), None);
                let decoded = data_encoding::BASE64.decode(text(&received["body_base64"]).as_bytes()).unwrap();
                assert_eq!(decoded, stdin);
            }
        }
    }
}

#[test]
fn what_is_delayed_is_not_received_and_what_has_expired_is_dead() {
    let place = Place::new();
    place.send(&["orders", "later", "--delay", "1h"]);
    place.send(&["orders", "too late", "--expires-in", "0s"]);
    assert_eq!(place.rows(&["receive", "orders"]), Vec::<Value>::new());
    let stats = place.row(&["stats", "orders"]);
    assert_eq!((&stats["delayed"], &stats["dead"]), (&json!(1), &json!(1)));
    assert_eq!(place.row(&["dlq", "list", "orders"])["reason"], "expired");
}

#[test]
fn a_dedup_key_keeps_a_message_single() {
    let place = Place::new();
    let first = place.send(&["orders", "one", "--dedup-key", "k"]);
    assert_eq!(place.send(&["orders", "two", "--dedup-key", "k"]), first);
    assert_eq!(place.row(&["stats", "orders"])["ready"], 1);
}

#[test]
fn every_line_is_a_message_in_order() {
    let place = Place::new();
    let lines: String = (1..=2500).map(|number| format!("{number}\n")).collect();
    let run = place.run_with(&["--json", "send", "orders", "--lines", "--header", "a=1"], lines.as_bytes()).done();
    let ids: Vec<_> = run.rows().iter().map(|row| text(&row["id"])).collect();
    assert_eq!(ids.len(), 2500);
    let peeked = place.rows(&["peek", "orders", "--max", "3000"]);
    assert_eq!(peeked.iter().map(|row| text(&row["id"])).collect::<Vec<_>>(), ids);
    let bodies: String = peeked.iter().map(|row| text(&row["body"]) + "\n").collect();
    assert_eq!(bodies, lines);
    assert!(peeked.iter().all(|row| row["headers"]["a"] == "1"));
}

#[test]
fn a_line_that_is_refused_is_told_and_the_rest_goes_on() {
    let place = Place::new().with("POSTRIDER__COMMON__MESSAGING__MAX_MESSAGE_BYTES", "10");
    place.run(&["queues"]).done();
    let run = place.run_with(&["send", "orders", "--lines"], b"one\nfar too long a line\n\nfour").failed(1);
    assert_eq!(run.stdout.lines().count(), 3);
    insta::assert_snapshot!("lines_refused", run.stderr);
    let bodies: Vec<_> = place.rows(&["peek", "orders"]).iter().map(|row| text(&row["body"])).collect();
    assert_eq!(bodies, ["one", "", "four"]);
}

#[test]
fn lines_that_trickle_in_are_durable_before_the_next_one_comes() {
    let place = Place::new();
    let mut command = place.command(PROGRAM);
    let mut child = command.args(["send", "orders", "--lines"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut answers = BufReader::new(stdout).lines();
    for count in 1..=3 {
        writeln!(stdin, "line {count}").unwrap();
        answers.next().expect("an id").unwrap();
        assert_eq!(place.row(&["stats", "orders"])["ready"], count);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// Runs a send whose output nobody reads.
fn unread(place: &Place, args: &[&str], lines: &[u8]) -> Run {
    let mut child = place.command(PROGRAM).args(args).stdin(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    // Short enough to be there all at once.
    child.stdin.take().expect("a pipe").write_all(lines).expect("room for it");
    Run::of(child.wait_with_output().expect("the program ends"), &place.file(""))
}

#[test]
fn whoever_closes_the_output_is_told_what_was_sent() {
    let place = Place::new().with("POSTRIDER__COMMON__MESSAGING__MAX_MESSAGE_BYTES", "10");
    place.run(&["queues"]).done();
    let run = unread(&place, &["send", "orders", "--lines"], b"one\nfar too long a line\nthree\n").failed(1);
    insta::assert_snapshot!("lines_unread", run.stderr);
    assert_eq!(place.row(&["stats", "orders"])["ready"], 2);
    let run = unread(&place, &["send", "orders", "--lines"], b"").done();
    assert_eq!(run.stderr, "");
    let run = unread(&place, &["send", "orders"], b"four").failed(1);
    assert!(run.seen().contains("nobody reads the output any more; message ID was sent\n"), "{run:?}");
    assert_eq!(place.row(&["stats", "orders"])["ready"], 3);
}

#[test]
fn nothing_from_stdin_is_nothing_to_send() {
    let place = Place::new();
    place.run(&["queues"]).done();
    let run = place.run_with(&["send", "orders", "--lines"], b"").done();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""));
}

#[test]
fn a_terminal_without_a_body_is_told_so() {
    let place = Place::new();
    // `script` gives the program a terminal.
    let mut command = place.command("script");
    let output = command.args(["-qec", &format!("{PROGRAM} send orders"), "/dev/null"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("there is no body; give it behind the queue"), "{said}");
}
