//! The workers in other languages in `examples/http`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::process::Command;

use crate::test_server::{TIMEOUT, TestServer, eventually};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/http").join(name)
}

async fn works(program: &str, file: &str) {
    let server = TestServer::new().await;
    let bodies = [r#"{"item":"tea"}"#, r#"{"item":"coffee"}"#, r#"{"litres":2}"#, "no order", r#"{"item":"unicorn"}"#];
    for body in bodies {
        server.post("/v1/queues/orders/messages", json!({ "body": body })).await.of(201);
    }
    let worker = Command::new(program)
        .arg(example(file))
        .arg("orders")
        .env("POSTRIDER_URL", format!("http://{}", server.address))
        .env("POSTRIDER_STOP_WHEN_EMPTY", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(TIMEOUT, worker).await.expect("it ends").unwrap_or_else(|error| {
        panic!("{program} cannot be started ({error}); install it: apt-get install -y python3 nodejs")
    });
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    assert!(
        said.contains("packed tea (delivery 1)") && said.contains("packed coffee (delivery 1)"),
        "{said}{complained}"
    );
    let dead = server.get("/v1/queues/orders/dead-letters").await.of(200);
    let dead = dead["dead_letters"].as_array().unwrap();
    let rejected: Vec<_> = dead.iter().filter(|letter| letter["reason"] == "rejected").collect();
    assert_eq!(rejected.len(), 2, "{said}{complained}");
    assert!(rejected.iter().all(|letter| letter["error"].is_string()));
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!(stats["in_flight"], 0, "{stats}");
    // The failed one waits for its next attempt, or has used all of them.
    let failed = stats["ready"].as_u64().unwrap() + stats["delayed"].as_u64().unwrap() + dead.len() as u64;
    assert_eq!(failed, 3, "{stats}");
    server.stop().await;
}

#[tokio::test]
async fn a_worker_in_python_needs_nothing_but_its_standard_library() {
    works("python3", "worker.py").await;
}

#[tokio::test]
async fn a_worker_in_node_needs_no_package() {
    works("node", "worker.mjs").await;
}

/// Far less than the 20 s of a worker's long poll.
const SOON: Duration = Duration::from_secs(8);

async fn ends_at_once(program: &str, file: &str) {
    let server = TestServer::new().await;
    let mut worker = Command::new(program)
        .arg(example(file))
        .arg("orders")
        .env("POSTRIDER_URL", format!("http://{}", server.address))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let waits = eventually(async || {
        let workers = server.get("/v1/workers").await.of(200);
        workers["workers"].as_array().unwrap().iter().find(|worker| worker["waiting"] == true).cloned()
    })
    .await;
    let process = worker.id().unwrap().to_string();
    assert!(waits["name"].as_str().unwrap().contains(&format!(":{process}:")), "{waits}");
    let asked = Instant::now();
    assert!(std::process::Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
    let ended = tokio::time::timeout(TIMEOUT, worker.wait()).await.expect("it ends").unwrap();
    assert!(ended.success() && asked.elapsed() < SOON, "{ended} after {:?}", asked.elapsed());
    // Nothing is leased for the worker that has left, and it is no longer listed as waiting.
    server.post("/v1/queues/orders/messages", json!({ "body": "{}" })).await.of(201);
    let got = server.post("/v1/queues/orders/receive", json!({ "wait": "20s" })).await.of(200);
    assert_eq!(got["messages"][0]["receive_count"], 1, "{got}");
    server.stop().await;
}

#[tokio::test]
async fn a_signal_ends_the_wait_of_the_worker_in_python() {
    ends_at_once("python3", "worker.py").await;
}

#[tokio::test]
async fn a_signal_ends_the_wait_of_the_worker_in_node() {
    ends_at_once("node", "worker.mjs").await;
}
