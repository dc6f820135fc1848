//! The picture in the README: queues of a busy shop. Drawn again on demand:
//! `cargo test -p postrider-server --test suite dashboard:: -- --ignored the_picture`.

use std::path::Path;
use std::time::Duration;

use postrider_server::ServerOptions;
use serde_json::{Value, json};

use super::browser::Browser;
use super::fixtures;
use crate::test_server::{TestServer, TestStore};

/// Number and interval of the simulation's steps.
const STEPS: u32 = 360;
const STEP: Duration = Duration::from_millis(250);

async fn sends(server: &TestServer, queue: &str, many: usize) {
    let messages = vec![json!({ "body": "{\"item\": \"tea\"}" }); many];
    if many > 0 {
        server.post(&format!("/v1/queues/{queue}/messages/batch"), json!({ "messages": messages })).await.of(200);
    }
}

/// Receives messages and settles each with an outcome.
async fn works(server: &TestServer, queue: &str, worker: &str, many: usize, outcome: impl Fn(usize) -> Value) {
    if many == 0 {
        return;
    }
    let got = fixtures::receive(server, queue, many, worker).await;
    let settle = |(at, message): (usize, &Value)| {
        let mut settlement = outcome(at);
        settlement["receipt"] = message["receipt"].clone();
        settlement
    };
    let settlements: Vec<Value> = got.iter().enumerate().map(settle).collect();
    if !settlements.is_empty() {
        server.post("/v1/messages/settle", json!({ "settlements": settlements })).await.of(200);
    }
}

fn done(_: usize) -> Value {
    json!({ "outcome": "ack" })
}

/// One step of the simulation.
async fn step(server: &TestServer, now: u32) {
    let wave = |length: f64, high: f64| ((f64::from(now) / length).sin() + 1.0) * high / 2.0;
    sends(server, "orders", 3 + wave(28.0, 8.0) as usize).await;
    works(server, "orders", "picker-1", 6 + wave(31.0, 4.0) as usize, done).await;
    sends(server, "mail.out", wave(17.0, 5.0) as usize).await;
    works(server, "mail.out", "mailer-1", 3, done).await;
    sends(server, "thumbnails", if now % 80 < 12 { 9 } else { 0 }).await;
    works(server, "thumbnails", "press-1", 2, done).await;
    sends(server, "webhooks", if now > STEPS / 2 { 3 } else { 1 }).await;
    works(server, "webhooks", "caller-1", 1, done).await;
    sends(server, "payments", 2).await;
    let bank_is_down = (150..230).contains(&now) && now.is_multiple_of(4);
    let outcome = |at: usize| match bank_is_down && at == 0 {
        true => {
            json!({ "outcome": "dead_letter", "reason": "rejected", "error": "POST https://bank.example/charge: 503" })
        }
        false if now.is_multiple_of(9) && at == 0 => json!({ "outcome": "retry", "after": "2s", "error": "timed out" }),
        false => done(at),
    };
    works(server, "payments", "cashier-1", 3, outcome).await;
}

#[tokio::test]
#[ignore = "draws docs/dashboard.png, which takes a minute and a half"]
async fn the_picture_of_the_readme() {
    let folder = tempfile::Builder::new().prefix("shop").rand_bytes(0).tempdir().unwrap();
    let options = ServerOptions { sample_interval: Duration::from_secs(1), ..ServerOptions::default() };
    let server = TestServer::on(&TestStore::sqlite_in(folder), options).await;
    sends(&server, "newsletter", 40).await;
    server.post("/v1/queues/newsletter/pause", json!({})).await.of(200);
    fixtures::send(&server, "orders", json!({ "body": "tomorrow", "delay": "20h" })).await;
    let browser = Browser::start(&server).await;
    browser.size(1280, 896).await;
    browser.hide_scrollbars().await;
    browser.open("/").await;
    let mut steps = tokio::time::interval(STEP);
    for now in 0..STEPS {
        steps.tick().await;
        step(&server, now).await;
    }
    // Some messages are in flight.
    for (queue, worker) in [("orders", "picker-1"), ("thumbnails", "press-1"), ("webhooks", "caller-1")] {
        fixtures::receive(&server, queue, 3, worker).await;
    }
    browser.until("$('@total-in-flight .tile-value').innerText !== '0'").await;
    for queue in ["payments", "webhooks", "newsletter"] {
        browser.see(&format!("@problem-queue[data-queue={queue}]")).await;
    }
    browser.until("$$('@queue-row svg path').length > 10").await;
    let picture = browser.picture().await;
    assert!(picture.len() < 300 * 1024, "{} bytes", picture.len());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::write(docs.join("dashboard.png"), picture).unwrap();
    browser.close(&[]).await;
    server.stop().await;
}
