//! Requests with an `Idempotency-Key`.

use axum::http::Method;
use postrider::Deadline;
use postrider::state_records::{Put, RecordKind, RecordQuery, StateRecord, StateRecords};
use postrider_server::ServerOptions;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::test_server::{Answer, TestServer, TestStore, eventually};

static KIND: RecordKind = RecordKind::constant("answer");

async fn repeat(server: &TestServer, path: &str, key: &str, body: &Value) -> Answer {
    let mut request = server.request(Method::POST, path, Some(body));
    request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    server.send(request).await
}

/// Repeats a request until it is no longer in progress.
async fn answered(server: &TestServer, path: &str, key: &str, body: &Value) -> Answer {
    eventually(async || Some(repeat(server, path, key, body).await).filter(|answer| answer.status != 409)).await
}

#[tokio::test]
async fn a_send_whose_client_leaves_runs_once_however_often_it_is_repeated() {
    const PATH: &str = "/v1/queues/orders/messages";
    let files = TestStore::postgres();
    let server = TestServer::on(&files, ServerOptions::default()).await;
    server.send(server.request(Method::PUT, "/v1/queues/orders", None)).await.of(204);
    for round in 0..10 {
        let (key, body) = (format!("k{round}"), json!({ "body": format!("body {round}") }));
        let text = body.to_string();
        let request = format!(
            "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nidempotency-key: \
             {key}\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
        // In every other round the client leaves while the insert is blocked in the store; otherwise at a random time.
        let held = if round % 2 == 0 { Some(files.block("insert of message").await) } else { None };
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        if let Some(held) = held {
            held.wait_until_blocked().await;
            drop(stream);
            server.wait_until_idle().await;
            assert_eq!(repeat(&server, PATH, &key, &body).await.code(), "idempotency_in_progress");
            held.unblock().await;
        } else {
            drop(stream);
        }
        let first = answered(&server, PATH, &key, &body).await.of(201);
        for _ in 0..3 {
            let again = repeat(&server, PATH, &key, &body).await;
            assert_eq!(again.headers["idempotent-replay"], "true");
            assert_eq!(again.of(201), first);
        }
    }
    let peeked = server.get(&format!("{PATH}?limit=100")).await.of(200);
    let mut bodies: Vec<_> = peeked["messages"].as_array().unwrap().iter().map(|row| row["body"].clone()).collect();
    bodies.sort_by_key(Value::to_string);
    let sent: Vec<_> = (0..10).map(|round| json!(format!("body {round}"))).collect();
    assert_eq!(bodies, sent);
    server.stop().await;
}

#[tokio::test]
async fn a_body_of_more_than_half_a_callers_budget_is_counted_once() {
    const MIB: usize = 1024 * 1024;
    let options = ServerOptions { max_bytes_in_flight: 2 * MIB, max_request_bytes: MIB, ..ServerOptions::default() };
    let server = TestServer::with(options).await;
    let body = json!({ "body": "x".repeat(MIB * 3 / 4) });
    let first = repeat(&server, "/v1/queues/orders/messages", "k", &body).await.of(201);
    let again = repeat(&server, "/v1/queues/orders/messages", "k", &body).await;
    assert_eq!(again.headers["idempotent-replay"], "true");
    assert_eq!(again.of(201), first);
    server.stop().await;
}

fn ids(rows: &Value) -> Vec<String> {
    let mut ids: Vec<_> =
        rows.as_array().unwrap().iter().filter_map(|row| row["id"].as_str()).map(str::to_owned).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn a_repetition_sends_only_the_failed_messages_of_a_batch() {
    const PATH: &str = "/v1/queues/orders/messages/batch";
    let files = TestStore::postgres();
    let server = TestServer::on(&files, ServerOptions::default()).await;
    let body = json!({ "messages": [{ "body": "a" }, { "body": "b" }, { "body": "c" }] });
    let refusing = files.refuse("message", "b").await;
    let first = repeat(&server, PATH, "k", &body).await.of(200);
    let rows = first["results"].as_array().unwrap();
    let has_failed: Vec<_> = rows.iter().map(|row| row.get("problem").is_some()).collect();
    assert_eq!(has_failed, [false, true, false], "{first}");
    let again = repeat(&server, PATH, "k", &body).await.of(200);
    assert_eq!((&again["results"][0], &again["results"][2]), (&rows[0], &rows[2]), "they are not sent again");
    assert!(again["results"][1].get("problem").is_some(), "{again}");
    refusing.end().await;
    let last = repeat(&server, PATH, "k", &body).await;
    assert!(!last.headers.contains_key("idempotent-replay"));
    let last = last.of(200);
    assert_eq!((&last["results"][0], &last["results"][2]), (&rows[0], &rows[2]));
    assert!(last["results"][1]["id"].is_string(), "{last}");
    let replayed = repeat(&server, PATH, "k", &body).await;
    assert_eq!(replayed.headers["idempotent-replay"], "true");
    assert_eq!(replayed.of(200), last);
    assert_eq!(repeat(&server, PATH, "k", &json!({})).await.code(), "idempotency_mismatch");
    let peeked = server.get("/v1/queues/orders/messages").await.of(200);
    assert_eq!(ids(&peeked["messages"]), ids(&last["results"]), "each once");
    server.stop().await;
}

const BATCH: &str = "/v1/queues/orders/messages/batch";

/// Sends a batch of which one row fails; a retry of it would succeed.
async fn failed_in_part(server: &TestServer, files: &TestStore) -> Value {
    let body = json!({ "messages": [{ "body": "a" }, { "body": "b" }] });
    let refusing = files.refuse("message", "b").await;
    let first = repeat(server, BATCH, "k", &body).await.of(200);
    assert!(first["results"][1].get("problem").is_some(), "{first}");
    refusing.end().await;
    body
}

/// The only record of a key.
async fn only_record(server: &TestServer) -> StateRecord {
    let mut kept = server.state.list(&KIND, &RecordQuery::default(), Deadline::default()).await.unwrap().records;
    assert_eq!(kept.len(), 1, "{kept:?}");
    kept.remove(0)
}

#[tokio::test]
async fn of_two_concurrent_repetitions_one_retries_the_failed_rows() {
    let files = TestStore::postgres();
    let server = TestServer::on(&files, ServerOptions::default()).await;
    let body = failed_in_part(&server, &files).await;
    let held = files.block("insert of message").await;
    let meanwhile = async {
        held.wait_until_blocked().await;
        let other = repeat(&server, BATCH, "k", &body).await;
        held.unblock().await;
        other
    };
    let (one, other) = tokio::join!(repeat(&server, BATCH, "k", &body), meanwhile);
    assert_eq!(other.code(), "idempotency_in_progress");
    let one = one.of(200);
    let replayed = repeat(&server, BATCH, "k", &body).await;
    assert_eq!(replayed.headers["idempotent-replay"], "true");
    assert_eq!(replayed.of(200), one);
    let peeked = server.get("/v1/queues/orders/messages").await.of(200);
    assert_eq!(ids(&peeked["messages"]), ids(&one["results"]), "each once");
    only_record(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn retried_rows_are_stored_though_the_record_has_changed_meanwhile() {
    let files = TestStore::postgres();
    let server = TestServer::on(&files, ServerOptions::default()).await;
    let body = failed_in_part(&server, &files).await;
    let record = only_record(&server).await;
    let held = files.block("insert of message").await;
    let meanwhile = async {
        held.wait_until_blocked().await;
        let (version, value) = (record.version, record.value.clone());
        let changed = server.state.replace(&KIND, &record.key, version, value, None, Deadline::default()).await;
        assert!(changed.unwrap().is_some());
        held.unblock().await;
    };
    let (one, ()) = tokio::join!(repeat(&server, BATCH, "k", &body), meanwhile);
    let replayed = repeat(&server, BATCH, "k", &body).await;
    assert_eq!(replayed.headers["idempotent-replay"], "true");
    assert_eq!(replayed.of(200), one.of(200));
    server.stop().await;
}

/// A request that takes so long that its record expires, and another request has the key when it fails.
#[tokio::test]
async fn a_request_that_fails_leaves_the_record_of_another_alone() {
    const PATH: &str = "/v1/queues/orders/messages";
    let files = TestStore::postgres();
    let server = TestServer::on(&files, ServerOptions::default()).await;
    server.send(server.request(Method::PUT, "/v1/queues/orders", None)).await.of(204);
    let refusing = files.refuse("message", "b").await;
    let held = files.block("insert of message").await;
    let body = json!({ "body": "b" });
    let meanwhile = async {
        held.wait_until_blocked().await;
        let key = only_record(&server).await.key;
        assert!(server.state.remove(&KIND, &key, Deadline::default()).await.unwrap());
        let made = server.state.put_new(&KIND, &key, "another's".into(), None, Deadline::default()).await;
        held.unblock().await;
        made.unwrap()
    };
    let (failed, made) = tokio::join!(repeat(&server, PATH, "k", &body), meanwhile);
    assert!(failed.status.is_server_error() || failed.status.is_client_error(), "{failed:?}");
    assert_ne!(failed.status, 504);
    let Put::Made(made) = made else { panic!("{made:?}") };
    assert_eq!(only_record(&server).await, made);
    refusing.end().await;
    server.stop().await;
}

#[tokio::test]
async fn tasks_of_a_batch_are_created_once_beside_failed_ones() {
    let server = TestServer::new().await;
    let task = |priority| json!({ "type": "mail", "payload": "", "priority": priority });
    let body = json!({ "tasks": [task(4), task(99), task(4)] });
    let first = repeat(&server, "/v1/tasks/batch", "k", &body).await.of(200);
    assert_eq!(first["results"][1]["problem"]["code"], "invalid_input");
    assert_eq!(repeat(&server, "/v1/tasks/batch", "k", &body).await.of(200), first);
    assert_eq!(ids(&server.get("/v1/tasks").await.of(200)["tasks"]), ids(&first["results"]));
    server.stop().await;
}

/// A server that died after it had created a task, and before it had stored the answer.
#[tokio::test]
async fn tasks_whose_answer_was_lost_are_returned_by_a_repetition() {
    for files in [TestStore::sqlite(), TestStore::postgres()] {
        let server = TestServer::on(&files, ServerOptions::default()).await;
        let task = json!({ "type": "mail", "payload": "" });
        let batch = json!({ "tasks": [task, task] });
        let one = repeat(&server, "/v1/tasks", "k", &task).await.of(201);
        let two = repeat(&server, "/v1/tasks/batch", "k", &batch).await.of(200);
        let kept = server.state.list(&KIND, &RecordQuery::default(), Deadline::default()).await.unwrap().records;
        assert_eq!(kept.len(), 2);
        for record in kept {
            server.state.remove(&KIND, &record.key, Deadline::default()).await.unwrap();
        }
        assert_eq!(repeat(&server, "/v1/tasks", "k", &task).await.of(201), one);
        assert_eq!(repeat(&server, "/v1/tasks/batch", "k", &batch).await.of(200), two);
        assert_eq!(server.get("/v1/tasks").await.of(200)["tasks"].as_array().unwrap().len(), 3);
        server.stop().await;
    }
}

#[tokio::test]
async fn the_answer_to_the_largest_batch_is_stored() {
    let server = TestServer::new().await;
    // Every row has the longest possible answer.
    let tasks: Vec<_> = (0..10_000).map(|_| json!({ "type": "mail", "payload": "" })).collect();
    let body = json!({ "tasks": tasks });
    let first = repeat(&server, "/v1/tasks/batch", "k", &body).await.of(200);
    let again = repeat(&server, "/v1/tasks/batch", "k", &body).await;
    assert_eq!(again.headers["idempotent-replay"], "true");
    assert_eq!(again.of(200), first);

    let refused: Vec<_> =
        (0..10_000).map(|row| json!({ "body": "", "priority": if row == 0 { 4 } else { 99 } })).collect();
    let body = json!({ "messages": refused });
    let first = repeat(&server, "/v1/queues/orders/messages/batch", "k", &body).await.of(200);
    assert_eq!(repeat(&server, "/v1/queues/orders/messages/batch", "k", &body).await.of(200), first);
    assert_eq!(server.get("/v1/queues/orders").await.of(200)["ready"], 1);
    server.stop().await;
}
