//! `postrider ack`, `release`, `nack`, `extend`

use serde_json::json;

use crate::place::{Place, foreign_receipt, text};

#[test]
fn receipts_settle_from_another_process() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let received = place.rows(&["receive", "orders", "--max", "2"]);
    let receipts: Vec<_> = received.iter().map(|row| text(&row["receipt"])).collect();
    let rows = place.rows(&["ack", &receipts[0], &receipts[1]]);
    for (row, received) in rows.iter().zip(&received) {
        let (receipt, id) = (&received["receipt"], &received["id"]);
        assert_eq!(*row, json!({"receipt": receipt, "id": id, "queue": "orders", "outcome": "acked", "error": null}));
    }
    assert_eq!(place.row(&["stats", "orders"])["in_flight"], 0);
}

#[test]
fn a_receipt_works_once_and_the_others_are_tried_all_the_same() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let [stale, good] = [place.receive(&["orders"]), place.receive(&["orders"])];
    place.run(&["ack", &stale]).done();
    let run = place.run(&["--json", "ack", &stale, &good]).failed(1);
    assert_eq!(run.outcomes(), ["expired", "acked"]);
    for args in [&["ack", &good][..], &["nack", &good], &["release", &good], &["extend", &good, "5s"]] {
        let run = place.run(&[&["--json"], args].concat()).failed(1);
        assert_eq!(run.outcomes(), ["expired"], "{args:?}");
    }
    insta::assert_snapshot!("ack_expired", place.run(&["ack", &good]).failed(1).seen());
}

#[test]
fn a_lease_that_ran_out_settles_nothing() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    let late = place.receive(&["orders", "--visibility", "1ms"]);
    // The next delivery shows that the first lease is over.
    let next = place.receive(&["orders", "--wait", "60s"]);
    assert_eq!(place.run(&["--json", "ack", &late]).failed(1).outcomes(), ["expired"]);
    assert_eq!(place.run(&["--json", "ack", &next]).done().outcomes(), ["acked"]);
}

#[test]
fn a_malformed_receipt_keeps_no_other_from_being_tried() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let [one, two] = [place.receive(&["orders"]), place.receive(&["orders"])];
    let cut = &one[..one.len() - 1];
    let run = place.run(&["--json", "ack", cut, &one]).failed(1);
    assert_eq!(run.outcomes(), ["invalid", "acked"]);
    let row = &run.rows()[0];
    assert_eq!((&row["receipt"], &row["id"], &row["queue"]), (&json!(cut), &json!(null), &json!(null)));
    assert!(text(&row["error"]).contains("is no receipt: it is damaged or incomplete"), "{row}");
    assert!(run.stderr.contains("is no receipt: it is damaged or incomplete"), "{run:?}");
    assert_eq!(place.run(&["--json", "extend", &two, "x", "1m"]).failed(1).outcomes(), ["extended", "invalid"]);
    assert_eq!(place.run(&["ack", cut, "orders"]).failed(2).stdout, "");
    insta::assert_snapshot!("ack_no_receipt", place.run(&["ack", "orders"]).failed(2).seen());
}

#[test]
fn a_receipt_of_another_file_is_said_to_be_perhaps_that() {
    let (place, other) = (Place::new(), Place::new());
    place.send(&["orders", "1"]);
    let receipt = place.receive(&["orders"]);
    let run = other.run(&["--json", "ack", &receipt]).failed(1);
    let store = format!("the receipt is of another store than sqlite:{}", other.file("queues.db").display());
    assert!(run.stderr.contains(&store) && run.outcomes() == ["expired"], "{run:?}");
}

#[test]
fn a_receipt_of_another_store_is_invalid() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    let run = place.run(&["--json", "ack", &foreign_receipt()]).failed(1);
    assert_eq!(run.outcomes(), ["invalid"]);
    assert!(run.stderr.contains("issued by 'memory', this is 'sqlite'"), "{run:?}");
}

#[test]
fn a_release_costs_no_delivery() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    let receipt = place.receive(&["orders"]);
    assert_eq!(place.row(&["release", &receipt])["outcome"], "released");
    assert_eq!(place.row(&["receive", "orders"])["receive_count"], 1);
}

#[test]
fn a_nack_comes_back_when_it_is_told_to() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    let receipt = place.receive(&["orders"]);
    assert_eq!(place.row(&["nack", &receipt, "--retry-after", "1h", "--error", "broke"])["outcome"], "retried");
    let peeked = place.row(&["peek", "orders"]);
    assert_eq!(peeked["state"], "RETRYABLE");
    assert_eq!((&peeked["attempts_count"], &peeked["last_error"]), (&json!(1), &json!("broke")));
    assert_eq!(place.row(&["stats", "orders"])["delayed"], 1);
}

#[test]
fn a_nack_without_a_delay_asks_the_strategy() {
    for (strategy, delay, outcome) in [("constant", "0s", "retried"), ("no_retry", "", "dead_lettered")] {
        let place = Place::new()
            .with("POSTRIDER__COMMON__RETRY__STRATEGY", strategy)
            .with("POSTRIDER__COMMON__RETRY__DELAY", delay);
        place.send(&["orders", "1"]);
        let receipt = place.receive(&["orders"]);
        assert_eq!(place.row(&["nack", &receipt])["outcome"], outcome);
        match outcome {
            "retried" => assert_eq!(place.row(&["receive", "orders"])["receive_count"], 2),
            _ => assert_eq!(place.row(&["dlq", "list", "orders"])["reason"], "retries_exhausted"),
        }
    }
}

#[test]
fn a_nack_can_be_the_end() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    let receipt = place.receive(&["orders"]);
    let run = place.run(&["nack", &receipt, "--dead", " "]).failed(2);
    assert!(run.stderr.contains("invalid dead-letter reason"), "{run:?}");
    assert_eq!(place.row(&["nack", &receipt, "--dead", "poison", "--error", "broke"])["outcome"], "dead_lettered");
    let letter = place.row(&["dlq", "list", "orders"]);
    assert_eq!((&letter["reason"], &letter["error"]), (&json!("poison"), &json!("broke")));
}

#[test]
fn an_extended_lease_ends_later_and_keeps_its_receipt() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let [one, two] = [place.receive(&["orders"]), place.receive(&["orders"])];
    let before = place.rows(&["peek", "orders"]);
    let rows = place.rows(&["extend", &one, &two, "2h"]);
    assert_eq!(rows.iter().map(|row| text(&row["outcome"])).collect::<Vec<_>>(), ["extended", "extended"]);
    assert!(rows.iter().all(|row| row.get("new_receipt").is_none()), "the store knows when a lease ends: {rows:?}");
    let after = place.rows(&["peek", "orders"]);
    for (before, after) in before.iter().zip(&after) {
        assert!(text(&before["next_attempt_at"]) < text(&after["next_attempt_at"]));
    }
    place.run(&["ack", &one, &two]).done();
}
