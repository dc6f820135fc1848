//! Requests with an `Idempotency-Key`, however often they are repeated.

use axum::http::Method;
use postrider::Deadline;
use postrider::state_records::{Put, RecordKind, RecordQuery, StateRecord, StateRecords};
use postrider_server::ServerOptions;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::place::{Answer, Files, Place, eventually};

static KIND: RecordKind = RecordKind::constant("answer");

async fn repeat(place: &Place, path: &str, key: &str, body: &Value) -> Answer {
    let mut request = place.request(Method::POST, path, Some(body));
    request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    place.send(request).await
}

/// Repeats a request until it is not under way any more.
async fn answered(place: &Place, path: &str, key: &str, body: &Value) -> Answer {
    eventually(async || Some(repeat(place, path, key, body).await).filter(|answer| answer.status != 409)).await
}

#[tokio::test]
async fn a_send_whose_client_leaves_is_carried_out_once_however_often_it_is_repeated() {
    const PATH: &str = "/v1/queues/orders/messages";
    let files = Files::postgres();
    let place = Place::on(&files, ServerOptions::default()).await;
    place.send(place.request(Method::PUT, "/v1/queues/orders", None)).await.of(204);
    for round in 0..10 {
        let (key, body) = (format!("k{round}"), json!({ "body": format!("body {round}") }));
        let text = body.to_string();
        let request = format!(
            "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nidempotency-key: \
             {key}\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
        // Every other time the client leaves while the message is being written, which something in the store holds up;
        // otherwise whenever it happens.
        let held = if round % 2 == 0 { Some(files.hold("insert of message").await) } else { None };
        let mut stream = TcpStream::connect(place.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        if let Some(held) = held {
            held.is_waited_for().await;
            drop(stream);
            place.is_left_alone().await;
            assert_eq!(repeat(&place, PATH, &key, &body).await.code(), "idempotency_in_progress");
            held.let_go().await;
        } else {
            drop(stream);
        }
        let first = answered(&place, PATH, &key, &body).await.of(201);
        for _ in 0..3 {
            let again = repeat(&place, PATH, &key, &body).await;
            assert_eq!(again.headers["idempotent-replay"], "true");
            assert_eq!(again.of(201), first);
        }
    }
    let peeked = place.get(&format!("{PATH}?limit=100")).await.of(200);
    let mut bodies: Vec<_> = peeked["messages"].as_array().unwrap().iter().map(|row| row["body"].clone()).collect();
    bodies.sort_by_key(Value::to_string);
    let sent: Vec<_> = (0..10).map(|round| json!(format!("body {round}"))).collect();
    assert_eq!(bodies, sent);
    place.stop().await;
}

#[tokio::test]
async fn a_body_of_more_than_half_of_what_a_caller_may_have_is_counted_once() {
    const MIB: usize = 1024 * 1024;
    let options = ServerOptions { max_bytes_in_flight: 2 * MIB, max_request_bytes: MIB, ..ServerOptions::default() };
    let place = Place::with(options).await;
    let body = json!({ "body": "x".repeat(MIB * 3 / 4) });
    let first = repeat(&place, "/v1/queues/orders/messages", "k", &body).await.of(201);
    let again = repeat(&place, "/v1/queues/orders/messages", "k", &body).await;
    assert_eq!(again.headers["idempotent-replay"], "true");
    assert_eq!(again.of(201), first);
    place.stop().await;
}

fn ids(rows: &Value) -> Vec<String> {
    let mut ids: Vec<_> =
        rows.as_array().unwrap().iter().filter_map(|row| row["id"].as_str()).map(str::to_owned).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn messages_of_a_batch_that_failed_are_sent_by_a_repetition_and_the_others_are_not() {
    const PATH: &str = "/v1/queues/orders/messages/batch";
    let files = Files::postgres();
    let place = Place::on(&files, ServerOptions::default()).await;
    let body = json!({ "messages": [{ "body": "a" }, { "body": "b" }, { "body": "c" }] });
    let refusing = files.refuse("message", "b").await;
    let first = repeat(&place, PATH, "k", &body).await.of(200);
    let rows = first["results"].as_array().unwrap();
    let has_failed: Vec<_> = rows.iter().map(|row| row.get("problem").is_some()).collect();
    assert_eq!(has_failed, [false, true, false], "{first}");
    let again = repeat(&place, PATH, "k", &body).await.of(200);
    assert_eq!((&again["results"][0], &again["results"][2]), (&rows[0], &rows[2]), "they are not sent again");
    assert!(again["results"][1].get("problem").is_some(), "{again}");
    refusing.end().await;
    let last = repeat(&place, PATH, "k", &body).await;
    assert!(!last.headers.contains_key("idempotent-replay"));
    let last = last.of(200);
    assert_eq!((&last["results"][0], &last["results"][2]), (&rows[0], &rows[2]));
    assert!(last["results"][1]["id"].is_string(), "{last}");
    let replayed = repeat(&place, PATH, "k", &body).await;
    assert_eq!(replayed.headers["idempotent-replay"], "true");
    assert_eq!(replayed.of(200), last);
    assert_eq!(repeat(&place, PATH, "k", &json!({})).await.code(), "idempotency_mismatch");
    let peeked = place.get("/v1/queues/orders/messages").await.of(200);
    assert_eq!(ids(&peeked["messages"]), ids(&last["results"]), "each once");
    place.stop().await;
}

const BATCH: &str = "/v1/queues/orders/messages/batch";

/// A batch of which one row has failed, and would not fail again.
async fn failed_in_part(place: &Place, files: &Files) -> Value {
    let body = json!({ "messages": [{ "body": "a" }, { "body": "b" }] });
    let refusing = files.refuse("message", "b").await;
    let first = repeat(place, BATCH, "k", &body).await.of(200);
    assert!(first["results"][1].get("problem").is_some(), "{first}");
    refusing.end().await;
    body
}

/// The one record of a key.
async fn only_record(place: &Place) -> StateRecord {
    let mut kept = place.state.list(&KIND, &RecordQuery::default(), Deadline::default()).await.unwrap().records;
    assert_eq!(kept.len(), 1, "{kept:?}");
    kept.remove(0)
}

#[tokio::test]
async fn of_two_repetitions_at_once_one_tries_again_what_failed() {
    let files = Files::postgres();
    let place = Place::on(&files, ServerOptions::default()).await;
    let body = failed_in_part(&place, &files).await;
    let held = files.hold("insert of message").await;
    let meanwhile = async {
        held.is_waited_for().await;
        let other = repeat(&place, BATCH, "k", &body).await;
        held.let_go().await;
        other
    };
    let (one, other) = tokio::join!(repeat(&place, BATCH, "k", &body), meanwhile);
    assert_eq!(other.code(), "idempotency_in_progress");
    let one = one.of(200);
    let replayed = repeat(&place, BATCH, "k", &body).await;
    assert_eq!(replayed.headers["idempotent-replay"], "true");
    assert_eq!(replayed.of(200), one);
    let peeked = place.get("/v1/queues/orders/messages").await.of(200);
    assert_eq!(ids(&peeked["messages"]), ids(&one["results"]), "each once");
    only_record(&place).await;
    place.stop().await;
}

#[tokio::test]
async fn rows_that_were_tried_again_are_remembered_though_the_record_was_changed_meanwhile() {
    let files = Files::postgres();
    let place = Place::on(&files, ServerOptions::default()).await;
    let body = failed_in_part(&place, &files).await;
    let record = only_record(&place).await;
    let held = files.hold("insert of message").await;
    let meanwhile = async {
        held.is_waited_for().await;
        let (version, value) = (record.version, record.value.clone());
        let changed = place.state.replace(&KIND, &record.key, version, value, None, Deadline::default()).await;
        assert!(changed.unwrap().is_some());
        held.let_go().await;
    };
    let (one, ()) = tokio::join!(repeat(&place, BATCH, "k", &body), meanwhile);
    let replayed = repeat(&place, BATCH, "k", &body).await;
    assert_eq!(replayed.headers["idempotent-replay"], "true");
    assert_eq!(replayed.of(200), one.of(200));
    place.stop().await;
}

/// A request that takes so long that its record ends, and another has the key when it fails.
#[tokio::test]
async fn a_request_that_fails_leaves_the_record_of_another_alone() {
    const PATH: &str = "/v1/queues/orders/messages";
    let files = Files::postgres();
    let place = Place::on(&files, ServerOptions::default()).await;
    place.send(place.request(Method::PUT, "/v1/queues/orders", None)).await.of(204);
    let refusing = files.refuse("message", "b").await;
    let held = files.hold("insert of message").await;
    let body = json!({ "body": "b" });
    let meanwhile = async {
        held.is_waited_for().await;
        let key = only_record(&place).await.key;
        assert!(place.state.remove(&KIND, &key, Deadline::default()).await.unwrap());
        let made = place.state.put_new(&KIND, &key, "another's".into(), None, Deadline::default()).await;
        held.let_go().await;
        made.unwrap()
    };
    let (failed, made) = tokio::join!(repeat(&place, PATH, "k", &body), meanwhile);
    assert!(failed.status.is_server_error() || failed.status.is_client_error(), "{failed:?}");
    assert_ne!(failed.status, 504);
    let Put::Made(made) = made else { panic!("{made:?}") };
    assert_eq!(only_record(&place).await, made);
    refusing.end().await;
    place.stop().await;
}

#[tokio::test]
async fn tasks_of_a_batch_are_made_once_beside_those_that_fail() {
    let place = Place::new().await;
    let task = |priority| json!({ "type": "mail", "payload": "", "priority": priority });
    let body = json!({ "tasks": [task(4), task(99), task(4)] });
    let first = repeat(&place, "/v1/tasks/batch", "k", &body).await.of(200);
    assert_eq!(first["results"][1]["problem"]["code"], "invalid_input");
    assert_eq!(repeat(&place, "/v1/tasks/batch", "k", &body).await.of(200), first);
    assert_eq!(ids(&place.get("/v1/tasks").await.of(200)["tasks"]), ids(&first["results"]));
    place.stop().await;
}

/// A server that died after it had made a task, and before it had kept the answer.
#[tokio::test]
async fn tasks_whose_answer_was_lost_are_answered_when_the_request_is_carried_out_again() {
    for files in [Files::sqlite(), Files::postgres()] {
        let place = Place::on(&files, ServerOptions::default()).await;
        let task = json!({ "type": "mail", "payload": "" });
        let batch = json!({ "tasks": [task, task] });
        let one = repeat(&place, "/v1/tasks", "k", &task).await.of(201);
        let two = repeat(&place, "/v1/tasks/batch", "k", &batch).await.of(200);
        let kept = place.state.list(&KIND, &RecordQuery::default(), Deadline::default()).await.unwrap().records;
        assert_eq!(kept.len(), 2);
        for record in kept {
            place.state.remove(&KIND, &record.key, Deadline::default()).await.unwrap();
        }
        assert_eq!(repeat(&place, "/v1/tasks", "k", &task).await.of(201), one);
        assert_eq!(repeat(&place, "/v1/tasks/batch", "k", &batch).await.of(200), two);
        assert_eq!(place.get("/v1/tasks").await.of(200)["tasks"].as_array().unwrap().len(), 3);
        place.stop().await;
    }
}

#[tokio::test]
async fn the_answer_to_the_largest_batch_is_remembered() {
    let place = Place::new().await;
    // Every row has as long an answer as there is.
    let tasks: Vec<_> = (0..10_000).map(|_| json!({ "type": "mail", "payload": "" })).collect();
    let body = json!({ "tasks": tasks });
    let first = repeat(&place, "/v1/tasks/batch", "k", &body).await.of(200);
    let again = repeat(&place, "/v1/tasks/batch", "k", &body).await;
    assert_eq!(again.headers["idempotent-replay"], "true");
    assert_eq!(again.of(200), first);

    let refused: Vec<_> =
        (0..10_000).map(|row| json!({ "body": "", "priority": if row == 0 { 4 } else { 99 } })).collect();
    let body = json!({ "messages": refused });
    let first = repeat(&place, "/v1/queues/orders/messages/batch", "k", &body).await.of(200);
    assert_eq!(repeat(&place, "/v1/queues/orders/messages/batch", "k", &body).await.of(200), first);
    assert_eq!(place.get("/v1/queues/orders").await.of(200)["ready"], 1);
    place.stop().await;
}
