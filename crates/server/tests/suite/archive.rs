//! Archived messages over HTTP: searched, read, and sent again.

use axum::http::Method;
use serde_json::{Value, json};

use crate::test_server::TestServer;

/// Sends a message and acknowledges it.
async fn handle(server: &TestServer, queue: &str, new: Value) -> String {
    let sent = server.post(&format!("/v1/queues/{queue}/messages"), new).await.of(201);
    let got = server.post(&format!("/v1/queues/{queue}/receive"), json!({ "visibility": "10m" })).await.of(200);
    server.post("/v1/messages/ack", json!({ "receipts": [got["messages"][0]["receipt"]] })).await.of(200);
    sent["id"].as_str().unwrap().to_owned()
}

async fn found(server: &TestServer, query: &str) -> Vec<String> {
    let page = server.get(&format!("/v1/queues/orders/archive?{query}")).await.of(200);
    let id = |message: &Value| message["id"].as_str().unwrap().to_owned();
    page["messages"].as_array().unwrap().iter().map(id).collect()
}

#[tokio::test]
async fn archived_messages_are_searched_by_pages() {
    let server = TestServer::new().await;
    let mut ids = Vec::new();
    for (key, customer) in [("a", "anna"), ("b", "anna"), ("a", "ben=7")] {
        let new = json!({ "body": "tea", "ordering_key": key, "headers": { "customer": customer } });
        ids.insert(0, handle(&server, "orders", new).await);
    }
    handle(&server, "mail", json!({ "body": "elsewhere" })).await;
    assert_eq!(found(&server, "").await, ids);
    assert_eq!(found(&server, &format!("id={}", ids[1])).await, ids[1..2]);
    assert_eq!(found(&server, "key=a").await, [ids[0].clone(), ids[2].clone()]);
    assert_eq!(found(&server, "header=customer%3Danna").await, ids[1..]);
    assert_eq!(found(&server, "header=customer%3Dben%3D7").await, ids[..1]);
    assert_eq!(found(&server, "state=FAILED").await, [""; 0]);
    assert_eq!(found(&server, "state=COMPLETED&since=2020-01-01T00:00:00Z").await, ids);
    assert_eq!(found(&server, "until=2020-01-01T00:00:00Z").await, [""; 0]);

    let first = server.get("/v1/queues/orders/archive?limit=2").await.of(200);
    let next = first["next"].as_str().unwrap();
    assert_eq!(found(&server, &format!("limit=2&after={next}")).await, ids[2..]);
    let one = server.get(&format!("/v1/queues/orders/archive/{}", ids[0])).await.of(200);
    assert_eq!((&one["body"], &one["state"], &one["receive_count"]), (&json!("tea"), &json!("COMPLETED"), &json!(1)));
    assert_eq!(one, first["messages"][0]);

    for wrong in ["id=7", "header=customer", "since=yesterday", "state=PENDING", "limit=0", "after=x", "color=red"] {
        let answer = server.get(&format!("/v1/queues/orders/archive?{wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
    let unknown = server.get("/v1/queues/orders/archive/0190163d-8694-739b-aea5-966c26f8ad91").await;
    assert_eq!(unknown.code(), "message_not_found");
    server.stop().await;
}

#[tokio::test]
async fn large_messages_make_a_page_short_and_none_is_missed() {
    let server = TestServer::new().await;
    let mut ids = Vec::new();
    for n in 0..20 {
        let body = format!("{n}{}", "x".repeat(1_000_000));
        ids.insert(0, handle(&server, "orders", json!({ "body": body })).await);
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/queues/orders/archive?after={after}")).await.of(200);
        let messages = page["messages"].as_array().unwrap();
        assert!(messages.len() <= 17, "an answer of {} messages has more than 16 MiB", messages.len());
        seen.extend(messages.iter().map(|message| message["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = next.to_owned();
    }
    assert_eq!(seen, ids);
    server.stop().await;
}

#[tokio::test]
async fn an_archived_message_is_sent_again() {
    let server = TestServer::new().await;
    let new = json!({ "body": "tea", "ordering_key": "k", "headers": { "customer": "anna" } });
    let id = handle(&server, "orders", new).await;
    let again = format!("/v1/queues/orders/archive/{id}/send-again");
    let sent = server.post(&again, json!({})).await.of(201);
    assert_eq!(sent["queue"], "orders");
    let waiting = server.get("/v1/queues/orders/messages").await.of(200)["messages"][0].clone();
    assert_eq!((&waiting["id"], &waiting["body"]), (&sent["id"], &json!("tea")));
    assert_eq!(waiting["headers"], json!({ "customer": "anna", "sent-again-from": id }));
    assert_eq!(waiting["ordering_key"], "k");
    let repeat = async || {
        let mut request = server.request(Method::POST, &again, None);
        request.headers_mut().insert("idempotency-key", "once".parse().unwrap());
        server.send(request).await
    };
    let first = repeat().await.of(201);
    assert_ne!(first["id"], sent["id"]);
    assert_eq!(repeat().await.of(201), first);
    assert_eq!(server.get("/v1/queues/orders/messages").await.of(200)["messages"].as_array().unwrap().len(), 2);
    server.stop().await;
}
