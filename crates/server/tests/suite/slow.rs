//! Clients that are slow, silent or rude harm nobody but themselves.

use std::time::Duration;

use postrider_server::ServerOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::place::{PATIENCE, Place};

async fn read_to_end(mut stream: TcpStream) -> String {
    let mut read = Vec::new();
    // A reset is an end, too.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("the server ends it");
    String::from_utf8_lossy(&read).into_owned()
}

fn quick() -> ServerOptions {
    ServerOptions {
        head_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        ..ServerOptions::default()
    }
}

#[tokio::test]
async fn a_head_that_does_not_come_to_its_end_is_given_up() {
    let place = Place::with(quick()).await;
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    stream.write_all(b"GET /v1/queues HTTP/1.1\r\nhost: loc").await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    place.get("/healthz").await.of(200);
    place.stop().await;
}

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_is_given_up() {
    let place = Place::with(quick()).await;
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    let head = "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: \
                application/json\r\ncontent-length: 1000\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
    place.stop().await;
}

#[tokio::test]
async fn a_body_that_is_cut_off_sends_nothing() {
    let place = Place::new().await;
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    let head = "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: \
                application/json\r\ncontent-length: 14\r\n\r\n{\"body\":\"abc\"";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    read_to_end(stream).await;
    assert_eq!(place.get("/v1/queues/orders").await.of(200)["ready"], 0);
    place.stop().await;
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let place = Place::with(ServerOptions { max_request_bytes: 1000, ..ServerOptions::default() }).await;
    let answer = place.post("/v1/queues/orders/messages", json!({ "body": "x".repeat(2000) })).await;
    assert_eq!(answer.code(), "payload_too_large");
    place.stop().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let place = Place::with(ServerOptions { max_connections: 1, ..quick() }).await;
    let idle = TcpStream::connect(place.address).await.unwrap();
    // The idle one is given up after a while, and the other is served.
    place.get("/healthz").await.of(200);
    drop(idle);
    place.stop().await;
}

#[tokio::test]
async fn more_requests_than_are_allowed_are_refused_with_the_time_to_wait() {
    let place = Place::with(ServerOptions { requests_per_second: Some(2.0), ..ServerOptions::default() }).await;
    let mut refused = None;
    for _ in 0..50 {
        let answer = place.get("/v1/queues").await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("some are refused");
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.code(), "too_many_requests");
    place.stop().await;
}
