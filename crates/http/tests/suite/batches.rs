//! Calls that wait at the same time share a request.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::{Message, MessageId, MessagingError, MessagingService, Nack, Settlement};
use postrider_wire::{Code, Problem};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::fake::{Fake, Reply, Seen, http_receipt};
use crate::{queue, soon};

/// Answers sends as a server does.
fn accept(seen: &Seen) -> Value {
    match seen.body["messages"].as_array() {
        Some(messages) => json!({"results": messages.iter().map(|new| json!({"id": new["id"]})).collect::<Vec<_>>()}),
        None => json!({"id": seen.body["id"], "queue": "orders"}),
    }
}

#[tokio::test]
async fn the_first_send_goes_alone_and_waiting_ones_go_together() {
    let (open, gate) = oneshot::channel();
    let gate = Mutex::new(Some(gate));
    let fake = Fake::start(move |seen| match gate.lock().unwrap().take() {
        Some(gate) => Reply::Gate(gate, accept(seen)),
        None => Reply::ok(accept(seen)),
    })
    .await;
    let provider = fake.connect().await;
    let orders = queue("orders");
    let send = |body: &str| {
        let message = Message::new(body.to_owned());
        let (provider, orders) = (provider.clone(), orders.clone());
        async move { (message.id, provider.send_message(&orders, message, soon()).await.unwrap()) }
    };
    let first = tokio::spawn(send("first"));
    let seen = fake.seen().await;
    assert!(seen.is("POST", "/v1/queues/orders/messages") && seen.body["body"] == "first", "{seen:?}");
    let mut others = Box::pin(join_all((0..10).map(|n| send(&n.to_string()))));
    // The first poll queues all of them; none completes before the first request.
    assert!(futures_util::poll!(&mut others).is_pending());
    open.send(()).unwrap();
    for (id, answered) in others.await.into_iter().chain([first.await.unwrap()]) {
        assert_eq!(id, answered);
    }
    let seen = fake.rest().await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    let bodies: Vec<_> = seen[0].body["messages"].as_array().unwrap().iter().map(|new| new["body"].clone()).collect();
    assert_eq!(bodies, (0..10).map(|n| json!(n.to_string())).collect::<Vec<_>>());
}

