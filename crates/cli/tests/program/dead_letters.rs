//! `postrider dlq`

use serde_json::{Value, json};

use crate::scratch::{Scratch, text};

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["id"])).collect()
}

#[test]
fn the_list_has_its_fields_and_all_pages() {
    let scratch = Scratch::new();
    let lines: String = (0..250).map(|number| format!("{number}\n")).collect();
    scratch.run_with(&["send", "orders", "--lines", "--header", "a=1"], lines.as_bytes()).done();
    for _ in 0..5 {
        let receipts: Vec<_> =
            scratch.rows(&["receive", "orders", "--max", "50"]).iter().map(|row| text(&row["receipt"])).collect();
        let receipts: Vec<_> = receipts.iter().map(String::as_str).collect();
        scratch.run(&[&["nack", "--dead", "poison", "--error", "it broke"], &receipts[..]].concat()).done();
    }
    let rows = scratch.rows(&["dlq", "list", "orders"]);
    assert_eq!(rows.len(), 250);
    let row = &rows[0];
    assert_eq!((&row["queue"], &row["reason"]), (&json!("orders"), &json!("poison")));
    assert_eq!((&row["error"], &row["receive_count"]), (&json!("it broke"), &json!(1)));
    assert_eq!((&row["body"], &row["headers"]), (&json!("0"), &json!({"a": "1"})));
    text(&row["dead_at"]).parse::<postrider::Timestamp>().expect("an RFC 3339 time");

    assert_eq!(ids(&scratch.rows(&["dlq", "list", "orders", "--max", "120"])), ids(&rows)[..120]);
    for command in ["list", "redrive", "purge"] {
        let run = scratch.run(&["--json", "dlq", command, "orders", "--reason", "other"]).done();
        assert!(
            run.stdout.is_empty() && run.stderr.contains("no dead letter of 'orders' has the reason 'other'"),
            "{run:?}"
        );
    }
    let table = scratch.run(&["dlq", "list", "orders"]).done().stdout;
    assert_eq!(table.lines().filter(|line| line.starts_with("ID ")).count(), 1);
    assert_eq!(table.lines().count(), 251);

    let redriven = scratch.rows(&["dlq", "redrive", "orders", "--all"]);
    assert_eq!(ids(&redriven), ids(&rows));
    assert_eq!(scratch.row(&["stats", "orders"])["ready"], 250);
}

#[test]
fn a_dead_letter_is_shown_with_its_record() {
    let scratch = Scratch::new();
    let id = scratch.dead_letter("orders", "hello", "poison");
    let record = scratch.row(&["dlq", "show", "orders", &id]);
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
    let shown = scratch.run(&["dlq", "show", "orders", &id]).done().stdout;
    assert!(shown.contains("reason           poison\n") && shown.ends_with("\n\nhello\n"), "{shown}");
    // The name of the dead-letter queue means the same.
    assert_eq!(scratch.row(&["dlq", "show", "orders_dlq", &id]), record);
}

#[test]
fn a_message_that_is_not_dead_is_not_found() {
    let scratch = Scratch::new();
    let run = scratch.run(&["dlq", "show", "orders", "0190163d-8694-739b-aea5-966c26f8ad91"]).failed(1);
    insta::assert_snapshot!("dlq_not_found", run.seen());
}

#[test]
fn an_edit_changes_only_the_given_fields() {
    let scratch = Scratch::new();
    let id = scratch.dead_letter("orders", "bad", "poison");
    let edited = scratch.row(&["dlq", "edit", "orders", &id, "--header", "a=1", "--header", "b=2"]);
    assert_eq!((&edited["body"], &edited["headers"]), (&json!("bad"), &json!({"a": "1", "b": "2"})));
    let args = ["--json", "dlq", "edit", "orders", &id, "--body", "-", "--remove-header", "a", "--content-type", "x/y"];
    let edited = scratch.run_with(&args, b"good\xff").done().rows().remove(0);
    assert_eq!((&edited["body_base64"], &edited["headers"]), (&json!("Z29vZP8="), &json!({"b": "2"})));
    assert_eq!((&edited["content_type"], &edited["revision"]), (&json!("x/y"), &json!(2)));

    scratch.run(&["dlq", "edit", "orders", &id]).failed(2);
    let run = scratch.run(&["dlq", "edit", "orders", &id, "--remove-header", "z", "--body", "lost"]).failed(2);
    assert!(run.stderr.contains("has no header 'z' to remove; it has: b"), "{run:?}");
    assert_eq!(scratch.row(&["dlq", "show", "orders", &id])["revision"], 2);

    scratch.run(&["dlq", "redrive", "orders", &id]).done();
    let received = scratch.row(&["receive", "orders"]);
    assert_eq!((&received["id"], &received["body_base64"]), (&json!(id), &json!("Z29vZP8=")));
    assert_eq!(received["receive_count"], 1);
}

