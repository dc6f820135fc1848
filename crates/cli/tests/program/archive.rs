//! `postrider archive`

use serde_json::{Value, json};

use crate::scratch::{Scratch, text};

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["id"])).collect()
}

/// Sends a message and acknowledges it.
fn handle(scratch: &Scratch, send: &[&str]) -> String {
    let id = text(&scratch.row(&[&["send", "orders"], send].concat())["id"]);
    scratch.run(&["receive", "orders", "--ack"]).done();
    id
}

#[test]
fn archived_messages_are_listed_searched_and_shown() {
    let scratch = Scratch::new();
    let tea = handle(&scratch, &["tea", "--header", "customer=anna", "--key", "k"]);
    let coffee = handle(&scratch, &["coffee", "--header", "customer=ben"]);
    let milk = scratch.dead_letter("orders", "milk", "poison");
    scratch.run(&["dlq", "purge", "orders", "--all", "--yes"]).done();
    let list = |options: &[&str]| ids(&scratch.rows(&[&["archive", "list", "orders"], options].concat()));
    assert_eq!(list(&[]), [&milk, &coffee, &tea].map(String::clone));
    assert_eq!(list(&["--max", "2"]), [&milk, &coffee].map(String::clone));
    assert_eq!(list(&["--header", "customer=anna"]), [tea.as_str()]);
    assert_eq!(list(&["--key", "k"]), [tea.as_str()]);
    assert_eq!(list(&["--state", "failed"]), [milk.as_str()]);
    assert_eq!(list(&["--since", "1h", "--state", "completed"]), [&coffee, &tea].map(String::clone));
    assert_eq!(list(&["--until", "1h"]), [""; 0]);

    let record = scratch.row(&["archive", "show", "orders", &tea]);
    for (field, value) in [
        ("id", json!(tea)),
        ("queue", json!("orders")),
        ("state", json!("COMPLETED")),
        ("body", json!("tea")),
        ("headers", json!({"customer": "anna"})),
        ("ordering_key", json!("k")),
        ("receive_count", json!(1)),
        ("attempts_count", json!(0)),
        ("last_error", Value::Null),
    ] {
        assert_eq!(record[field], value, "{field}");
    }
    let shown = scratch.run(&["archive", "show", "orders", &milk]).done().stdout;
    assert!(shown.contains("state            FAILED\n") && shown.ends_with("\n\nmilk\n"), "{shown}");
    let table = scratch.run(&["archive", "list", "orders"]).done().stdout;
    assert_eq!(table.lines().filter(|line| line.starts_with("ID ")).count(), 1);
    assert_eq!(table.lines().count(), 4);
    let missing = scratch.run(&["archive", "list", "ordres"]).failed(1);
    assert!(missing.stderr.contains("there is no queue 'ordres'"), "{missing:?}");
}

#[test]
fn an_archived_message_is_sent_again() {
    let scratch = Scratch::new();
    let id = handle(&scratch, &["tea", "--header", "customer=anna"]);
    let sent = scratch.row(&["archive", "send-again", "orders", &id]);
    assert_eq!((&sent["sent_again_from"], &sent["queue"]), (&json!(id), &json!("orders")));
    let received = scratch.row(&["receive", "orders"]);
    assert_eq!((&received["id"], &received["body"]), (&sent["id"], &json!("tea")));
    assert_eq!(received["headers"], json!({"customer": "anna", "sent-again-from": id}));
    let unknown = scratch.run(&["archive", "send-again", "orders", "0190163d-8694-739b-aea5-966c26f8ad91"]).failed(1);
    assert!(unknown.stderr.contains("holds no message 0190163d"), "{unknown:?}");
}

#[test]
fn lines_of_an_error_are_aligned_and_a_death_is_not_shown_as_a_failed_attempt() {
    let scratch = Scratch::new();
    let id = scratch.send(&["orders", "x"]);
    let fails = "echo one >&2; printf 'two\\033[2J' >&2; exit 65";
    scratch.run(&["work", "orders", "--drain", "--", "sh", "-c", fails]).done();
    scratch.run(&["dlq", "purge", "orders", "--all", "--yes"]).done();
    let shown = scratch.run(&["archive", "show", "orders", &id]).done().stdout;
    let blank = " ".repeat(17);
    let error = format!("last error       exit code 65 (refuses the message)\n{blank}one\n{blank}two\\u{{1b}}[2J\n");
    assert!(shown.contains(&error), "{shown}");
    assert!(shown.contains("\ndeliveries       1\ntried again      0\n"), "{shown}");
    let tea = handle(&scratch, &["tea"]);
    let shown = scratch.run(&["archive", "show", "orders", &tea]).done().stdout;
    assert!(shown.contains("\ndeliveries       1\nfailed attempts  0\n"), "{shown}");
}
