//! Leases that no client received are released, at once and uncounted.

use std::time::Duration;

use axum::http::Method;
use postrider::{Deadline, Message, MessagingService, QueueAdmin, QueueName, QueueStats};
use postrider_server::{Role, ServerOptions, Tokens};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::test_server::{Answer, TestServer, TestStore, eventually};

fn request(body: &str) -> String {
    post("/v1/queues/orders/receive", body)
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: \
         {}\r\n\r\n{body}",
        body.len()
    )
}

async fn stats(server: &TestServer, queue: &QueueName) -> QueueStats {
    server.context.messaging_provider.queue_stats(queue, Deadline::default()).await.unwrap()
}

async fn one_waits(server: &TestServer) {
    eventually(async || {
        let workers = server.get("/v1/workers").await.of(200);
        let rows = workers["workers"].as_array().unwrap();
        rows.iter().any(|worker| worker["waiting"] == true).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_during_a_wait_costs_no_delivery() {
    let server = TestServer::new().await;
    let queue = QueueName::new("orders").unwrap();
    for round in 0..5 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request(r#"{"wait":"30s","visibility":"10m"}"#).as_bytes()).await.unwrap();
        one_waits(&server).await;
        drop(stream);
        eventually(async || {
            let workers = server.get("/v1/workers").await.of(200);
            let rows = workers["workers"].as_array().unwrap();
            (!rows.iter().any(|worker| worker["waiting"] == true)).then_some(())
        })
        .await;
        // The claim for the client that left may get this message first; it is then released uncounted.
        let sent = server.context.messaging_provider.send_message(&queue, Message::new("a"), Deadline::default());
        sent.await.unwrap();
        let ask = json!({ "visibility": "10m", "wait": "20s" });
        let got = server.post("/v1/queues/orders/receive", ask).await.of(200);
        assert_eq!(got["messages"][0]["receive_count"], 1, "round {round}");
        server.post("/v1/messages/ack", json!({ "receipts": [got["messages"][0]["receipt"]] })).await.of(200);
    }
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_written_releases_its_leases() {
    let server =
        TestServer::with(ServerOptions { write_timeout: Duration::from_secs(5), ..ServerOptions::default() }).await;
    let queue = QueueName::new("orders").unwrap();
    let provider = &server.context.messaging_provider;
    for _ in 0..12 {
        let large = Message::new(vec![b'x'; 1024 * 1024]);
        provider.send_message(&queue, large, Deadline::default()).await.unwrap();
    }
    // A client that requests everything and reads nothing, with a small window.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    stream.write_all(request(r#"{"max":40,"visibility":"10m"}"#).as_bytes()).await.unwrap();
    eventually(async || (stats(&server, &queue).await.in_flight.value() == Some(12)).then_some(())).await;
    eventually(async || (stats(&server, &queue).await.ready.value() == Some(12)).then_some(())).await;
    // No worker has them, so none is listed with them.
    let workers = server.get("/v1/workers").await.of(200);
    assert!(workers["workers"].as_array().unwrap().iter().all(|worker| worker["in_flight"] == 0), "{workers}");
    let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let received = metrics.lines().find(|line| line.starts_with("postrider_messages_received_total"));
    assert!(received.is_none_or(|line| line.ends_with(" 0")), "{received:?}");
    let got = server.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
    assert_eq!(got["messages"][0]["receive_count"], 1);
    drop(stream);
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_was_read_keeps_its_leases() {
    let server = TestServer::new().await;
    let queue = QueueName::new("orders").unwrap();
    let provider = &server.context.messaging_provider;
    provider.send_message(&queue, Message::new("a"), Deadline::default()).await.unwrap();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(request(r#"{"visibility":"10m"}"#).as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("]}") {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0);
        read.extend_from_slice(&piece[..count]);
    }
    drop(stream);
    // A later request shows that the server has seen the end of the connection.
    server.get("/v1/queues").await.of(200);
    let stats = stats(&server, &queue).await;
    assert_eq!((stats.ready.value(), stats.in_flight.value()), (Some(0), Some(1)));
    server.stop().await;
}

const CLAIM: &str = r#"{"types":["mail"],"worker":"rude","lease":"10m","wait":"30s","max":40}"#;

/// Claims the tasks once all of them are claimable.
async fn claimed_at_last(server: &TestServer, tasks: usize) -> Vec<Value> {
    let mut all = Vec::new();
    eventually(async || {
        let ask = json!({ "types": ["mail"], "worker": "polite", "lease": "10m", "max": 40 });
        let got = server.post("/v1/tasks/claim", ask).await.of(200);
        all.extend(got["tasks"].as_array().unwrap().clone());
        (all.len() == tasks).then_some(())
    })
    .await;
    all
}

/// The worker leaves while its claim is blocked in the store.
#[tokio::test]
async fn an_abandoned_claim_is_released_uncounted() {
    let files = TestStore::postgres();
    let server = TestServer::on(&files, ServerOptions::default()).await;
    server.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    let held = files.block("update of task").await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(post("/v1/tasks/claim", CLAIM).as_bytes()).await.unwrap();
    held.wait_until_blocked().await;
    drop(stream);
    server.wait_until_idle().await;
    held.unblock().await;
    let [task] = &claimed_at_last(&server, 1).await[..] else { panic!() };
    assert_eq!(task["attempt_count"], 1);
    server.stop().await;
}

#[tokio::test]
async fn claims_whose_answer_cannot_be_written_are_released_uncounted() {
    let server =
        TestServer::with(ServerOptions { write_timeout: Duration::from_secs(5), ..ServerOptions::default() }).await;
    for _ in 0..12 {
        server.post("/v1/tasks", json!({ "type": "mail", "payload": "x".repeat(1024 * 1024) })).await.of(201);
    }
    // A worker that claims everything and reads nothing, with a small receive window.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    stream.write_all(post("/v1/tasks/claim", CLAIM).as_bytes()).await.unwrap();
    eventually(async || {
        let listed = server.get("/v1/tasks?state=PROCESSING").await.of(200);
        (listed["tasks"].as_array().unwrap().len() == 12).then_some(())
    })
    .await;
    for task in claimed_at_last(&server, 12).await {
        assert_eq!((&task["attempt_count"], &task["type"]), (&json!(1), &json!("mail")));
    }
    drop(stream);
    server.stop().await;
}

async fn with_token(server: &TestServer, token: &str, path: &str, body: Option<&Value>) -> Answer {
    let method = if body.is_some() { Method::POST } else { Method::GET };
    let mut request = server.request(method, path, body);
    request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    server.send(request).await
}

const WORKER: &[Role] = &[Role::Consume, Role::Read];

/// The tokens of two workers: one that stays valid, and one that will be revoked.
async fn two_workers(server: &TestServer) -> (String, String) {
    let stays = server.token(&[Role::Produce, Role::Consume, Role::Read], None).await;
    let ends = server.token(WORKER, None).await;
    eventually(async || (with_token(server, &ends, "/v1/queues", None).await.status == 200).then_some(())).await;
    (stays, ends)
}

/// Revokes the token of a worker, and waits until the server refuses it.
async fn end(server: &TestServer, token: &str) {
    let tokens = Tokens::new(server.state.clone());
    let all = tokens.list(Deadline::default()).await.unwrap();
    let found = all.iter().find(|token| token.roles == WORKER).unwrap();
    assert!(tokens.revoke(found.id, "test", Deadline::default()).await.unwrap());
    eventually(async || (with_token(server, token, "/v1/queues", None).await.status == 401).then_some(())).await;
}

#[tokio::test]
async fn a_token_that_ends_during_a_wait_gets_no_messages_but_its_settle_results() {
    let server = TestServer::new().await;
    let queue = QueueName::new("orders").unwrap();
    let send = async || {
        let sent = server.context.messaging_provider.send_message(&queue, Message::new("a"), Deadline::default());
        sent.await.unwrap();
    };
    let (stays, ends) = two_workers(&server).await;
    send().await;
    let got = with_token(&server, &ends, "/v1/queues/orders/receive", Some(&json!({}))).await.of(200);
    let ack = json!({ "receipt": got["messages"][0]["receipt"], "outcome": "ack" });
    let round = json!({ "queues": ["orders"], "wait": "20s", "visibility": "10m", "settlements": [ack] });
    let revoke = async {
        eventually(async || {
            let workers = with_token(&server, &stays, "/v1/workers", None).await.of(200);
            let rows = workers["workers"].as_array().unwrap();
            rows.iter().any(|worker| worker["waiting"] == true).then_some(())
        })
        .await;
        end(&server, &ends).await;
        send().await;
    };
    let (answer, ()) = tokio::join!(with_token(&server, &ends, "/v1/receive", Some(&round)), revoke);
    let answer = answer.of(200);
    assert_eq!((&answer["messages"], answer["settled"].as_array().unwrap().len()), (&json!([]), 1), "{answer}");
    assert_eq!(answer["receive_problem"]["code"], "unauthorized");
    let ask = json!({ "wait": "20s" });
    let next = with_token(&server, &stays, "/v1/queues/orders/receive", Some(&ask)).await.of(200);
    assert_eq!(next["messages"][0]["receive_count"], 1, "it was released uncounted");
    let left = stats(&server, &queue).await;
    assert_eq!((left.ready.value(), left.in_flight.value()), (Some(0), Some(1)), "the first was settled");
    server.stop().await;
}

#[tokio::test]
async fn a_token_that_ends_during_a_wait_gets_no_tasks_but_its_finish_results() {
    for does_finish in [false, true] {
        let files = TestStore::postgres();
        let server = TestServer::on(&files, ServerOptions::default()).await;
        let (stays, ends) = two_workers(&server).await;
        let mut claim: Value = serde_json::from_str(CLAIM).unwrap();
        let make = async || {
            let task = json!({ "type": "mail", "payload": "" });
            with_token(&server, &stays, "/v1/tasks", Some(&task)).await.of(201);
        };
        if does_finish {
            make().await;
            let got = with_token(&server, &ends, "/v1/tasks/claim", Some(&claim)).await.of(200);
            claim["finish"] = json!([{ "lease": got["tasks"][0]["lease"], "outcome": "succeeded" }]);
        }
        make().await;
        let held = files.block("update of task").await;
        let revoke = async {
            held.wait_until_blocked().await;
            end(&server, &ends).await;
            held.unblock().await;
        };
        let (answer, ()) = tokio::join!(with_token(&server, &ends, "/v1/tasks/claim", Some(&claim)), revoke);
        if does_finish {
            let answer = answer.of(200);
            assert_eq!((&answer["finished"], &answer["tasks"]), (&json!([{ "held": true }]), &json!([])));
        } else {
            assert_eq!(answer.code(), "unauthorized");
        }
        let ask = json!({ "types": ["mail"], "worker": "polite", "lease": "10m", "wait": "20s", "max": 40 });
        let next = with_token(&server, &stays, "/v1/tasks/claim", Some(&ask)).await.of(200);
        let [task] = &next["tasks"].as_array().unwrap()[..] else { panic!("{next}") };
        assert_eq!(task["attempt_count"], 1, "it was released uncounted");
        server.stop().await;
    }
}
