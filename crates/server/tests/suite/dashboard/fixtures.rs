//! Fixtures: messages, dead letters and tasks, made as workers make them.

use std::time::Duration;

use postrider_server::ServerOptions;
use serde_json::{Value, json};

use crate::test_server::TestServer;

/// A server with a short sampling interval, so that changes show soon.
pub(crate) async fn server() -> TestServer {
    TestServer::with(ServerOptions { sample_interval: Duration::from_millis(200), ..ServerOptions::default() }).await
}

pub(crate) async fn send(server: &TestServer, queue: &str, new: Value) -> Value {
    server.post(&format!("/v1/queues/{queue}/messages"), new).await.of(201)["id"].clone()
}

/// Leases some messages of a queue.
pub(crate) async fn receive(server: &TestServer, queue: &str, max: usize, worker: &str) -> Vec<Value> {
    let options = json!({ "max": max, "visibility": "10m", "worker": worker });
    let got = server.post(&format!("/v1/queues/{queue}/receive"), options).await.of(200);
    got["messages"].as_array().unwrap().clone()
}

/// Makes dead letters with these bodies and errors.
pub(crate) async fn dead_letter(server: &TestServer, queue: &str, letters: &[(&str, &str)]) {
    for (body, error) in letters {
        let new = json!({ "body": body, "content_type": "application/json", "headers": { "customer": "anna" } });
        let id = send(server, queue, new).await;
        let options = json!({ "id": id, "visibility": "10m", "worker": "refuser" });
        let got = server.post(&format!("/v1/queues/{queue}/receive"), options).await.of(200);
        let end = json!({ "receipts": [got["messages"][0]["receipt"]], "reason": "rejected", "error": error });
        server.post("/v1/messages/dead-letter", end).await.of(200);
    }
}

pub(crate) async fn task(server: &TestServer, new: Value) -> String {
    server.post("/v1/tasks", new).await.of(201)["id"].as_str().unwrap().to_owned()
}

/// Creates a task and finishes it as dead.
pub(crate) async fn dead_task(server: &TestServer, task_type: &str, payload: &str, error: &str) -> String {
    let id = task(server, json!({ "type": task_type, "payload": payload })).await;
    let claim = json!({ "ids": [id], "worker": "press-2", "lease": "1m" });
    let claimed = server.post("/v1/tasks/claim-by-id", claim).await.of(200);
    let lease = &claimed["answers"][0]["claimed"]["lease"];
    let finish = json!({ "lease": lease, "outcome": "dead", "reason": "permanent", "error": error });
    server.post("/v1/tasks/finish", json!({ "finish": [finish] })).await.of(200);
    id
}

pub(crate) async fn show_task(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/v1/tasks/{id}")).await.of(200)
}

pub(crate) async fn stats(server: &TestServer, queue: &str) -> Value {
    server.get(&format!("/v1/queues/{queue}")).await.of(200)
}

pub(crate) async fn dead_letters(server: &TestServer, queue: &str) -> Vec<Value> {
    let listed = server.get(&format!("/v1/queues/{queue}/dead-letters?limit=1000")).await.of(200);
    listed["dead_letters"].as_array().unwrap().clone()
}

/// Returns the audit log, newest first: action, target and outcome.
pub(crate) async fn audit(server: &TestServer) -> Vec<(String, String, Value)> {
    let log = server.get("/v1/audit").await.of(200);
    let row = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        (text("action"), text("target"), entry["detail"]["outcome"].clone())
    };
    log["entries"].as_array().unwrap().iter().map(row).collect()
}
