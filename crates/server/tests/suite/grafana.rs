//! The Grafana dashboard uses existing metrics.

use std::time::Duration;

use postrider_server::ServerOptions;
use serde_json::{Value, json};

use crate::test_server::{TestServer, eventually};

const DASHBOARD: &str = include_str!("../../../../docs/grafana.json");

/// Returns the metric names in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression.split(move |c| !is_word(c)).filter(|word| word.starts_with("postrider_"))
}

#[tokio::test]
async fn every_panel_uses_existing_metrics() {
    let options = ServerOptions { sample_interval: Duration::from_millis(50), ..ServerOptions::default() };
    let server = TestServer::with(options).await;
    // Every outcome of a lease, and an expired one.
    for path in ["ack", "nack", "dead-letter", "ack"] {
        server.post("/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
        let got = server.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
        let mut ask = json!({ "receipts": [got["messages"][0]["receipt"]] });
        if path == "dead-letter" {
            ask["reason"] = json!("rejected");
        }
        let path = format!("/v1/messages/{path}");
        server.post(&path, ask.clone()).await.of(200);
        server.post(&path, ask).await.of(200);
    }
    server.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    let claim = json!({ "types": ["mail"], "worker": "w", "lease": "1m" });
    let claimed = server.post("/v1/tasks/claim", claim).await.of(200);
    let dead = json!([{ "lease": claimed["tasks"][0]["lease"], "outcome": "dead" }]);
    server.post("/v1/tasks/finish", json!({ "finish": dead })).await.of(200);
    // Gauges of queues appear with the first sample.
    let metrics = eventually(async || {
        let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
        text.contains("postrider_queue_messages{").then_some(text)
    })
    .await;
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 10);
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            for name in names(target["expr"].as_str().unwrap()) {
                // Families are described before their first sample; the suffix belongs to the format.
                let family = name.strip_suffix("_bucket").unwrap_or(name);
                assert!(
                    metrics.contains(&format!("# TYPE {family} ")),
                    "{name} of '{}' is not counted",
                    panel["title"]
                );
            }
        }
    }
    server.stop().await;
}
