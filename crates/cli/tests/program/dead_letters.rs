//! `postrider dlq`

use serde_json::{Value, json};

use crate::place::{Place, text};

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["id"])).collect()
}

#[test]
fn the_list_has_what_is_promised_and_comes_to_its_end() {
    let place = Place::new();
    let lines: String = (0..250).map(|number| format!("{number}\n")).collect();
    place.run_with(&["send", "orders", "--lines", "--header", "a=1"], lines.as_bytes()).done();
    for _ in 0..5 {
        let receipts: Vec<_> =
            place.rows(&["receive", "orders", "--max", "50"]).iter().map(|row| text(&row["receipt"])).collect();
        let receipts: Vec<_> = receipts.iter().map(String::as_str).collect();
        place.run(&[&["nack", "--dead", "poison", "--error", "it broke"], &receipts[..]].concat()).done();
    }
    let rows = place.rows(&["dlq", "list", "orders"]);
    assert_eq!(rows.len(), 250);
    let row = &rows[0];
    assert_eq!((&row["queue"], &row["reason"]), (&json!("orders"), &json!("poison")));
    assert_eq!((&row["error"], &row["receive_count"]), (&json!("it broke"), &json!(1)));
    assert_eq!((&row["body"], &row["headers"]), (&json!("0"), &json!({"a": "1"})));
    text(&row["dead_at"]).parse::<postrider::Timestamp>().expect("an RFC 3339 time");

    assert_eq!(ids(&place.rows(&["dlq", "list", "orders", "--max", "120"])), ids(&rows)[..120]);
    for command in ["list", "redrive", "purge"] {
        let run = place.run(&["--json", "dlq", command, "orders", "--reason", "other"]).done();
        assert!(
            run.stdout.is_empty() && run.stderr.contains("no dead letter of 'orders' has the reason 'other'"),
            "{run:?}"
        );
    }
    let table = place.run(&["dlq", "list", "orders"]).done().stdout;
    assert_eq!(table.lines().filter(|line| line.starts_with("ID ")).count(), 1);
    assert_eq!(table.lines().count(), 251);

    let redriven = place.rows(&["dlq", "redrive", "orders", "--all"]);
    assert_eq!(ids(&redriven), ids(&rows));
    assert_eq!(place.row(&["stats", "orders"])["ready"], 250);
}

#[test]
fn a_dead_letter_is_shown_with_its_record() {
    let place = Place::new();
    let id = place.bury("orders", "hello", "poison");
    let record = place.row(&["dlq", "show", "orders", &id]);
    for (field, value) in [
        ("id", json!(id)),
        ("queue", json!("orders")),
        ("reason", json!("poison")),
        ("error", json!("it broke")),
        ("body", json!("hello")),
        ("receive_count", json!(1)),
        ("attempts_count", json!(0)),
        ("priority", json!(4)),
        ("revision", json!(0)),
        ("expires_at", Value::Null),
        ("dedup_key", Value::Null),
    ] {
        assert_eq!(record[field], value, "{field}");
    }
    assert!(text(&record["enqueued_at"]) < text(&record["dead_at"]));
    let shown = place.run(&["dlq", "show", "orders", &id]).done().stdout;
    assert!(shown.contains("reason           poison\n") && shown.ends_with("\n\nhello\n"), "{shown}");
    // The name of the dead-letter queue means the same.
    assert_eq!(place.row(&["dlq", "show", "orders_dlq", &id]), record);
}

#[test]
fn a_message_that_is_not_dead_is_told_so() {
    let place = Place::new();
    let run = place.run(&["dlq", "show", "orders", "0190163d-8694-739b-aea5-966c26f8ad91"]).failed(1);
    insta::assert_snapshot!("dlq_not_found", run.seen());
}