#[test]
fn a_redrive_sends_the_selected_dead_letters_to_the_given_queue() {
    let scratch = Scratch::new();
    let first = scratch.dead_letter("orders", "1", "poison");
    let second = scratch.dead_letter("orders", "2", "expired_card");
    let third = scratch.dead_letter("orders", "3", "poison");

    let dry_run = scratch.rows(&["dlq", "redrive", "orders", "--reason", "poison", "--dry-run"]);
    assert_eq!(ids(&dry_run), [first.as_str(), third.as_str()]);
    assert_eq!(dry_run[0]["outcome"], "would_redrive");
    assert_eq!(scratch.row(&["stats", "orders"])["dead"], 3);

    let row = scratch.row(&["dlq", "redrive", "orders", &second, "--to", "cards"]);
    assert_eq!(row, json!({"id": second, "queue": "orders", "outcome": "redriven", "to": "cards"}));
    assert_eq!(scratch.row(&["receive", "cards"])["id"], second.as_str());
    let run = scratch.run(&["dlq", "redrive", "orders", "--reason", "poison"]).done();
    assert_eq!(run.stdout, "2 dead letters redriven to 'orders'\n");
    assert_eq!(scratch.row(&["stats", "orders"])["dead"], 0);
}

#[test]
fn dead_letters_that_cannot_be_redriven_are_skipped_and_reported() {
    let scratch = Scratch::new();
    let dead = scratch.send(&["orders", "1", "--dedup-key", "k"]);
    let receipt = scratch.receive(&["orders"]);
    scratch.run(&["nack", &receipt, "--dead", "poison"]).done();
    scratch.send(&["orders", "2", "--dedup-key", "k"]);
    let unknown = "0190163d-8694-739b-aea5-966c26f8ad91";
    let run = scratch.run(&["--json", "dlq", "redrive", "orders", &dead, unknown]).failed(1);
    assert_eq!(run.outcomes(), ["dedup_key_taken", "not_found"]);
    insta::assert_snapshot!("dlq_redrive_stays", scratch.run(&["dlq", "redrive", "orders", &dead, unknown]).seen());
}

#[test]
fn a_purge_removes_only_the_selected_dead_letters() {
    let scratch = Scratch::new();
    let first = scratch.dead_letter("orders", "1", "poison");
    let second = scratch.dead_letter("orders", "2", "other");
    let third = scratch.dead_letter("orders", "3", "other");
    assert_eq!(scratch.row(&["dlq", "purge", "orders", &first, "--dry-run"])["outcome"], "would_purge");
    let run = scratch.run(&["dlq", "purge", "orders", &first, &first]).done();
    assert_eq!(run.stdout, "1 dead letter removed\n");
    // A worker has leased one of the others.
    scratch.receive(&["orders_dlq"]);
    let run = scratch.run(&["--json", "dlq", "purge", "orders", &first, &second, &third]).failed(1);
    assert_eq!(run.outcomes(), ["purged", "not_found", "leased"]);
    assert_eq!(ids(&scratch.rows(&["dlq", "list", "orders"])), [second]);
}

#[test]
fn no_selection_does_not_mean_all() {
    let scratch = Scratch::new();
    scratch.dead_letter("orders", "1", "poison");
    insta::assert_snapshot!("dlq_redrive_nothing_chosen", scratch.run(&["dlq", "redrive", "orders"]).failed(2).seen());
    scratch.run(&["dlq", "purge", "orders"]).failed(2);
    scratch.run(&["dlq", "purge", "orders", "--all", "--reason", "x"]).failed(2);
    assert_eq!(scratch.row(&["stats", "orders"])["dead"], 1);
    scratch.run(&["dlq", "purge", "orders", "--all"]).done();
    assert_eq!(scratch.row(&["stats", "orders"])["dead"], 0);
}

