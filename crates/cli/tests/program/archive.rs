//! `postrider archive`

use serde_json::{Value, json};

use crate::place::{Place, text};

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["id"])).collect()
}

/// Sends a message and acknowledges it.
fn handle(place: &Place, send: &[&str]) -> String {
    let id = text(&place.row(&[&["send", "orders"], send].concat())["id"]);
    place.run(&["receive", "orders", "--ack"]).done();
    id
}

#[test]
fn what_ended_is_listed_searched_and_shown() {
    let place = Place::new();
    let tea = handle(&place, &["tea", "--header", "customer=anna", "--key", "k"]);
    let coffee = handle(&place, &["coffee", "--header", "customer=ben"]);
    let milk = place.bury("orders", "milk", "poison");
    place.run(&["dlq", "purge", "orders", "--all", "--yes"]).done();
    let list = |options: &[&str]| ids(&place.rows(&[&["archive", "list", "orders"], options].concat()));
    assert_eq!(list(&[]), [&milk, &coffee, &tea].map(String::clone));
    assert_eq!(list(&["--max", "2"]), [&milk, &coffee].map(String::clone));
    assert_eq!(list(&["--header", "customer=anna"]), [tea.as_str()]);
    assert_eq!(list(&["--key", "k"]), [tea.as_str()]);
    assert_eq!(list(&["--state", "failed"]), [milk.as_str()]);
    assert_eq!(list(&["--since", "1h", "--state", "completed"]), [&coffee, &tea].map(String::clone));
    assert_eq!(list(&["--until", "1h"]), [""; 0]);

    let record = place.row(&["archive", "show", "orders", &tea]);
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
    let shown = place.run(&["archive", "show", "orders", &milk]).done().stdout;
    assert!(shown.contains("state            FAILED\n") && shown.ends_with("\n\nmilk\n"), "{shown}");
    let table = place.run(&["archive", "list", "orders"]).done().stdout;
    assert_eq!(table.lines().filter(|line| line.starts_with("ID ")).count(), 1);
    assert_eq!(table.lines().count(), 4);
    let missing = place.run(&["archive", "list", "ordres"]).failed(1);
    assert!(missing.stderr.contains("there is no queue 'ordres'"), "{missing:?}");
}

#[test]
fn an_archived_message_is_sent_again() {
    let place = Place::new();
    let id = handle(&place, &["tea", "--header", "customer=anna"]);
    let sent = place.row(&["archive", "send-again", "orders", &id]);
    assert_eq!((&sent["sent_again_from"], &sent["queue"]), (&json!(id), &json!("orders")));
    let received = place.row(&["receive", "orders"]);
    assert_eq!((&received["id"], &received["body"]), (&sent["id"], &json!("tea")));
    assert_eq!(received["headers"], json!({"customer": "anna", "sent-again-from": id}));
    let unknown = place.run(&["archive", "send-again", "orders", "0190163d-8694-739b-aea5-966c26f8ad91"]).failed(1);
    assert!(unknown.stderr.contains("holds no message 0190163d"), "{unknown:?}");
}

#[test]
fn lines_of_an_error_stand_below_each_other_and_a_death_is_not_told_as_no_failure() {
    let place = Place::new();
    let id = place.send(&["orders", "x"]);
    let fails = "echo one >&2; printf 'two\\033[2J' >&2; exit 65";
    place.run(&["work", "orders", "--drain", "--", "sh", "-c", fails]).done();
    place.run(&["dlq", "purge", "orders", "--all", "--yes"]).done();
    let shown = place.run(&["archive", "show", "orders", &id]).done().stdout;
    let blank = " ".repeat(17);
    let error = format!("last error       exit code 65 (refuses the message)\n{blank}one\n{blank}two\\u{{1b}}[2J\n");
    assert!(shown.contains(&error), "{shown}");
    assert!(shown.contains("\ndeliveries       1\ntried again      0\n"), "{shown}");
    let tea = handle(&place, &["tea"]);
    let shown = place.run(&["archive", "show", "orders", &tea]).done().stdout;
    assert!(shown.contains("\ndeliveries       1\nfailed attempts  0\n"), "{shown}");
}
