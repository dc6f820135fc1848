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

#[test]
fn what_a_message_says_steers_no_terminal_and_json_has_it_as_it_is() {
    let place = Place::new();
    let wild = "line 1\nline 2\u{1b}[2J\u{7}\u{9b}31m";
    let id = place.send(&["orders", wild, "--header", &format!("note={wild}")]);
    let peeked = place.run(&["peek", "orders"]).done();
    let receipt = place.run(&["receive", "orders"]).done();
    let row = place.row(&["peek", "orders", "--max", "1"]);
    assert_eq!((&row["body"], &row["headers"]["note"]), (&json!(wild), &json!(wild)));
    let receipt_line =
        receipt.stdout.lines().find_map(|line| line.trim().strip_prefix("receipt: ")).unwrap().to_owned();
    place.run(&["nack", &receipt_line, "--dead", "bad", "--error", wild]).done();
    let listed = place.run(&["dlq", "list", "orders"]).done();
    let shown = place.run(&["dlq", "show", "orders", &id]).done();
    for run in [&peeked, &receipt, &listed, &shown] {
        let odd = run.stdout.chars().find(|c| c.is_control() && *c != '\n');
        assert!(run.stdout.contains("\\u{1b}[2J") && odd.is_none(), "{odd:?} in {run:?}");
    }
    assert_eq!(place.row(&["dlq", "show", "orders", &id])["error"], wild);
    // Lines are lines, each below the other.
    let lines: Vec<_> = shown.stdout.lines().skip_while(|line| !line.starts_with("error ")).take(2).collect();
    assert_eq!(lines[0], "error            line 1");
    assert!(lines[1].starts_with("                 line 2\\u{1b}"), "{lines:?}");
    // The attempt after which it died failed, too.
    assert!(shown.stdout.contains("\nfailed attempts  1\n"), "{shown:?}");
}

#[test]
fn failed_attempts_are_those_that_a_handler_failed() {
    let place = Place::new();
    let id = place.send(&["orders", "x"]);
    let work = ["work", "orders", "--drain", "--retry", "constant,delay=0s,attempts=2", "--", "false"];
    place.run(&work).done();
    let shown = place.run(&["dlq", "show", "orders", &id]).done().stdout;
    assert!(shown.contains("\nfailed attempts  2\n") && shown.contains("\ndeliveries       2\n"), "{shown}");
    // One that was never given to a handler has none.
    let id = place.send(&["mails", "x", "--expires-in", "1ms"]);
    let dies = || {
        place.run(&["receive", "mails"]).done();
        place.rows(&["dlq", "list", "mails"]).pop()
    };
    while dies().is_none() {}
    let shown = place.run(&["dlq", "show", "mails", &id]).done().stdout;
    assert!(shown.contains("\nfailed attempts  0\n"), "{shown}");
}

/// Dead letters of two kinds, buried by the commands of a worker: `no litres in N` with exit code 65, and `KeyError: 'tea'`.
fn of_two_kinds() -> (Place, [String; 3]) {
    let place = Place::new();
    let ids = ["17", "18", "tea"].map(|body| place.send(&["orders", body]));
    let script = "read -r body; case $body in tea) printf 'Traceback (most recent call last):\\nKeyError: \"tea\"\\n' >&2;; \
                  *) echo starting >&2; echo \"No litres in $body\" >&2;; esac; exit 65";
    place.run(&["work", "orders", "--drain", "--", "sh", "-c", script]).done();
    (place, ids)
}

#[test]
fn the_list_tells_how_a_command_ended_and_the_last_line_that_it_wrote() {
    let (place, _) = of_two_kinds();
    let table = place.run(&["dlq", "list", "orders"]).done().stdout;
    for error in ["exit code 65: No litres in 17 ", "exit code 65: KeyError: \"tea\" "] {
        assert!(table.contains(error), "{table}");
    }
    // The whole error is in JSON.
    let row = place.rows(&["dlq", "list", "orders"]).remove(0);
    assert_eq!(row["error"], "exit code 65 (refuses the message)\nstarting\nNo litres in 17");
}

