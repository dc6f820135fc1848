//! `postrider ack`, `release`, `nack`, `extend`

use serde_json::json;

use crate::scratch::{Scratch, foreign_receipt, text};

#[test]
fn receipts_settle_from_another_process() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let received = scratch.rows(&["receive", "orders", "--max", "2"]);
    let receipts: Vec<_> = received.iter().map(|row| text(&row["receipt"])).collect();
    let rows = scratch.rows(&["ack", &receipts[0], &receipts[1]]);
    for (row, received) in rows.iter().zip(&received) {
        let (receipt, id) = (&received["receipt"], &received["id"]);
        assert_eq!(*row, json!({"receipt": receipt, "id": id, "queue": "orders", "outcome": "acked", "error": null}));
    }
    assert_eq!(scratch.row(&["stats", "orders"])["in_flight"], 0);
}

#[test]
fn a_receipt_is_valid_once_and_the_other_receipts_are_still_tried() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let [stale, good] = [scratch.receive(&["orders"]), scratch.receive(&["orders"])];
    scratch.run(&["ack", &stale]).done();
    let run = scratch.run(&["--json", "ack", &stale, &good]).failed(1);
    assert_eq!(run.outcomes(), ["expired", "acked"]);
    for args in [&["ack", &good][..], &["nack", &good], &["release", &good], &["extend", &good, "5s"]] {
        let run = scratch.run(&[&["--json"], args].concat()).failed(1);
        assert_eq!(run.outcomes(), ["expired"], "{args:?}");
    }
    insta::assert_snapshot!("ack_expired", scratch.run(&["ack", &good]).failed(1).seen());
}

#[test]
fn an_expired_lease_settles_nothing() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    let late = scratch.receive(&["orders", "--visibility", "1ms"]);
    // The next delivery shows that the first lease has ended.
    let next = scratch.receive(&["orders", "--wait", "60s"]);
    assert_eq!(scratch.run(&["--json", "ack", &late]).failed(1).outcomes(), ["expired"]);
    assert_eq!(scratch.run(&["--json", "ack", &next]).done().outcomes(), ["acked"]);
}

#[test]
fn a_malformed_receipt_does_not_stop_the_others() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let [one, two] = [scratch.receive(&["orders"]), scratch.receive(&["orders"])];
    let cut = &one[..one.len() - 1];
    let run = scratch.run(&["--json", "ack", cut, &one]).failed(1);
    assert_eq!(run.outcomes(), ["invalid", "acked"]);
    let row = &run.rows()[0];
    assert_eq!((&row["receipt"], &row["id"], &row["queue"]), (&json!(cut), &json!(null), &json!(null)));
    assert!(text(&row["error"]).contains("is no receipt: it is damaged or incomplete"), "{row}");
    assert!(run.stderr.contains("is no receipt: it is damaged or incomplete"), "{run:?}");
    assert_eq!(scratch.run(&["--json", "extend", &two, "x", "1m"]).failed(1).outcomes(), ["extended", "invalid"]);
    assert_eq!(scratch.run(&["ack", cut, "orders"]).failed(2).stdout, "");
    insta::assert_snapshot!("ack_no_receipt", scratch.run(&["ack", "orders"]).failed(2).seen());
}

#[test]
fn a_receipt_of_another_file_is_reported_as_possibly_foreign() {
    let (scratch, other) = (Scratch::new(), Scratch::new());
    scratch.send(&["orders", "1"]);
    let receipt = scratch.receive(&["orders"]);
    let run = other.run(&["--json", "ack", &receipt]).failed(1);
    let store = format!("the receipt is of another store than sqlite:{}", other.file("queues.db").display());
    assert!(run.stderr.contains(&store) && run.outcomes() == ["expired"], "{run:?}");
}

#[test]
fn a_receipt_of_another_store_is_invalid() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    let run = scratch.run(&["--json", "ack", &foreign_receipt()]).failed(1);
    assert_eq!(run.outcomes(), ["invalid"]);
    assert!(run.stderr.contains("issued by 'memory', this is 'sqlite'"), "{run:?}");
}

#[test]
fn a_release_costs_no_delivery() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    let receipt = scratch.receive(&["orders"]);
    assert_eq!(scratch.row(&["release", &receipt])["outcome"], "released");
    assert_eq!(scratch.row(&["receive", "orders"])["receive_count"], 1);
}

#[test]
fn a_nack_retries_after_the_given_delay() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    let receipt = scratch.receive(&["orders"]);
    assert_eq!(scratch.row(&["nack", &receipt, "--retry-after", "1h", "--error", "broke"])["outcome"], "retried");
    let peeked = scratch.row(&["peek", "orders"]);
    assert_eq!(peeked["state"], "RETRYABLE");
    assert_eq!((&peeked["attempts_count"], &peeked["last_error"]), (&json!(1), &json!("broke")));
    assert_eq!(scratch.row(&["stats", "orders"])["delayed"], 1);
}

#[test]
fn a_nack_without_a_delay_uses_the_configured_strategy() {
    for (strategy, delay, outcome) in [("constant", "0s", "retried"), ("no_retry", "", "dead_lettered")] {
        let scratch = Scratch::new()
            .with("POSTRIDER__COMMON__RETRY__STRATEGY", strategy)
            .with("POSTRIDER__COMMON__RETRY__DELAY", delay);
        scratch.send(&["orders", "1"]);
        let receipt = scratch.receive(&["orders"]);
        assert_eq!(scratch.row(&["nack", &receipt])["outcome"], outcome);
        match outcome {
            "retried" => assert_eq!(scratch.row(&["receive", "orders"])["receive_count"], 2),
            _ => assert_eq!(scratch.row(&["dlq", "list", "orders"])["reason"], "retries_exhausted"),
        }
    }
}

#[test]
fn a_nack_can_dead_letter() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    let receipt = scratch.receive(&["orders"]);
    let run = scratch.run(&["nack", &receipt, "--dead", " "]).failed(2);
    assert!(run.stderr.contains("invalid dead-letter reason"), "{run:?}");
    assert_eq!(scratch.row(&["nack", &receipt, "--dead", "poison", "--error", "broke"])["outcome"], "dead_lettered");
    let letter = scratch.row(&["dlq", "list", "orders"]);
    assert_eq!((&letter["reason"], &letter["error"]), (&json!("poison"), &json!("broke")));
}

#[test]
fn an_extended_lease_ends_later_and_keeps_its_receipt() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let [one, two] = [scratch.receive(&["orders"]), scratch.receive(&["orders"])];
    let before = scratch.rows(&["peek", "orders"]);
    let rows = scratch.rows(&["extend", &one, &two, "2h"]);
    assert_eq!(rows.iter().map(|row| text(&row["outcome"])).collect::<Vec<_>>(), ["extended", "extended"]);
    assert!(rows.iter().all(|row| row.get("new_receipt").is_none()), "the store knows when a lease ends: {rows:?}");
    let after = scratch.rows(&["peek", "orders"]);
    for (before, after) in before.iter().zip(&after) {
        assert!(text(&before["next_attempt_at"]) < text(&after["next_attempt_at"]));
    }
    scratch.run(&["ack", &one, &two]).done();
}
