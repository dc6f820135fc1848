//! Receipts and leases are valid at every server on the same state, and only there.

use postrider::ReceiptHandle;
use postrider::provider::{LeaseToken, NativeRef};
use postrider_server::ServerOptions;
use serde_json::{Value, json};

use crate::test_server::{TestServer, TestStore};

async fn receipt(server: &TestServer) -> Value {
    server.post("/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
    let got = server.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
    got["messages"][0]["receipt"].clone()
}

async fn ack(server: &TestServer, receipt: &Value) -> Value {
    let mut answer = server.post("/v1/messages/ack", json!({ "receipts": [receipt] })).await.of(200);
    let row = answer["results"][0].take();
    row.get("outcome").unwrap_or(&row["problem"]["code"]).clone()
}

async fn lease(server: &TestServer) -> Value {
    server.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    let claim = json!({ "types": ["mail"], "worker": "w", "lease": "10m" });
    server.post("/v1/tasks/claim", claim).await.of(200)["tasks"][0]["lease"].clone()
}

async fn finish(server: &TestServer, lease: &Value) -> Value {
    let finish = json!({ "finish": [{ "lease": lease, "outcome": "succeeded" }] });
    server.post("/v1/tasks/finish", finish).await.of(200)["finished"][0].clone()
}

async fn valid_elsewhere_and_later(files: TestStore) {
    let first = TestServer::on(&files, ServerOptions::default()).await;
    let second = TestServer::on(&files, ServerOptions::default()).await;
    let (here, later) = (receipt(&first).await, receipt(&first).await);
    let (task_here, task_later) = (lease(&first).await, lease(&first).await);
    assert_eq!(ack(&second, &here).await, "done", "at another server");
    assert_eq!(ack(&first, &here).await, "visibility_expired", "and so used up here");
    assert_eq!(finish(&second, &task_here).await, json!({ "held": true }));
    first.stop().await;
    second.stop().await;
    let again = TestServer::on(&files, ServerOptions::default()).await;
    assert_eq!(ack(&again, &later).await, "done", "after a restart");
    assert_eq!(finish(&again, &task_later).await, json!({ "held": true }));
    again.stop().await;
}

#[tokio::test]
async fn they_are_valid_at_another_server_and_after_a_restart_on_sqlite() {
    valid_elsewhere_and_later(TestStore::sqlite()).await;
}

#[tokio::test]
async fn they_are_valid_at_another_server_and_after_a_restart_on_postgres() {
    valid_elsewhere_and_later(TestStore::postgres()).await;
}

#[tokio::test]
async fn tampered_and_foreign_receipts_are_refused() {
    let (server, other) = (TestServer::new().await, TestServer::new().await);
    let own = receipt(&server).await;
    assert_eq!(ack(&other, &own).await, "invalid_receipt", "of a server with another state");

    // Encoded again, so that its checksum is right.
    let shown: ReceiptHandle = own.as_str().unwrap().parse().unwrap();
    let NativeRef::Handle(inner) = shown.native() else { panic!() };
    let rebuilt = |queue: &str, token: LeaseToken, inner: Box<[u8]>| {
        let queue = queue.parse().unwrap();
        let made = ReceiptHandle::new("http", queue, shown.message_id(), token, NativeRef::Handle(inner));
        json!(made.to_string())
    };
    let mut fewer_failures = inner.clone();
    fewer_failures[3] ^= 1;
    for made_up in [
        rebuilt("mail", shown.token(), inner.clone()),
        rebuilt("orders", LeaseToken(shown.token().0 ^ 1), inner.clone()),
        rebuilt("orders", shown.token(), fewer_failures),
        json!(String::from_utf8_lossy(&inner[4..])),
    ] {
        assert_eq!(ack(&server, &made_up).await, "invalid_receipt", "{made_up}");
    }
    assert_eq!(rebuilt("orders", shown.token(), inner.clone()), own);
    assert_eq!(ack(&server, &own).await, "done", "the lease is unchanged");
    server.stop().await;
    other.stop().await;
}
