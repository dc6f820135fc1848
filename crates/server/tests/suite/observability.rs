//! Events, metrics, health and traces.

use std::time::Duration;

use axum::http::Method;
use postrider::config::StoreUrl;
use postrider_server::ServerOptions;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::test_server::{TIMEOUT, TestServer, eventually};

/// A client's stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    async fn open(server: &TestServer, path: &str) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut events = Self(BufReader::new(stream));
        while !events.line().await.expect("an answer").is_empty() {}
        events
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = tokio::time::timeout(TIMEOUT, self.0.read_line(&mut line)).await.expect("in time");
        (read.unwrap_or(0) > 0).then(|| line.trim_end().to_owned())
    }

    /// Returns the data of the next event of that name.
    async fn next(&mut self, wanted: &str) -> Value {
        let mut name = String::new();
        loop {
            let line = self.line().await.expect("the stream continues");
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ").filter(|_| name == wanted) {
                return serde_json::from_str(data).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn changes_are_sent_as_they_happen_and_streams_end_with_the_server() {
    let server =
        TestServer::with(ServerOptions { sample_interval: Duration::from_millis(50), ..ServerOptions::default() })
            .await;
    let mut events = Events::open(&server, "/v1/events").await;
    server.post("/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
    let found = events.next("queues").await;
    assert_eq!((&found["queues"][0]["queue"], &found["queues"][0]["ready"]), (&json!("orders"), &json!(1)));
    server.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    events.next("tasks").await;
    server.send(server.request(Method::DELETE, "/v1/queues/orders", None)).await.of(204);
    assert_eq!(events.next("gone").await["queues"], json!(["orders"]));
    let mut hints = Events::open(&server, "/v1/queues/orders/wake-ups").await;
    server.post("/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
    hints.next("wake").await;
    server.stop().await;
    while hints.line().await.is_some() {}
}

#[tokio::test]
async fn queues_have_history_and_metrics() {
    let server =
        TestServer::with(ServerOptions { sample_interval: Duration::from_millis(50), ..ServerOptions::default() })
            .await;
    server.post("/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
    let got = server.post("/v1/queues/orders/receive", json!({})).await.of(200);
    server.post("/v1/messages/ack", json!({ "receipts": [got["messages"][0]["receipt"]] })).await.of(200);
    let history = eventually(async || {
        let history = server.get("/v1/history").await.of(200);
        let acked = history["queues"][0]["acked"].as_array().cloned().unwrap_or_default();
        acked.iter().any(|count| *count == json!(1)).then_some(history)
    })
    .await;
    assert_eq!(history["interval_seconds"], 0.05);
    let queue = &history["queues"][0];
    assert_eq!(history["since_seconds"], 0.05 * queue["ready"].as_array().unwrap().len() as f64);
    let lengths: Vec<_> =
        ["ready", "sent", "acked", "dead"].iter().map(|name| queue[name].as_array().unwrap().len()).collect();
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{history}");

    let mut request = server.request(Method::GET, "/metrics", None);
    request.headers_mut().insert("accept", "application/openmetrics-text;version=1.0.0,*/*;q=0.1".parse().unwrap());
    let open = server.send(request).await;
    assert!(open.headers["content-type"].to_str().unwrap().starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(String::from_utf8_lossy(&open.body).ends_with("# EOF\n"));
    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        "postrider_messages_sent_total{queue=\"orders\"} 1",
        "postrider_messages_received_total{queue=\"orders\"} 1",
        "postrider_messages_acked_total{queue=\"orders\"} 1",
        "postrider_queue_messages{queue=\"orders\",state=\"ready\"} 0",
        "postrider_store_up 1",
        "postrider_message_age_at_delivery_seconds_count{queue=\"orders\"} 1",
        "postrider_message_handling_seconds_count{queue=\"orders\"} 1",
        "# TYPE postrider_messages_sent_total counter",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(text.contains("postrider_build_info{version="), "{text}");
    assert!(text.contains("route=\"/v1/queues/{queue}/messages\""), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn the_server_reports_liveness_and_readiness() {
    let server = TestServer::new().await;
    assert_eq!(server.get("/healthz").await.of(200), json!({ "status": "ok" }));
    assert_eq!(server.get("/readyz").await.of(200), json!({ "status": "ok" }));
    assert_eq!(server.get("/v1/health").await.of(200), json!({ "ok": true }));
    let capabilities = server.get("/v1/capabilities").await.of(200);
    assert_eq!(capabilities["provider"], "sqlite");
    let findings = server.get("/v1/doctor").await.of(200);
    assert!(
        findings["findings"].as_array().unwrap().iter().all(|finding| finding["severity"] != "problem"),
        "{findings}"
    );
    let reference = server.get("/reference").await;
    assert!(String::from_utf8_lossy(&reference.body).contains("POST /v1/queues/{queue}/receive"));
    assert_eq!(server.get("/openapi.json").await.of(200)["openapi"], "3.1.0");
    server.stop().await;
}

#[tokio::test]
async fn a_trace_goes_from_the_sender_through_the_message_to_a_collector() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = StoreUrl::new(format!("http://{}", collector.local_addr().unwrap()));
    let collected = tokio::spawn(async move {
        let (mut stream, _) = collector.accept().await.unwrap();
        let mut read = Vec::new();
        loop {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).await.unwrap();
            read.extend_from_slice(&piece[..count]);
            let text = String::from_utf8_lossy(&read);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length =
                    head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                if body.len() >= length.unwrap_or(usize::MAX) {
                    assert!(head.starts_with("POST /v1/traces"), "{head}");
                    return serde_json::from_str::<Value>(body).unwrap();
                }
            }
        }
    });
    let server = TestServer::with(ServerOptions { otlp_endpoint: Some(endpoint), ..ServerOptions::default() }).await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let mut request = server.request(Method::POST, "/v1/queues/orders/messages", Some(&json!({ "body": "a" })));
    request.headers_mut().insert("traceparent", format!("00-{trace}-b7ad6b7169203331-01").parse().unwrap());
    server.send(request).await.of(201);
    let got = server.post("/v1/queues/orders/receive", json!({})).await.of(200);
    let carried = got["messages"][0]["headers"]["traceparent"].as_str().unwrap().to_owned();
    let found = tokio::time::timeout(TIMEOUT, collected).await.expect("in time").unwrap();
    let span = &found["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(trace), &json!("b7ad6b7169203331")));
    assert_eq!(span["name"], "POST /v1/queues/{queue}/messages");
    assert_eq!(
        carried,
        format!("00-{trace}-{}-01", span["spanId"].as_str().unwrap()),
        "the message is below the request"
    );
    server.stop().await;
}

#[tokio::test]
async fn with_a_certificate_the_server_uses_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&certificate, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    let files = postrider_server::TlsFiles { certificate: certificate.clone(), key };
    let server = TestServer::with(ServerOptions { tls: Some(files), ..ServerOptions::default() }).await;
    let options = postrider::http::HttpOptions { ca_file: Some(certificate), ..Default::default() };
    let url = format!("https://{}", server.address);
    let store = postrider::http::HttpStore::open(&url, options).await.unwrap();
    let provider = store.connect().unwrap();
    postrider::MessagingService::health_check(&provider, postrider::Deadline::default()).await.unwrap();
    server.stop().await;
}
