//! `postrider message`

use serde_json::{Value, json};

use crate::scratch::{Scratch, text};

const UNKNOWN: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["id"])).collect()
}

fn counts(scratch: &Scratch) -> [u64; 4] {
    let stats = scratch.row(&["stats", "orders"]);
    ["ready", "in_flight", "delayed", "dead"].map(|name| stats[name].as_u64().expect("a count"))
}

#[test]
fn waiting_messages_are_delivered_now_dead_lettered_and_deleted_by_their_ids() {
    let scratch = Scratch::new();
    let leased = scratch.send(&["orders", "leased"]);
    scratch.receive(&["orders"]);
    let [now, dead, gone] = ["now", "dead", "gone"].map(|body| scratch.send(&["orders", body, "--delay", "3h"]));
    let dry_run =
        scratch.run(&["--json", "message", "delete", "orders", &gone, &leased, UNKNOWN, "--dry-run"]).failed(1);
    assert_eq!(dry_run.outcomes(), ["would_delete", "leased", "not_found"]);
    assert_eq!(counts(&scratch), [0, 1, 3, 0], "nothing was done");

    assert_eq!(
        scratch.rows(&["message", "deliver-now", "orders", &now]),
        [json!({"id": now, "queue": "orders", "outcome": "due_now"})]
    );
    let args = ["--json", "message", "dead-letter", "orders", &dead, "--reason", "by hand", "--error", "it is wrong"];
    assert_eq!(scratch.run(&args).done().outcomes(), ["dead_lettered"]);
    let letter = scratch.row(&["dlq", "show", "orders", &dead]);
    assert_eq!((&letter["reason"], &letter["error"]), (&json!("by hand"), &json!("it is wrong")));
    assert_eq!(scratch.run(&["message", "delete", "orders", &gone, "--yes"]).done().stdout, "1 message removed\n");
    assert_eq!(counts(&scratch), [1, 1, 0, 1]);

    let run = scratch.run(&["--json", "message", "delete", "orders", &leased, &gone, &now]).failed(1);
    assert_eq!(run.outcomes(), ["leased", "not_found", "deleted"], "every message is tried");
    assert!(run.stderr.contains(&format!("message {leased} was skipped: a worker has leased it")), "{run:?}");
    assert!(run.stderr.contains("2 messages were skipped"), "{run:?}");
}

#[test]
fn waiting_messages_are_selected_by_filters() {
    let scratch = Scratch::new();
    let lines: String = (0..250).map(|number| format!("{number}\n")).collect();
    let late = ["send", "orders", "--lines", "--delay", "3h", "--header", "tenant=a"];
    scratch.run_with(&late, lines.as_bytes()).done();
    scratch.run_with(&["send", "orders", "--lines", "--key", "k", "--header", "tenant=b"], b"1\n2\n3\n").done();
    let all = ids(&scratch.rows(&["peek", "orders", "--max", "1000"]));

    let delayed = ["--json", "message", "deliver-now", "orders", "--state", "delayed"];
    let dry_run = scratch.run(&[&delayed[..], &["--dry-run"]].concat()).done();
    assert_eq!(ids(&dry_run.rows()), all[..250], "in send order");
    assert!(dry_run.outcomes().iter().all(|outcome| outcome == "would_deliver_now"));
    assert_eq!(counts(&scratch), [3, 0, 250, 0], "nothing was done");
    assert_eq!(ids(&scratch.run(&delayed).done().rows()), all[..250]);
    assert_eq!(counts(&scratch), [253, 0, 0, 0]);
    assert_eq!(scratch.run(&delayed).done().stdout, "");

    let dead = scratch.run(&["--json", "message", "dead-letter", "orders", "--key", "k", "--reason", "wrong"]).done();
    assert_eq!(ids(&dead.rows()), all[250..]);
    let none = scratch.run(&["message", "delete", "orders", "--header", "tenant=a", "--before", "1h"]).done();
    assert_eq!(none.stdout, "0 messages removed\n");
    let gone = scratch.run(&["message", "delete", "orders", "--header", "tenant=a", "--since", "1h"]).done();
    assert_eq!(gone.stdout, "250 messages removed\n");
    assert_eq!(counts(&scratch), [0, 0, 0, 3]);
}

#[test]
fn an_invalid_selection_is_refused() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    for (args, noted) in [
        (&["delete", "orders"][..], "no messages are selected"),
        (&["delete", "orders", UNKNOWN, "--all"], "cannot be used with"),
        (&["delete", "orders", "--state", "in_flight"], "a message in flight belongs to its worker"),
        (&["delete", "orders_dlq", "--all"], "use 'postrider dlq redrive orders' or 'postrider dlq purge orders'"),
        (&["dead-letter", "orders", "--all"], "--reason <REASON>"),
    ] {
        let run = scratch.run(&[&["message"], args].concat()).failed(2);
        assert!(run.stderr.contains(noted), "{args:?}: {run:?}");
    }
    assert_eq!(counts(&scratch), [1, 0, 0, 0]);
    let spool = Scratch::bare();
    let url = format!("spool:{}", spool.file("spool").display());
    let spool = spool.at(url);
    spool.send(&["orders", "1"]);
    let run = spool.run(&["message", "delete", "orders", "--all", "--yes"]).failed(1);
    assert!(run.stderr.contains("actions on waiting messages"), "{run:?}");
}
