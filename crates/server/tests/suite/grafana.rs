//! The dashboard for Grafana asks for metrics that there are.

use std::time::Duration;

use postrider_server::ServerOptions;
use serde_json::{Value, json};

use crate::place::{Place, eventually};

const DASHBOARD: &str = include_str!("../../../../docs/grafana.json");

/// The names of metrics in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression.split(move |c| !is_word(c)).filter(|word| word.starts_with("postrider_"))
}

#[tokio::test]
async fn every_panel_shows_something_that_the_server_counts() {
    let options = ServerOptions { sample_interval: Duration::from_millis(50), ..ServerOptions::default() };
    let place = Place::with(options).await;
    // Each way in which a lease ends, and one that had ended before.
    for path in ["ack", "nack", "dead-letter", "ack"] {
        place.post("/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
        let got = place.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
        let mut ask = json!({ "receipts": [got["messages"][0]["receipt"]] });
        if path == "dead-letter" {
            ask["reason"] = json!("rejected");
        }
        let path = format!("/v1/messages/{path}");
        place.post(&path, ask.clone()).await.of(200);
        place.post(&path, ask).await.of(200);
    }
    place.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    let claim = json!({ "types": ["mail"], "worker": "w", "lease": "1m" });
    let claimed = place.post("/v1/tasks/claim", claim).await.of(200);
    let dead = json!([{ "lease": claimed["tasks"][0]["lease"], "outcome": "dead" }]);
    place.post("/v1/tasks/finish", json!({ "finish": dead })).await.of(200);
    // Queues are counted when they are first looked at.
    let metrics = eventually(async || {
        let text = String::from_utf8(place.get("/metrics").await.body.to_vec()).unwrap();
        text.contains("postrider_queue_messages{").then_some(text)
    })
    .await;
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 10);
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            for name in names(target["expr"].as_str().unwrap()) {
                // Families are described before anything was counted; the ending is the format's.
                let family = name.strip_suffix("_bucket").unwrap_or(name);
                assert!(
                    metrics.contains(&format!("# TYPE {family} ")),
                    "{name} of '{}' is not counted",
                    panel["title"]
                );
            }
        }
    }
    place.stop().await;
}
