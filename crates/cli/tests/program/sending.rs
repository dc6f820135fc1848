//! `postrider send`

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::scratch::{PROGRAM, Run, Scratch, text};

#[test]
fn a_message_has_the_given_fields() {
    let scratch = Scratch::new();
    let id = "0190163d-8694-739b-aea5-966c26f8ad91";
    let sent = scratch.row(&[
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
    let received = scratch.row(&["receive", "orders"]);
    assert_eq!(received["id"], id);
    assert_eq!(received["body"], "hello");
    assert_eq!(received["headers"], json!({"query": "a=b", "tenant": "acme"}));
    assert_eq!(received["ordering_key"], "c7");
    assert_eq!(received["priority"], 9);
    assert_eq!(received["content_type"], "text/plain");
}

#[test]
fn a_body_comes_from_stdin_byte_for_byte() {
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..=255).collect();
    for (args, stdin, body) in [
        (&["send", "orders"][..], &bytes[..], None),
        (&["send", "orders", "-"], b"line\n", Some("line\n")),
        (&["send", "orders"], b"", Some("")),
    ] {
        scratch.run_with(args, stdin).done();
        let received = scratch.row(&["receive", "orders", "--ack"]);
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
fn a_delayed_message_is_not_received_and_an_expired_one_is_dead() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "later", "--delay", "1h"]);
    scratch.send(&["orders", "too late", "--expires-in", "0s"]);
    assert_eq!(scratch.rows(&["receive", "orders"]), Vec::<Value>::new());
    let stats = scratch.row(&["stats", "orders"]);
    assert_eq!((&stats["delayed"], &stats["dead"]), (&json!(1), &json!(1)));
    assert_eq!(scratch.row(&["dlq", "list", "orders"])["reason"], "expired");
}

#[test]
fn two_sends_with_one_dedup_key_make_one_message() {
    let scratch = Scratch::new();
    let first = scratch.send(&["orders", "one", "--dedup-key", "k"]);
    assert_eq!(scratch.send(&["orders", "two", "--dedup-key", "k"]), first);
    assert_eq!(scratch.row(&["stats", "orders"])["ready"], 1);
}

#[test]
fn every_line_is_a_message_in_order() {
    let scratch = Scratch::new();
    let lines: String = (1..=2500).map(|number| format!("{number}\n")).collect();
    let run = scratch.run_with(&["--json", "send", "orders", "--lines", "--header", "a=1"], lines.as_bytes()).done();
    let ids: Vec<_> = run.rows().iter().map(|row| text(&row["id"])).collect();
    assert_eq!(ids.len(), 2500);
    let peeked = scratch.rows(&["peek", "orders", "--max", "3000"]);
    assert_eq!(peeked.iter().map(|row| text(&row["id"])).collect::<Vec<_>>(), ids);
    let bodies: String = peeked.iter().map(|row| text(&row["body"]) + "\n").collect();
    assert_eq!(bodies, lines);
    assert!(peeked.iter().all(|row| row["headers"]["a"] == "1"));
}

#[test]
fn a_refused_line_is_reported_and_the_other_lines_are_sent() {
    let scratch = Scratch::new().with("POSTRIDER__COMMON__MESSAGING__MAX_MESSAGE_BYTES", "10");
    scratch.run(&["queues"]).done();
    let run = scratch.run_with(&["send", "orders", "--lines"], b"one\nfar too long a line\n\nfour").failed(1);
    assert_eq!(run.stdout.lines().count(), 3);
    insta::assert_snapshot!("lines_refused", run.stderr);
    let bodies: Vec<_> = scratch.rows(&["peek", "orders"]).iter().map(|row| text(&row["body"])).collect();
    assert_eq!(bodies, ["one", "", "four"]);
}

#[test]
fn a_slow_line_is_durable_before_the_next_one_arrives() {
    let scratch = Scratch::new();
    let mut command = scratch.command(PROGRAM);
    let mut child = command.args(["send", "orders", "--lines"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut answers = BufReader::new(stdout).lines();
    for count in 1..=3 {
        writeln!(stdin, "line {count}").unwrap();
        answers.next().expect("an id").unwrap();
        assert_eq!(scratch.row(&["stats", "orders"])["ready"], count);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// Runs a send with a closed output.
fn unread(scratch: &Scratch, args: &[&str], lines: &[u8]) -> Run {
    let mut child = scratch.command(PROGRAM).args(args).stdin(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    // Short enough for one read.
    child.stdin.take().expect("a pipe").write_all(lines).expect("room for it");
    Run::of(child.wait_with_output().expect("the program ends"), &scratch.file(""))
}

#[test]
fn a_closed_output_reports_the_sent_messages_on_stderr() {
    let scratch = Scratch::new().with("POSTRIDER__COMMON__MESSAGING__MAX_MESSAGE_BYTES", "10");
    scratch.run(&["queues"]).done();
    let run = unread(&scratch, &["send", "orders", "--lines"], b"one\nfar too long a line\nthree\n").failed(1);
    insta::assert_snapshot!("lines_unread", run.stderr);
    assert_eq!(scratch.row(&["stats", "orders"])["ready"], 2);
    let run = unread(&scratch, &["send", "orders", "--lines"], b"").done();
    assert_eq!(run.stderr, "");
    let run = unread(&scratch, &["send", "orders"], b"four").failed(1);
    assert!(run.seen().contains("the reader of the output is gone; message ID was sent\n"), "{run:?}");
    assert_eq!(scratch.row(&["stats", "orders"])["ready"], 3);
}

#[test]
fn an_empty_stdin_sends_nothing() {
    let scratch = Scratch::new();
    scratch.run(&["queues"]).done();
    let run = scratch.run_with(&["send", "orders", "--lines"], b"").done();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""));
}

#[test]
fn a_missing_body_on_a_terminal_is_refused() {
    let scratch = Scratch::new();
    // `script` gives the program a terminal.
    let mut command = scratch.command("script");
    let output = command.args(["-qec", &format!("{PROGRAM} send orders"), "/dev/null"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("there is no body; pass it after the queue"), "{printed}");
}