#[test]
fn control_characters_of_a_message_are_escaped_except_in_json() {
    let scratch = Scratch::new();
    let wild = "line 1\nline 2\u{1b}[2J\u{7}\u{9b}31m";
    let id = scratch.send(&["orders", wild, "--header", &format!("note={wild}")]);
    let peeked = scratch.run(&["peek", "orders"]).done();
    let receipt = scratch.run(&["receive", "orders"]).done();
    let row = scratch.row(&["peek", "orders", "--max", "1"]);
    assert_eq!((&row["body"], &row["headers"]["note"]), (&json!(wild), &json!(wild)));
    let receipt_line =
        receipt.stdout.lines().find_map(|line| line.trim().strip_prefix("receipt: ")).unwrap().to_owned();
    scratch.run(&["nack", &receipt_line, "--dead", "bad", "--error", wild]).done();
    let listed = scratch.run(&["dlq", "list", "orders"]).done();
    let shown = scratch.run(&["dlq", "show", "orders", &id]).done();
    for run in [&peeked, &receipt, &listed, &shown] {
        let odd = run.stdout.chars().find(|c| c.is_control() && *c != '\n');
        assert!(run.stdout.contains("\\u{1b}[2J") && odd.is_none(), "{odd:?} in {run:?}");
    }
    assert_eq!(scratch.row(&["dlq", "show", "orders", &id])["error"], wild);
    // Lines are lines, each below the other.
    let lines: Vec<_> = shown.stdout.lines().skip_while(|line| !line.starts_with("error ")).take(2).collect();
    assert_eq!(lines[0], "error            line 1");
    assert!(lines[1].starts_with("                 line 2\\u{1b}"), "{lines:?}");
    // The last attempt counts too.
    assert!(shown.stdout.contains("\nfailed attempts  1\n"), "{shown:?}");
}

#[test]
fn failed_attempts_are_those_that_a_handler_failed() {
    let scratch = Scratch::new();
    let id = scratch.send(&["orders", "x"]);
    let work = ["work", "orders", "--drain", "--retry", "constant,delay=0s,attempts=2", "--", "false"];
    scratch.run(&work).done();
    let shown = scratch.run(&["dlq", "show", "orders", &id]).done().stdout;
    assert!(shown.contains("\nfailed attempts  2\n") && shown.contains("\ndeliveries       2\n"), "{shown}");
    // A message that no handler received has none.
    let id = scratch.send(&["mails", "x", "--expires-in", "1ms"]);
    let dies = || {
        scratch.run(&["receive", "mails"]).done();
        scratch.rows(&["dlq", "list", "mails"]).pop()
    };
    while dies().is_none() {}
    let shown = scratch.run(&["dlq", "show", "mails", &id]).done().stdout;
    assert!(shown.contains("\nfailed attempts  0\n"), "{shown}");
}

/// Dead letters with two kinds of errors of a worker's command: `no litres in N` with exit code 65, and `KeyError: 'tea'`.
fn of_two_kinds() -> (Scratch, [String; 3]) {
    let scratch = Scratch::new();
    let ids = ["17", "18", "tea"].map(|body| scratch.send(&["orders", body]));
    let script = "read -r body; case $body in tea) printf 'Traceback (most recent call last):\\nKeyError: \"tea\"\\n' >&2;; \
                  *) echo starting >&2; echo \"No litres in $body\" >&2;; esac; exit 65";
    scratch.run(&["work", "orders", "--drain", "--", "sh", "-c", script]).done();
    (scratch, ids)
}

#[test]
fn the_list_shows_the_exit_code_and_the_last_line_of_stderr() {
    let (scratch, _) = of_two_kinds();
    let table = scratch.run(&["dlq", "list", "orders"]).done().stdout;
    for error in ["exit code 65: No litres in 17 ", "exit code 65: KeyError: \"tea\" "] {
        assert!(table.contains(error), "{table}");
    }
    // The whole error is in JSON.
    let row = scratch.rows(&["dlq", "list", "orders"]).remove(0);
    assert_eq!(row["error"], "exit code 65 (refuses the message)\nstarting\nNo litres in 17");
}

#[test]
fn dead_letters_are_grouped_by_kind_and_small_groups_summed_up() {
    let (scratch, [_, second, third]) = of_two_kinds();
    let groups = scratch.rows(&["dlq", "groups", "orders"]);
    let noted: Vec<_> =
        groups.iter().map(|row| (row["count"].clone(), text(&row["fingerprint"]), text(&row["example_id"]))).collect();
    let litres = "exit code 65: No litres in #";
    assert_eq!(
        noted,
        [(json!(2), litres.to_owned(), second), (json!(1), "exit code 65: KeyError: <value>".to_owned(), third),]
    );
    assert_eq!((&groups[0]["queue"], &groups[0]["reason"]), (&json!("orders"), &json!("rejected")));
    assert!(text(&groups[0]["first_dead_at"]) < text(&groups[0]["last_dead_at"]));
    let table = scratch.run(&["dlq", "groups", "orders"]).done().stdout;
    assert!(table.starts_with("COUNT  ") && table.lines().nth(1).unwrap().ends_with(litres), "{table}");

    for letter in 'a'..='t' {
        scratch.dead_letter("mails", "x", &letter.to_string().repeat(3));
    }
    assert_eq!(scratch.rows(&["dlq", "groups", "mails"]).len(), 20);
    scratch.dead_letter("mails", "x", "zzz");
    let rows = scratch.rows(&["dlq", "groups", "mails"]);
    assert_eq!((rows.len(), &rows[20]), (21, &json!({"queue": "mails", "more_kinds": 1, "more_count": 1})));
    let table = scratch.run(&["dlq", "groups", "mails"]).done().stdout;
    assert!(table.ends_with("\n1 more of 1 other kind\n"), "{table}");
    let missing = scratch.run(&["dlq", "groups", "ordres"]).failed(1);
    assert!(missing.stderr.contains("there is no queue 'ordres'"), "{missing:?}");
}

