//! Clients that are slow, silent or rude harm nobody but themselves.

use std::time::{Duration, Instant};

use postrider_server::ServerOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::place::{PATIENCE, Place, eventually};

async fn read_to_end(mut stream: TcpStream) -> String {
    let mut read = Vec::new();
    // A reset is an end, too.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("the server ends it");
    String::from_utf8_lossy(&read).into_owned()
}

fn quick() -> ServerOptions {
    ServerOptions {
        head_timeout: Duration::from_millis(1500),
        body_timeout: Duration::from_millis(1500),
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
async fn idle_strangers_hold_up_nobody() {
    let place = Place::with(ServerOptions { max_connections: 8, ..ServerOptions::default() }).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(place.address).await.unwrap()
    };
    let mut idle = Vec::new();
    for number in 0..100 {
        let mut stream = from(2).await;
        // Some are silent, some have begun to say something, and some have had an answer.
        match number % 3 {
            0 => {}
            1 => stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: loc").await.unwrap(),
            _ => {
                stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
                let _ = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 12])).await.expect("in time");
            }
        }
        idle.push(stream);
    }
    // Far less than the time-out of a head, after which an idle one would be given up.
    let began = Instant::now();
    let mut stream = from(3).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && began.elapsed() < Duration::from_secs(5), "{answer} {began:?}");
    place.get("/healthz").await.of(200);
    place.stop().await;
}

#[tokio::test]
async fn a_client_with_many_busy_connections_leaves_a_quarter_to_others() {
    let place = Place::with(ServerOptions { max_connections: 8, ..ServerOptions::default() }).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        let mut stream = socket.connect(place.address).await.unwrap();
        let body = r#"{"wait":"60s"}"#;
        let head = "POST /v1/queues/orders/receive HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
        stream
    };
    let mut busy = Vec::new();
    for _ in 0..20 {
        busy.push(from(2).await);
    }
    // The client of this place is at another address.
    let waiting = eventually(async || {
        let workers = place.get("/v1/workers").await.of(200);
        workers["workers"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(waiting["address"], "127.0.0.2");
    let text = String::from_utf8(place.get("/metrics").await.body.to_vec()).unwrap();
    let open = text.lines().find_map(|line| line.strip_prefix("postrider_http_connections ")).unwrap().parse::<usize>();
    assert!(open.unwrap() <= 8, "{text}");
    drop(busy);
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
