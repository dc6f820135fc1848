//! Slow and silent clients do not affect others.

use std::time::{Duration, Instant};

use postrider_server::ServerOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::test_server::{TIMEOUT, TestServer, eventually};

async fn read_to_end(mut stream: TcpStream) -> String {
    let mut read = Vec::new();
    // A reset is an end, too.
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut read)).await.expect("the server ends it");
    String::from_utf8_lossy(&read).into_owned()
}

fn short_timeouts() -> ServerOptions {
    ServerOptions {
        head_timeout: Duration::from_millis(1500),
        body_timeout: Duration::from_millis(1500),
        ..ServerOptions::default()
    }
}

#[tokio::test]
async fn an_incomplete_head_times_out() {
    let server = TestServer::with(short_timeouts()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /v1/queues HTTP/1.1\r\nhost: loc").await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    server.get("/healthz").await.of(200);
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_arrives_byte_by_byte_times_out() {
    let server = TestServer::with(short_timeouts()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: \
                application/json\r\ncontent-length: 1000\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_is_cut_off_sends_nothing() {
    let server = TestServer::new().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: \
                application/json\r\ncontent-length: 14\r\n\r\n{\"body\":\"abc\"";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    read_to_end(stream).await;
    assert_eq!(server.get("/v1/queues/orders").await.of(200)["ready"], 0);
    server.stop().await;
}

#[tokio::test]
async fn a_too_large_body_is_refused() {
    let server = TestServer::with(ServerOptions { max_request_bytes: 1000, ..ServerOptions::default() }).await;
    let answer = server.post("/v1/queues/orders/messages", json!({ "body": "x".repeat(2000) })).await;
    assert_eq!(answer.code(), "payload_too_large");
    server.stop().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_permit() {
    let server = TestServer::with(ServerOptions { max_connections: 1, ..short_timeouts() }).await;
    let idle = TcpStream::connect(server.address).await.unwrap();
    // The idle one is closed after a while, and the other is served.
    server.get("/healthz").await.of(200);
    drop(idle);
    server.stop().await;
}

#[tokio::test]
async fn idle_connections_block_no_others() {
    let server = TestServer::with(ServerOptions { max_connections: 8, ..ServerOptions::default() }).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(server.address).await.unwrap()
    };
    let mut idle = Vec::new();
    for number in 0..100 {
        let mut stream = from(2).await;
        // Some are silent, some have sent a part of a request, and some have had an answer.
        match number % 3 {
            0 => {}
            1 => stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: loc").await.unwrap(),
            _ => {
                stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
                let _ = tokio::time::timeout(TIMEOUT, stream.read(&mut [0; 12])).await.expect("in time");
            }
        }
        idle.push(stream);
    }
    // Far less than the time-out of a head, which would close an idle connection.
    let began = Instant::now();
    let mut stream = from(3).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && began.elapsed() < Duration::from_secs(5), "{answer} {began:?}");
    server.get("/healthz").await.of(200);
    server.stop().await;
}

#[tokio::test]
async fn a_client_with_many_busy_connections_leaves_a_quarter_to_others() {
    let server = TestServer::with(ServerOptions { max_connections: 8, ..ServerOptions::default() }).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        let body = r#"{"wait":"60s"}"#;
        let head = "POST /v1/queues/orders/receive HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
        stream
    };
    let mut busy = Vec::new();
    for _ in 0..20 {
        busy.push(from(2).await);
    }
    // The client of this test has another address.
    let waiting = eventually(async || {
        let workers = server.get("/v1/workers").await.of(200);
        workers["workers"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(waiting["address"], "127.0.0.2");
    let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let open = text.lines().find_map(|line| line.strip_prefix("postrider_http_connections ")).unwrap().parse::<usize>();
    assert!(open.unwrap() <= 8, "{text}");
    drop(busy);
    server.stop().await;
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused_with_retry_after() {
    let server = TestServer::with(ServerOptions { requests_per_second: Some(2.0), ..ServerOptions::default() }).await;
    let mut refused = None;
    for _ in 0..50 {
        let answer = server.get("/v1/queues").await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("some are refused");
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.code(), "too_many_requests");
    server.stop().await;
}