#[test]
fn dead_letters_are_selected_by_error_and_time() {
    let (scratch, [first, second, third]) = of_two_kinds();
    let listed = |filter: &[&str]| ids(&scratch.rows(&[&["dlq", "list", "orders"], filter].concat()));
    let litres = "exit code 65: No litres in #";
    assert_eq!(listed(&["--error-contains", "no LITRES"]), [&first, &second].map(String::clone));
    assert_eq!(listed(&["--error-contains", "no litres", "--max", "1"]), [first.as_str()]);
    assert_eq!(listed(&["--fingerprint", litres]), [&first, &second].map(String::clone));
    assert_eq!(listed(&["--error-contains", "18", "--reason", "rejected", "--since", "1h"]), [second.as_str()]);
    let last = text(&scratch.row(&["dlq", "show", "orders", &third])["dead_at"]);
    assert_eq!(listed(&["--since", &last]), [third.as_str()]);
    for command in ["list", "redrive", "purge"] {
        let run = scratch.run(&["--json", "dlq", command, "orders", "--since", "2999-01-01T00:00:00Z"]).done();
        assert!(
            run.stdout.is_empty() && run.stderr.contains("no dead letter of 'orders' matches these options"),
            "{run:?}"
        );
    }
    scratch.run(&["dlq", "purge", "orders", "--all", "--since", "1h"]).failed(2);
    scratch.run(&["dlq", "redrive", "orders", &first, "--error-contains", "x"]).failed(2);

    let redrive = ["dlq", "redrive", "orders", "--fingerprint", litres];
    let dry_run = scratch.rows(&[&redrive[..], &["--dry-run"]].concat());
    assert_eq!((ids(&dry_run), &dry_run[0]["outcome"]), (vec![first.clone(), second.clone()], &json!("would_redrive")));
    let purge = ["dlq", "purge", "orders", "--error-contains", "tea"];
    let dry_run = scratch.rows(&[&purge[..], &["--dry-run"]].concat());
    assert_eq!((ids(&dry_run), &dry_run[0]["outcome"]), (vec![third.clone()], &json!("would_purge")));
    assert_eq!(scratch.row(&["stats", "orders"])["dead"], 3);
    assert_eq!(scratch.run(&redrive).done().stdout, "2 dead letters redriven to 'orders'\n");
    assert_eq!(scratch.run(&purge).done().stdout, "1 dead letter removed\n");
    let stats = scratch.row(&["stats", "orders"]);
    assert_eq!((&stats["dead"], &stats["ready"]), (&json!(0), &json!(2)));
}

#[test]
fn an_edit_with_invalid_json_or_a_repeated_header_is_refused() {
    let scratch = Scratch::new();
    let id = text(&scratch.row(&["send", "orders", "{\"id\": 7}", "--content-type", "application/json"])["id"]);
    scratch.run(&["nack", &scratch.receive(&["orders"]), "--dead", "poison"]).done();
    let run = scratch.run(&["dlq", "edit", "orders", &id, "--body", "{\"id\": 7,\n}"]).failed(2);
    assert!(
        run.stderr.contains("line 2, column 1: ") && run.stderr.contains("or change the content type too"),
        "{run:?}"
    );
    for options in [["--header", "a=1", "--header", "a=2"], ["--header", "a=1", "--remove-header", "a"]] {
        let run = scratch.run(&[&["dlq", "edit", "orders", &id], &options[..]].concat()).failed(2);
        assert!(run.stderr.contains("header 'a' is given twice"), "{run:?}");
    }
    assert_eq!(scratch.row(&["dlq", "show", "orders", &id])["revision"], 0);
    let edited = scratch.row(&["dlq", "edit", "orders", &id, "--body", "seven", "--content-type", "text/plain"]);
    assert_eq!((&edited["body"], &edited["content_type"]), (&json!("seven"), &json!("text/plain")));
}
