//! A stopping server finishes what runs, within a time-out.

use std::time::Duration;

use postrider::{Deadline, Message, MessagingService, Nack, QueueAdmin, QueueName, ReceiveOptions};
use postrider_server::ServerOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::test_server::{TIMEOUT, TestServer, TestStore, eventually};

/// Long time-outs, except for the stop.
fn long_timeouts() -> ServerOptions {
    ServerOptions {
        graceful_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_secs(3600),
        write_timeout: Duration::from_secs(3600),
        ..ServerOptions::default()
    }
}

/// Waits until the server has closed the connection.
async fn wait_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.expect("it is ended");
}

#[tokio::test]
async fn leases_for_a_client_that_does_not_read_are_released() {
    let files = TestStore::sqlite();
    let server = TestServer::on(&files, long_timeouts()).await;
    let queue = QueueName::new("orders").unwrap();
    let provider = server.context.messaging_provider.clone();
    for _ in 0..12 {
        let large = Message::new(vec![b'x'; 1024 * 1024]);
        provider.send_message(&queue, large, Deadline::default()).await.unwrap();
    }
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    let body = r#"{"max":12,"visibility":"10m"}"#;
    let head = "POST /v1/queues/orders/receive HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    eventually(async || {
        let stats = provider.queue_stats(&queue, Deadline::default()).await.unwrap();
        (stats.in_flight.value() == Some(12)).then_some(())
    })
    .await;
    server.stop().await;
    let server = TestServer::on(&files, ServerOptions::default()).await;
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!((&stats["ready"], &stats["in_flight"]), (&json!(12), &json!(0)), "{stats}");
    wait_closed(stream).await;
    server.stop().await;
}

#[tokio::test]
async fn a_request_beyond_the_graceful_timeout_is_aborted() {
    let server = TestServer::with(long_timeouts()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-type: \
                application/json\r\ncontent-length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server waits for its body.
    let mut answer = [0; 12];
    tokio::time::timeout(TIMEOUT, stream.read_exact(&mut answer)).await.expect("in time").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    server.stop().await;
    wait_closed(stream).await;
}

#[tokio::test]
async fn a_job_ends_between_two_chunks_and_the_audit_log_has_its_progress() {
    let files = TestStore::sqlite();
    let server = TestServer::on(&files, long_timeouts()).await;
    let queue = QueueName::new("orders").unwrap();
    let provider = server.context.messaging_provider.clone();
    for number in 0..10 {
        provider.send_message(&queue, Message::new(format!("{number}")), Deadline::default()).await.unwrap();
        let got = provider.receive_messages(&queue, &ReceiveOptions::default(), Deadline::default()).await.unwrap();
        for message in got {
            provider.nack_message(&queue, message, Nack::dead_letter("no"), Deadline::default()).await.unwrap();
        }
    }
    let job = server.post("/v1/queues/orders/dead-letters/redrive-job", json!({ "rate": 1.0 })).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    eventually(async || (server.get(&path).await.of(200)["done"] != 0).then_some(())).await;
    server.stop().await;
    let server = TestServer::on(&files, ServerOptions::default()).await;
    let entry = server.get("/v1/audit?limit=1").await.of(200)["entries"][0].clone();
    let left = server.get("/v1/queues/orders").await.of(200)["dead"].as_u64().unwrap();
    assert!((1..10).contains(&left), "{left}");
    assert_eq!(entry["detail"]["outcome"]["redriven"], 10 - left, "{entry}");
    server.stop().await;
}
