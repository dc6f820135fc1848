//! `postrider message`

use serde_json::{Value, json};

use crate::place::{Place, text};

const UNKNOWN: &str = "0190163d-8694-739b-aea5-966c26f8ad91";

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["id"])).collect()
}

fn counts(place: &Place) -> [u64; 4] {
    let stats = place.row(&["stats", "orders"]);
    ["ready", "in_flight", "delayed", "dead"].map(|name| stats[name].as_u64().expect("a count"))
}

#[test]
fn waiting_messages_are_delivered_now_dead_lettered_and_deleted_by_their_ids() {
    let place = Place::new();
    let leased = place.send(&["orders", "leased"]);
    place.receive(&["orders"]);
    let [now, dead, gone] = ["now", "dead", "gone"].map(|body| place.send(&["orders", body, "--delay", "3h"]));
    let rehearsed =
        place.run(&["--json", "message", "delete", "orders", &gone, &leased, UNKNOWN, "--dry-run"]).failed(1);
    assert_eq!(rehearsed.outcomes(), ["would_delete", "leased", "not_found"]);
    assert_eq!(counts(&place), [0, 1, 3, 0], "nothing was done");

    assert_eq!(
        place.rows(&["message", "deliver-now", "orders", &now]),
        [json!({"id": now, "queue": "orders", "outcome": "due_now"})]
    );
    let args = ["--json", "message", "dead-letter", "orders", &dead, "--reason", "by hand", "--error", "it is wrong"];
    assert_eq!(place.run(&args).done().outcomes(), ["dead_lettered"]);
    let letter = place.row(&["dlq", "show", "orders", &dead]);
    assert_eq!((&letter["reason"], &letter["error"]), (&json!("by hand"), &json!("it is wrong")));
    assert_eq!(place.run(&["message", "delete", "orders", &gone, "--yes"]).done().stdout, "1 message removed\n");
    assert_eq!(counts(&place), [1, 1, 0, 1]);

    let run = place.run(&["--json", "message", "delete", "orders", &leased, &gone, &now]).failed(1);
    assert_eq!(run.outcomes(), ["leased", "not_found", "deleted"], "every message is tried");
    assert!(run.stderr.contains(&format!("message {leased} was left as it is: a worker has leased it")), "{run:?}");
    assert!(run.stderr.contains("2 messages were left as they are"), "{run:?}");
}

#[test]
fn waiting_messages_are_chosen_by_what_they_have_in_common() {
    let place = Place::new();
    let lines: String = (0..250).map(|number| format!("{number}\n")).collect();
    let late = ["send", "orders", "--lines", "--delay", "3h", "--header", "tenant=a"];
    place.run_with(&late, lines.as_bytes()).done();
    place.run_with(&["send", "orders", "--lines", "--key", "k", "--header", "tenant=b"], b"1\n2\n3\n").done();
    let all = ids(&place.rows(&["peek", "orders", "--max", "1000"]));

    let delayed = ["--json", "message", "deliver-now", "orders", "--state", "delayed"];
    let rehearsed = place.run(&[&delayed[..], &["--dry-run"]].concat()).done();
    assert_eq!(ids(&rehearsed.rows()), all[..250], "in send order");
    assert!(rehearsed.outcomes().iter().all(|outcome| outcome == "would_deliver_now"));
    assert_eq!(counts(&place), [3, 0, 250, 0], "nothing was done");
    assert_eq!(ids(&place.run(&delayed).done().rows()), all[..250]);
    assert_eq!(counts(&place), [253, 0, 0, 0]);
    assert_eq!(place.run(&delayed).done().stdout, "");

    let dead = place.run(&["--json", "message", "dead-letter", "orders", "--key", "k", "--reason", "wrong"]).done();
    assert_eq!(ids(&dead.rows()), all[250..]);
    let none = place.run(&["message", "delete", "orders", "--header", "tenant=a", "--before", "1h"]).done();
    assert_eq!(none.stdout, "0 messages removed\n");
    let gone = place.run(&["message", "delete", "orders", "--header", "tenant=a", "--since", "1h"]).done();
    assert_eq!(gone.stdout, "250 messages removed\n");
    assert_eq!(counts(&place), [0, 0, 0, 3]);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    for (args, told) in [
        (&["delete", "orders"][..], "no messages are chosen"),
        (&["delete", "orders", UNKNOWN, "--all"], "cannot be used with"),
        (&["delete", "orders", "--state", "in_flight"], "a message in flight stays with its worker"),
        (&["delete", "orders_dlq", "--all"], "use 'postrider dlq redrive orders' or 'postrider dlq purge orders'"),
        (&["dead-letter", "orders", "--all"], "--reason <REASON>"),
    ] {
        let run = place.run(&[&["message"], args].concat()).failed(2);
        assert!(run.stderr.contains(told), "{args:?}: {run:?}");
    }
    assert_eq!(counts(&place), [1, 0, 0, 0]);
    let spool = Place::bare();
    let url = format!("spool:{}", spool.file("spool").display());
    let spool = spool.at(url);
    spool.send(&["orders", "1"]);
    let run = spool.run(&["message", "delete", "orders", "--all", "--yes"]).failed(1);
    assert!(run.stderr.contains("actions on waiting messages"), "{run:?}");
}
