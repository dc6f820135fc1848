//! Things to look at: messages, dead letters and tasks, made as workers make them.

use std::time::Duration;

use postrider_server::ServerOptions;
use serde_json::{Value, json};

use crate::place::Place;

/// A server that looks at its queues often, so that nobody waits long for what is new.
pub(crate) async fn place() -> Place {
    Place::with(ServerOptions { sample_interval: Duration::from_millis(200), ..ServerOptions::default() }).await
}

pub(crate) async fn send(place: &Place, queue: &str, new: Value) -> Value {
    place.post(&format!("/v1/queues/{queue}/messages"), new).await.of(201)["id"].clone()
}

/// Leases some messages of a queue.
pub(crate) async fn receive(place: &Place, queue: &str, max: usize, worker: &str) -> Vec<Value> {
    let options = json!({ "max": max, "visibility": "10m", "worker": worker });
    let got = place.post(&format!("/v1/queues/{queue}/receive"), options).await.of(200);
    got["messages"].as_array().unwrap().clone()
}

/// Makes dead letters: the body of each and the error that it died of.
pub(crate) async fn bury(place: &Place, queue: &str, letters: &[(&str, &str)]) {
    for (body, error) in letters {
        let new = json!({ "body": body, "content_type": "application/json", "headers": { "customer": "anna" } });
        let id = send(place, queue, new).await;
        let options = json!({ "id": id, "visibility": "10m", "worker": "refuser" });
        let got = place.post(&format!("/v1/queues/{queue}/receive"), options).await.of(200);
        let end = json!({ "receipts": [got["messages"][0]["receipt"]], "reason": "rejected", "error": error });
        place.post("/v1/messages/dead-letter", end).await.of(200);
    }
}

pub(crate) async fn task(place: &Place, new: Value) -> String {
    place.post("/v1/tasks", new).await.of(201)["id"].as_str().unwrap().to_owned()
}

/// Makes a task and lets a worker refuse it for good.
pub(crate) async fn dead_task(place: &Place, task_type: &str, payload: &str, error: &str) -> String {
    let id = task(place, json!({ "type": task_type, "payload": payload })).await;
    let claim = json!({ "ids": [id], "worker": "press-2", "lease": "1m" });
    let claimed = place.post("/v1/tasks/claim-by-id", claim).await.of(200);
    let lease = &claimed["answers"][0]["claimed"]["lease"];
    let finish = json!({ "lease": lease, "outcome": "dead", "reason": "permanent", "error": error });
    place.post("/v1/tasks/finish", json!({ "finish": [finish] })).await.of(200);
    id
}

pub(crate) async fn show_task(place: &Place, id: &str) -> Value {
    place.get(&format!("/v1/tasks/{id}")).await.of(200)
}

pub(crate) async fn stats(place: &Place, queue: &str) -> Value {
    place.get(&format!("/v1/queues/{queue}")).await.of(200)
}

pub(crate) async fn dead_letters(place: &Place, queue: &str) -> Vec<Value> {
    let listed = place.get(&format!("/v1/queues/{queue}/dead-letters?limit=1000")).await.of(200);
    listed["dead_letters"].as_array().unwrap().clone()
}

/// The audit log, newest first: what was done, to what, and what came of it.
pub(crate) async fn audit(place: &Place) -> Vec<(String, String, Value)> {
    let log = place.get("/v1/audit").await.of(200);
    let row = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        (text("action"), text("target"), entry["detail"]["outcome"].clone())
    };
    log["entries"].as_array().unwrap().iter().map(row).collect()
}
