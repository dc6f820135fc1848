//! Answers are bounded in bytes, whatever number of rows is requested.

use std::collections::BTreeSet;

use postrider::{Deadline, Message, MessagingService, QueueName};
use serde_json::{Value, json};

use crate::test_server::{TestServer, eventually};

const LARGE: usize = 40;
const MIB: usize = 1024 * 1024;

/// A server with more large messages than fit into an answer.
async fn full() -> TestServer {
    let server = TestServer::new().await;
    let queue = QueueName::new("orders").unwrap();
    for _ in 0..LARGE {
        let large = Message::new(vec![b'x'; MIB]);
        server.context.messaging_provider.send_message(&queue, large, Deadline::default()).await.unwrap();
    }
    server
}

/// Returns the rows of an answer, which is not empty and not too large.
fn rows(answer: &Value, name: &str) -> Vec<Value> {
    let rows = answer[name].as_array().unwrap();
    assert!((1..=16).contains(&rows.len()), "{} rows", rows.len());
    rows.clone()
}

#[tokio::test]
async fn a_receive_leases_no_more_than_it_returns() {
    let server = full().await;
    let mut seen = BTreeSet::new();
    let mut receipts = Vec::new();
    // What does not fit into an answer is released, at once and uncounted.
    eventually(async || {
        let ask = json!({ "queues": ["orders"], "max": 1000, "visibility": "10m", "settlements": [] });
        let answer = server.post("/v1/receive", ask).await.of(200);
        for message in answer["messages"].as_array().unwrap() {
            assert_eq!(message["receive_count"], 1);
            assert!(seen.insert(message["id"].to_string()));
            receipts.push(message["receipt"].clone());
        }
        assert!(answer["messages"].as_array().unwrap().len() <= 16);
        (seen.len() == LARGE).then_some(())
    })
    .await;
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!((&stats["ready"], &stats["in_flight"]), (&json!(0), &json!(LARGE)));
    let workers = server.get("/v1/workers").await.of(200);
    assert_eq!(workers["workers"][0]["in_flight"], LARGE);
    let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let received = metrics.lines().find(|line| line.starts_with("postrider_messages_received_total")).unwrap();
    assert!(received.ends_with(&format!(" {LARGE}")), "{received}");
    server.stop().await;
}

#[tokio::test]
async fn settle_and_receive_returns_large_messages() {
    let server = full().await;
    let first = rows(&server.post("/v1/queues/orders/receive", json!({ "max": 1000 })).await.of(200), "messages");
    let settlements: Vec<_> = first.iter().map(|row| json!({ "receipt": row["receipt"], "outcome": "ack" })).collect();
    let ask = json!({ "queues": ["orders"], "max": 1000, "wait": "20s", "settlements": settlements });
    rows(&server.post("/v1/receive", ask).await.of(200), "messages");
    server.stop().await;
}

#[tokio::test]
async fn the_requested_number_of_small_messages_is_returned() {
    let server = TestServer::new().await;
    let messages: Vec<_> = (0..1000).map(|_| json!({ "body": "a" })).collect();
    server.post("/v1/queues/orders/messages/batch", json!({ "messages": messages })).await.of(200);
    // A peek takes several calls, each bounded as if all messages had the largest size.
    for (limit, shown) in [(100, 100), (1000, 1000)] {
        let peeked = server.get(&format!("/v1/queues/orders/messages?limit={limit}")).await.of(200);
        assert_eq!(peeked["messages"].as_array().unwrap().len(), shown);
    }
    let got = server.post("/v1/queues/orders/receive", json!({ "max": 900 })).await.of(200);
    assert_eq!(got["messages"].as_array().unwrap().len(), 900);
    server.stop().await;
}

#[tokio::test]
async fn a_peek_returns_as_many_as_fit() {
    let server = full().await;
    rows(&server.get("/v1/queues/orders/messages?limit=1000").await.of(200), "messages");
    server.stop().await;
}

#[tokio::test]
async fn pages_of_large_dead_letters_are_short_and_continue() {
    let server = full().await;
    for _ in 0..LARGE {
        let got = server.post("/v1/queues/orders/receive", json!({ "wait": "20s" })).await.of(200);
        let dead = json!({ "receipts": [got["messages"][0]["receipt"]], "reason": "odd" });
        server.post("/v1/messages/dead-letter", dead).await.of(200);
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/queues/orders/dead-letters?limit=1000&after={after}")).await.of(200);
        seen.extend(rows(&page, "dead_letters").iter().map(|row| row["id"].to_string()));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!((seen.len(), seen.iter().collect::<BTreeSet<_>>().len()), (LARGE, LARGE));
    let groups = server.get("/v1/queues/orders/dead-letters/groups").await.of(200);
    assert_eq!((&groups["looked_at"], &groups["complete"]), (&json!(LARGE), &json!(true)));
    server.stop().await;
}

#[tokio::test]
async fn a_claim_leases_no_more_tasks_than_it_returns() {
    let server = TestServer::new().await;
    let payload = "x".repeat(MIB);
    for _ in 0..LARGE {
        server.post("/v1/tasks", json!({ "type": "mail", "payload": payload })).await.of(201);
    }
    let mut claimed = BTreeSet::new();
    eventually(async || {
        let claim = json!({ "types": ["mail"], "worker": "w", "lease": "10m", "max": 1000 });
        let answer = server.post("/v1/tasks/claim", claim).await.of(200);
        for task in answer["tasks"].as_array().unwrap() {
            assert_eq!(task["attempt_count"], 1);
            assert!(claimed.insert(task["id"].to_string()));
        }
        assert!(answer["tasks"].as_array().unwrap().len() <= 16);
        (claimed.len() == LARGE).then_some(())
    })
    .await;
    server.stop().await;
}