#[test]
fn an_edit_changes_what_it_names_and_nothing_else() {
    let place = Place::new();
    let id = place.bury("orders", "bad", "poison");
    let edited = place.row(&["dlq", "edit", "orders", &id, "--header", "a=1", "--header", "b=2"]);
    assert_eq!((&edited["body"], &edited["headers"]), (&json!("bad"), &json!({"a": "1", "b": "2"})));
    let args = ["--json", "dlq", "edit", "orders", &id, "--body", "-", "--remove-header", "a", "--content-type", "x/y"];
    let edited = place.run_with(&args, b"good\xff").done().rows().remove(0);
    assert_eq!((&edited["body_base64"], &edited["headers"]), (&json!("Z29vZP8="), &json!({"b": "2"})));
    assert_eq!((&edited["content_type"], &edited["revision"]), (&json!("x/y"), &json!(2)));

    place.run(&["dlq", "edit", "orders", &id]).failed(2);
    let run = place.run(&["dlq", "edit", "orders", &id, "--remove-header", "z", "--body", "lost"]).failed(2);
    assert!(run.stderr.contains("has no header 'z' to remove; it has: b"), "{run:?}");
    assert_eq!(place.row(&["dlq", "show", "orders", &id])["revision"], 2);

    place.run(&["dlq", "redrive", "orders", &id]).done();
    let received = place.row(&["receive", "orders"]);
    assert_eq!((&received["id"], &received["body_base64"]), (&json!(id), &json!("Z29vZP8=")));
    assert_eq!(received["receive_count"], 1);
}

#[test]
fn a_redrive_takes_what_is_chosen_where_it_is_told() {
    let place = Place::new();
    let first = place.bury("orders", "1", "poison");
    let second = place.bury("orders", "2", "expired_card");
    let third = place.bury("orders", "3", "poison");

    let rehearsed = place.rows(&["dlq", "redrive", "orders", "--reason", "poison", "--dry-run"]);
    assert_eq!(ids(&rehearsed), [first.as_str(), third.as_str()]);
    assert_eq!(rehearsed[0]["outcome"], "would_redrive");
    assert_eq!(place.row(&["stats", "orders"])["dead"], 3);

    let row = place.row(&["dlq", "redrive", "orders", &second, "--to", "cards"]);
    assert_eq!(row, json!({"id": second, "queue": "orders", "outcome": "redriven", "to": "cards"}));
    assert_eq!(place.row(&["receive", "cards"])["id"], second.as_str());
    let run = place.run(&["dlq", "redrive", "orders", "--reason", "poison"]).done();
    assert_eq!(run.stdout, "2 dead letters went back to 'orders'\n");
    assert_eq!(place.row(&["stats", "orders"])["dead"], 0);
}

#[test]
fn what_cannot_be_redriven_stays_and_is_told() {
    let place = Place::new();
    let dead = place.send(&["orders", "1", "--dedup-key", "k"]);
    let receipt = place.receive(&["orders"]);
    place.run(&["nack", &receipt, "--dead", "poison"]).done();
    place.send(&["orders", "2", "--dedup-key", "k"]);
    let unknown = "0190163d-8694-739b-aea5-966c26f8ad91";
    let run = place.run(&["--json", "dlq", "redrive", "orders", &dead, unknown]).failed(1);
    assert_eq!(run.outcomes(), ["dedup_key_taken", "not_found"]);
    insta::assert_snapshot!("dlq_redrive_stays", place.run(&["dlq", "redrive", "orders", &dead, unknown]).seen());
}

#[test]
fn a_purge_takes_what_is_chosen_and_nothing_else() {
    let place = Place::new();
    let first = place.bury("orders", "1", "poison");
    let second = place.bury("orders", "2", "other");
    let third = place.bury("orders", "3", "other");
    assert_eq!(place.row(&["dlq", "purge", "orders", &first, "--dry-run"])["outcome"], "would_purge");
    let run = place.run(&["dlq", "purge", "orders", &first, &first]).done();
    assert_eq!(run.stdout, "1 dead letter removed\n");
    // Somebody works on one of the others.
    place.receive(&["orders_dlq"]);
    let run = place.run(&["--json", "dlq", "purge", "orders", &first, &second, &third]).failed(1);
    assert_eq!(run.outcomes(), ["purged", "not_found", "leased"]);
    assert_eq!(ids(&place.rows(&["dlq", "list", "orders"])), [second]);
}

#[test]
fn nothing_chosen_is_not_everything() {
    let place = Place::new();
    place.bury("orders", "1", "poison");
    insta::assert_snapshot!("dlq_redrive_nothing_chosen", place.run(&["dlq", "redrive", "orders"]).failed(2).seen());
    place.run(&["dlq", "purge", "orders"]).failed(2);
    place.run(&["dlq", "purge", "orders", "--all", "--reason", "x"]).failed(2);
    assert_eq!(place.row(&["stats", "orders"])["dead"], 1);
    place.run(&["dlq", "purge", "orders", "--all"]).done();
    assert_eq!(place.row(&["stats", "orders"])["dead"], 0);
}