#[tokio::test]
async fn each_row_has_its_own_result() {
    let fake = Fake::start(|seen| {
        let problem = Problem::of(&MessagingError::invalid("body", "too strange"));
        let results = seen.body["messages"].as_array().unwrap().iter().map(|new| match new["body"].as_str() {
            Some("bad") => json!({ "problem": problem }),
            Some("empty") => json!({}),
            _ => json!({"id": new["id"]}),
        });
        Reply::ok(json!({ "results": results.collect::<Vec<_>>() }))
    })
    .await;
    let provider = fake.connect().await;
    let too_long = Message::new("late").delay(Duration::MAX);
    let messages = vec![Message::new("a"), Message::new("bad"), too_long, Message::new("empty"), Message::new("b")];
    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
    let rows = provider.send_batch(&queue("orders"), messages, soon()).await.unwrap();
    assert!(matches!(&rows[0], Ok(id) if *id == ids[0]));
    assert!(matches!(&rows[1], Err(MessagingError::InvalidInput { what: "body", .. })));
    assert!(matches!(&rows[2], Err(MessagingError::InvalidInput { what: "delay", .. })), "refused by the client");
    assert!(matches!(&rows[3], Err(MessagingError::OutcomeUnknown { .. })));
    assert!(matches!(&rows[4], Ok(id) if *id == ids[4]));
    assert_eq!(fake.seen().await.body["messages"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn a_wrong_number_of_rows_makes_all_outcomes_unknown() {
    let fake = Fake::start(|_| Reply::ok(json!({"results": [{"id": MessageId::generate()}]}))).await;
    let provider = fake.connect().await;
    let messages = vec![Message::new("a"), Message::new("b")];
    for row in provider.send_batch(&queue("orders"), messages, soon()).await.unwrap() {
        assert!(matches!(row, Err(MessagingError::OutcomeUnknown { .. })), "{row:?}");
    }
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_split_and_a_row_that_is_fails_alone() {
    let fake = Fake::start(|seen| {
        let count = seen.body["messages"].as_array().map_or(1, Vec::len);
        let is_huge = seen.body["body"] == "huge";
        if count > 2 || is_huge || seen.body.to_string().contains("huge") {
            return Reply::problem(&Problem::new(Code::PayloadTooLarge, "too large"));
        }
        Reply::ok(accept(seen))
    })
    .await;
    let provider = fake.connect().await;
    let bodies = ["a", "b", "c", "huge", "d", "e", "f", "g"];
    let messages: Vec<_> = bodies.iter().map(|body| Message::new(*body)).collect();
    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
    let rows = provider.send_batch(&queue("orders"), messages, soon()).await.unwrap();
    for (at, row) in rows.iter().enumerate() {
        match bodies[at] {
            "huge" => assert!(matches!(row, Err(MessagingError::InvalidInput { what: "body", .. })), "{row:?}"),
            _ => assert!(matches!(row, Ok(id) if *id == ids[at]), "{at}: {row:?}"),
        }
    }
}

#[tokio::test]
async fn settlements_go_as_they_are() {
    let fake = Fake::start(|seen| {
        let expired = Problem::of(&http_receipt("orders").expired());
        let rows: Vec<_> = seen.body["settlements"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| match row["outcome"].as_str() {
                Some("release") => json!({"receipt": row["receipt"], "problem": expired}),
                _ => json!({"receipt": row["receipt"], "outcome": "done"}),
            })
            .collect();
        Reply::ok(json!({ "results": rows }))
    })
    .await;
    let provider = fake.connect().await;
    let receipts: Vec<_> = (0..5).map(|_| http_receipt("orders")).collect();
    let nack = |at: usize, nack: Nack| Settlement::nack(receipts[at].clone(), nack);
    let rows = vec![
        Settlement::ack(receipts[0].clone()),
        nack(1, Nack::retry_after(Duration::from_millis(1500)).with_error("no")),
        nack(2, Nack::Release),
        nack(3, Nack::retry_after(Duration::MAX)),
        nack(4, Nack::dead_letter("odd").with_error("why")),
    ];
    let rows = provider.settle(rows, soon()).await.unwrap();
    assert!(rows[0].is_ok() && rows[1].is_ok() && rows[4].is_ok(), "{rows:?}");
    assert!(matches!(rows[2], Err(MessagingError::VisibilityExpired { .. })));
    assert!(matches!(rows[3], Err(MessagingError::InvalidInput { .. })), "refused by the client");
    let seen = fake.seen().await;
    assert!(seen.is("POST", "/v1/messages/settle"));
    let text = |at: usize| receipts[at].to_string();
    let expected = json!([
        {"receipt": text(0), "outcome": "ack"},
        {"receipt": text(1), "outcome": "retry", "after": "1s500ms", "error": "no"},
        {"receipt": text(2), "outcome": "release"},
        {"receipt": text(4), "outcome": "dead_letter", "reason": "odd", "error": "why"},
    ]);
    assert_eq!(seen.body["settlements"], expected);
}

#[tokio::test]
async fn extensions_of_different_lengths_go_in_different_requests() {
    let (open, gate) = oneshot::channel();
    let gate = Mutex::new(Some(gate));
    let fake = Fake::start(move |seen| {
        let receipts = seen.body["receipts"].as_array().unwrap();
        let rows: Vec<_> = receipts.iter().map(|receipt| json!({"receipt": receipt, "outcome": "done"})).collect();
        let answer = json!({ "results": rows });
        match gate.lock().unwrap().take() {
            Some(gate) => Reply::Gate(gate, answer),
            None if seen.body["visibility"] == "7s" => Reply::Cut,
            None => Reply::ok(answer),
        }
    })
    .await;
    let provider = fake.connect().await;
    let extend = |seconds| {
        let (provider, receipt) = (provider.clone(), http_receipt("orders"));
        async move {
            let extension = Duration::from_secs(seconds);
            provider.extend_visibility(receipt.queue(), &receipt, extension, soon()).await
        }
    };
    let first = tokio::spawn(extend(1));
    assert_eq!(fake.seen().await.body["visibility"], "1s");
    let mut others = Box::pin(join_all([5, 7, 5].map(extend)));
    assert!(futures_util::poll!(&mut others).is_pending());
    open.send(()).unwrap();
    first.await.unwrap().unwrap();
    let others = others.await;
    assert!(others[0].is_ok() && others[2].is_ok(), "{others:?}");
    assert!(matches!(others[1], Err(MessagingError::OutcomeUnknown { .. })), "only its own request was lost");
    let mut counts: Vec<_> =
        fake.rest().await.iter().map(|seen| seen.body["receipts"].as_array().unwrap().len()).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2]);
}

#[tokio::test]
async fn an_extension_returns_the_receipt_of_the_server() {
    let (same, old, new) = (http_receipt("orders"), http_receipt("orders"), http_receipt("orders"));
    let (extended, next, malformed) = (old.to_string(), new.to_string(), http_receipt("orders"));
    let malformed_text = malformed.to_string();
    let fake = Fake::start(move |seen| {
        let row = |receipt: &Value| match receipt.as_str() {
            Some(receipt) if receipt == extended => json!({"receipt": receipt, "outcome": "done", "new_receipt": next}),
            Some(receipt) if receipt == malformed_text => {
                json!({"receipt": receipt, "outcome": "done", "new_receipt": "pr1.x"})
            }
            _ => json!({"receipt": receipt, "outcome": "done"}),
        };
        Reply::ok(json!({ "results": seen.body["receipts"].as_array().unwrap().iter().map(row).collect::<Vec<_>>() }))
    })
    .await;
    let provider = fake.connect().await;
    let orders = queue("orders");
    let extend = |receipt| provider.extend_visibility(&orders, receipt, Duration::from_secs(1), soon());
    assert_eq!(extend(&same).await.unwrap(), same);
    assert_eq!(extend(&old).await.unwrap(), new);
    let unknown = extend(&malformed).await;
    assert!(matches!(unknown, Err(MessagingError::OutcomeUnknown { .. })), "{unknown:?}");
}