#[test]
fn dead_letters_are_counted_by_kinds_and_the_small_ones_together() {
    let (place, [_, second, third]) = of_two_kinds();
    let groups = place.rows(&["dlq", "groups", "orders"]);
    let told: Vec<_> =
        groups.iter().map(|row| (row["count"].clone(), text(&row["fingerprint"]), text(&row["example_id"]))).collect();
    let litres = "exit code 65: No litres in #";
    assert_eq!(
        told,
        [(json!(2), litres.to_owned(), second), (json!(1), "exit code 65: KeyError: <value>".to_owned(), third),]
    );
    assert_eq!((&groups[0]["queue"], &groups[0]["reason"]), (&json!("orders"), &json!("rejected")));
    assert!(text(&groups[0]["first_dead_at"]) < text(&groups[0]["last_dead_at"]));
    let table = place.run(&["dlq", "groups", "orders"]).done().stdout;
    assert!(table.starts_with("COUNT  ") && table.lines().nth(1).unwrap().ends_with(litres), "{table}");

    for letter in 'a'..='t' {
        place.bury("mails", "x", &letter.to_string().repeat(3));
    }
    assert_eq!(place.rows(&["dlq", "groups", "mails"]).len(), 20);
    place.bury("mails", "x", "zzz");
    let rows = place.rows(&["dlq", "groups", "mails"]);
    assert_eq!((rows.len(), &rows[20]), (21, &json!({"queue": "mails", "more_kinds": 1, "more_count": 1})));
    let table = place.run(&["dlq", "groups", "mails"]).done().stdout;
    assert!(table.ends_with("\n1 more of 1 other kind\n"), "{table}");
    let missing = place.run(&["dlq", "groups", "ordres"]).failed(1);
    assert!(missing.stderr.contains("there is no queue 'ordres'"), "{missing:?}");
}

#[test]
fn dead_letters_are_chosen_by_their_errors_and_by_when_they_died() {
    let (place, [first, second, third]) = of_two_kinds();
    let listed = |filter: &[&str]| ids(&place.rows(&[&["dlq", "list", "orders"], filter].concat()));
    let litres = "exit code 65: No litres in #";
    assert_eq!(listed(&["--error-contains", "no LITRES"]), [&first, &second].map(String::clone));
    assert_eq!(listed(&["--error-contains", "no litres", "--max", "1"]), [first.as_str()]);
    assert_eq!(listed(&["--fingerprint", litres]), [&first, &second].map(String::clone));
    assert_eq!(listed(&["--error-contains", "18", "--reason", "rejected", "--since", "1h"]), [second.as_str()]);
    let last = text(&place.row(&["dlq", "show", "orders", &third])["dead_at"]);
    assert_eq!(listed(&["--since", &last]), [third.as_str()]);
    for command in ["list", "redrive", "purge"] {
        let run = place.run(&["--json", "dlq", command, "orders", "--since", "2999-01-01T00:00:00Z"]).done();
        assert!(
            run.stdout.is_empty() && run.stderr.contains("no dead letter of 'orders' is meant by these"),
            "{run:?}"
        );
    }
    place.run(&["dlq", "purge", "orders", "--all", "--since", "1h"]).failed(2);
    place.run(&["dlq", "redrive", "orders", &first, "--error-contains", "x"]).failed(2);

    let redrive = ["dlq", "redrive", "orders", "--fingerprint", litres];
    let rehearsed = place.rows(&[&redrive[..], &["--dry-run"]].concat());
    assert_eq!(
        (ids(&rehearsed), &rehearsed[0]["outcome"]),
        (vec![first.clone(), second.clone()], &json!("would_redrive"))
    );
    let purge = ["dlq", "purge", "orders", "--error-contains", "tea"];
    let rehearsed = place.rows(&[&purge[..], &["--dry-run"]].concat());
    assert_eq!((ids(&rehearsed), &rehearsed[0]["outcome"]), (vec![third.clone()], &json!("would_purge")));
    assert_eq!(place.row(&["stats", "orders"])["dead"], 3);
    assert_eq!(place.run(&redrive).done().stdout, "2 dead letters went back to 'orders'\n");
    assert_eq!(place.run(&purge).done().stdout, "1 dead letter removed\n");
    let stats = place.row(&["stats", "orders"]);
    assert_eq!((&stats["dead"], &stats["ready"]), (&json!(0), &json!(2)));
}

#[test]
fn an_edit_is_refused_that_spoils_json_or_names_a_header_twice() {
    let place = Place::new();
    let id = text(&place.row(&["send", "orders", "{\"id\": 7}", "--content-type", "application/json"])["id"]);
    place.run(&["nack", &place.receive(&["orders"]), "--dead", "poison"]).done();
    let run = place.run(&["dlq", "edit", "orders", &id, "--body", "{\"id\": 7,\n}"]).failed(2);
    assert!(
        run.stderr.contains("line 2, column 1: ") && run.stderr.contains("or change the content type too"),
        "{run:?}"
    );
    for options in [["--header", "a=1", "--header", "a=2"], ["--header", "a=1", "--remove-header", "a"]] {
        let run = place.run(&[&["dlq", "edit", "orders", &id], &options[..]].concat()).failed(2);
        assert!(run.stderr.contains("header 'a' is given twice"), "{run:?}");
    }
    assert_eq!(place.row(&["dlq", "show", "orders", &id])["revision"], 0);
    let edited = place.row(&["dlq", "edit", "orders", &id, "--body", "seven", "--content-type", "text/plain"]);
    assert_eq!((&edited["body"], &edited["content_type"]), (&json!("seven"), &json!("text/plain")));
}
