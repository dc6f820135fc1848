//! The life of a message over HTTP.

use axum::http::Method;
use postrider_server::Role;
use serde_json::{Value, json};

use crate::test_server::TestServer;

async fn receive(server: &TestServer, queue: &str, options: Value) -> Vec<Value> {
    let answer = server.post(&format!("/v1/queues/{queue}/receive"), options).await.of(200);
    answer["messages"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_message_is_sent_received_extended_and_settled() {
    let server = TestServer::new().await;
    let new = json!({ "body": "{\"item\":\"tea\"}", "content_type": "application/json", "headers": { "a": "b" },
                      "ordering_key": "k", "priority": 7 });
    let sent = server.post("/v1/queues/orders/messages", new).await.of(201);
    let [message] = &receive(&server, "orders", json!({ "max": 5, "worker": "w1" })).await[..] else { panic!() };
    assert_eq!((&message["id"], &message["body"]), (&sent["id"], &json!("{\"item\":\"tea\"}")));
    assert_eq!((&message["headers"], &message["priority"]), (&json!({ "a": "b" }), &json!(7)));
    let receipt = &message["receipt"];
    assert!(receipt.as_str().unwrap().starts_with("pr1."));

    let workers = server.get("/v1/workers").await.of(200);
    assert_eq!(workers["workers"][0]["name"], "w1");
    assert_eq!((&workers["workers"][0]["in_flight"], &workers["workers"][0]["waiting"]), (&json!(1), &json!(false)));

    let extended =
        server.post("/v1/messages/extend", json!({ "receipts": [receipt], "visibility": "1m" })).await.of(200);
    assert_eq!(extended["results"][0]["outcome"], "done");
    let rows = server.post("/v1/messages/ack", json!({ "receipts": [receipt, "pr1.AAAA", receipt] })).await.of(200);
    assert_eq!(rows["results"][0], json!({ "receipt": receipt, "outcome": "done" }));
    assert_eq!(rows["results"][1]["problem"]["code"], "invalid_receipt");
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!((&stats["ready"], &stats["in_flight"]), (&json!(0), &json!(0)));
    let again = server.post("/v1/messages/ack", json!({ "receipts": [receipt] })).await.of(200);
    assert_eq!(again["results"][0]["problem"]["code"], "visibility_expired");
    server.stop().await;
}

#[tokio::test]
async fn a_json_body_may_be_written_as_json() {
    let server = TestServer::new().await;
    server.post("/v1/queues/orders/messages", json!({ "body": { "item": "tea" } })).await.of(201);
    let [message] = &receive(&server, "orders", json!({})).await[..] else { panic!() };
    assert_eq!(
        (&message["body"], &message["content_type"]),
        (&json!("{\"item\":\"tea\"}"), &json!("application/json"))
    );
    server.post("/v1/tasks", json!({ "type": "count", "payload": [1, 2] })).await.of(201);
    let claim = json!({ "types": ["count"], "lease": "30s", "worker": "w" });
    assert_eq!(server.post("/v1/tasks/claim", claim).await.of(200)["tasks"][0]["payload"], "[1,2]");
    let schedule = json!({ "type": "count", "payload": { "n": 7 }, "every": "1h" });
    let put = server.request(Method::PUT, "/v1/schedules/counting", Some(&schedule));
    assert_eq!(server.send(put).await.of(200)["payload"], "{\"n\":7}");
    server.stop().await;
}

#[tokio::test]
async fn a_long_poll_ends_with_a_message_or_with_the_server() {
    let server = TestServer::new().await;
    let (waited, sent) = tokio::join!(receive(&server, "orders", json!({ "wait": "20s" })), async {
        crate::test_server::eventually(async || {
            let workers = server.get("/v1/workers").await.of(200);
            (workers["workers"][0]["waiting"] == true).then_some(())
        })
        .await;
        server.post("/v1/queues/orders/messages", json!({ "body": "" })).await.of(201)
    });
    assert_eq!(waited[0]["id"], sent["id"]);

    let request = server.request(Method::POST, "/v1/queues/mail/receive", Some(&json!({ "wait": "60s" })));
    let (waited, ()) = tokio::join!(server.send(request), async {
        crate::test_server::eventually(async || {
            let workers = server.get("/v1/workers").await.of(200);
            let rows = workers["workers"].as_array().unwrap();
            rows.iter().any(|worker| worker["waiting"] == true).then_some(())
        })
        .await;
        server.request_stop();
    });
    assert_eq!(waited.of(200)["messages"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn each_row_of_a_batch_has_its_own_result() {
    let server = TestServer::new().await;
    let rows = json!({ "messages": [{ "body": "a" }, { "body": "b", "priority": 99 }, { "body_base64": "/w==" }] });
    let answer = server.post("/v1/queues/orders/messages/batch", rows).await.of(200);
    let results = answer["results"].as_array().unwrap();
    assert!(results[0]["id"].is_string() && results[2]["id"].is_string());
    assert_eq!(results[1]["problem"]["code"], "invalid_input");
    let peeked = server.get("/v1/queues/orders/messages").await.of(200);
    let bodies: Vec<_> =
        peeked["messages"].as_array().unwrap().iter().map(|row| (&row["body"], &row["body_base64"])).collect();
    assert_eq!(bodies, [(&json!("a"), &Value::Null), (&Value::Null, &json!("/w=="))]);
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_request_with_a_key_runs_once() {
    let server = TestServer::new().await;
    let send = async |key: &str, body: Value| {
        let mut request = server.request(Method::POST, "/v1/queues/orders/messages", Some(&body));
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        server.send(request).await
    };
    let first = send("k1", json!({ "body": "a" })).await;
    assert!(!first.headers.contains_key("idempotent-replay"));
    let first = first.of(201);
    let again = send("k1", json!({ "body": "a" })).await;
    assert_eq!(again.headers["idempotent-replay"], "true");
    assert_eq!(again.of(201), first);
    assert_eq!(send("k1", json!({ "body": "b" })).await.code(), "idempotency_mismatch");
    // A refused request frees its key.
    assert_eq!(send("k2", json!({ "body": "b", "priority": 99 })).await.code(), "invalid_input");
    send("k2", json!({ "body": "b" })).await.of(201);
    assert_eq!(server.get("/v1/queues/orders").await.of(200)["ready"], 2);
    server.stop().await;
}

#[tokio::test]
async fn errors_are_problems_with_a_code() {
    let server = TestServer::new().await;
    for (path, body, status, code) in [
        ("/v1/queues/orders/messages", json!([null, "a"]), 400, "malformed_request"),
        ("/v1/queues/orders/messages", json!({ "body": "a", "dealy": "5s" }), 400, "malformed_request"),
        ("/v1/queues/a b/messages", json!({ "body": "a" }), 400, "invalid_input"),
        ("/v1/queues/orders/messages", json!({ "body": "a", "delay": "200000000d" }), 400, "malformed_request"),
        ("/v1/queues/orders_dlq/messages", json!({ "body": "a" }), 400, "invalid_input"),
        ("/v1/queues/orders/messages/batch", json!({ "messages": [[null, "a"]] }), 400, "malformed_request"),
        ("/v1/queues/orders/receive", json!({ "max": 0 }), 400, "invalid_input"),
        ("/v1/queues/orders/receive", json!({ "wait": "2m" }), 400, "invalid_input"),
        ("/v1/queues/orders/receive?max=1", json!({}), 400, "malformed_request"),
        ("/v1/nothing", json!({}), 404, "not_found"),
        ("/v1/queues", json!({}), 405, "method_not_allowed"),
    ] {
        let answer = server.post(&path.replace(' ', "%20"), body).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.headers.contains_key("x-request-id"));
        let problem = answer.json();
        assert_eq!((&problem["code"], &problem["status"]), (&json!(code), &json!(status)), "{path}");
        assert_eq!(problem["request_id"], answer.headers["x-request-id"].to_str().unwrap());
        assert!(problem["detail"].as_str().unwrap().len() > 10);
    }
    let mut plain = server.request(Method::POST, "/v1/queues/orders/messages", Some(&json!({ "body": "a" })));
    plain.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    assert_eq!(server.send(plain).await.code(), "unsupported_media_type");
    server.stop().await;
}

#[tokio::test]
async fn settle_and_receive_is_one_request() {
    let server = TestServer::new().await;
    for body in ["one", "two"] {
        server.post("/v1/queues/orders/messages", json!({ "body": body })).await.of(201);
    }
    let first = server.post("/v1/receive", json!({ "queues": ["mail", "orders"] })).await.of(200);
    let receipt = &first["messages"][0]["receipt"];
    let settlements = json!([{ "receipt": receipt, "outcome": "ack" }, { "receipt": "x", "outcome": "ack" }]);
    let second = server.post("/v1/receive", json!({ "queues": ["orders"], "settlements": settlements })).await.of(200);
    assert_eq!(second["settled"][0]["outcome"], "done");
    assert_eq!(second["settled"][1]["problem"]["code"], "invalid_receipt");
    assert_eq!(second["messages"][0]["body"], "two");
    assert_eq!(second["receive_problem"], Value::Null);
    let nack = json!({ "receipts": [second["messages"][0]["receipt"]], "error": "no" });
    server.post("/v1/messages/nack", nack).await.of(200);
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!((&stats["delayed"], &stats["in_flight"]), (&json!(1), &json!(0)), "it backs off");
    server.stop().await;
}

#[tokio::test]
async fn a_failed_attempt_names_the_worker_that_received_the_message() {
    let server = TestServer::new().await;
    for _ in 0..2 {
        server.post("/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
    }
    let ask = json!({ "max": 1, "worker": "host:7:a" });
    let first = server.post("/v1/queues/orders/receive", ask).await.of(200)["messages"][0].clone();
    let ask = json!({ "queues": ["orders"], "max": 1, "worker": "host:7:b" });
    let second = server.post("/v1/receive", ask).await.of(200)["messages"][0].clone();
    let both = json!({ "receipts": [first["receipt"], second["receipt"]], "after": "0s", "error": "no" });
    server.post("/v1/messages/nack", both).await.of(200);
    let again = server.post("/v1/queues/orders/receive", json!({ "wait": "20s" })).await.of(200)["messages"][0].clone();
    let dead =
        json!({ "settlements": [{ "receipt": again["receipt"], "outcome": "dead_letter", "worker": "host:7:c" }] });
    server.post("/v1/messages/settle", dead).await.of(200);
    for (message, worker) in [(&first, "host:7:a"), (&second, "host:7:b")] {
        let id = message["id"].as_str().unwrap();
        let found = server.get(&format!("/v1/queues/orders/messages/{id}/attempts")).await.of(200);
        let found: Vec<_> =
            found["attempts"].as_array().unwrap().iter().map(|attempt| attempt["worker"].clone()).collect();
        let mut expected = vec![json!(worker)];
        if again["id"] == message["id"] {
            expected.push(json!("host:7:c"));
        }
        assert_eq!(found, expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_duplicate_field_or_header_is_refused_with_its_name() {
    let server = TestServer::new().await;
    let post = async |path: &str, body: &'static str| {
        let mut request = server.request(Method::POST, path, Some(&json!({})));
        *request.body_mut() = body.as_bytes().into();
        server.send(request).await
    };
    for (path, body, name) in [
        ("/v1/queues/orders/messages", r#"{"body":"a","headers":{"tenant":"x","a":"1","tenant":"y"}}"#, "'tenant'"),
        ("/v1/queues/orders/messages", r#"{"body":"a","priority":1,"priority":2}"#, "'priority'"),
        ("/v1/queues/orders/receive", r#"{"max":1,"max":2}"#, "'max'"),
        (
            "/v1/tasks",
            r#"{"type":"a","payload":"","retry_strategy":{"strategy":"constant","delay":"1s","delay":"2s"}}"#,
            "'delay'",
        ),
        ("/v1/messages/ack", r#"{"receipts":[],"receipts":[]}"#, "'receipts'"),
    ] {
        let detail = post(path, body).await.of(400)["detail"].clone();
        let detail = detail.as_str().unwrap();
        let says_why = detail.contains("more than once") || detail.contains("duplicate field");
        assert!(detail.contains(name) && says_why, "{body}: {detail}");
    }
    let batch = r#"{"messages":[{"body":"a","headers":{"b":"1","b":"2"}},{"body":"c"}]}"#;
    let rows = post("/v1/queues/orders/messages/batch", batch).await.of(200)["results"].clone();
    assert!(rows[0]["problem"]["code"] == "invalid_input" && rows[1]["id"].is_string(), "{rows}");
    assert_eq!(server.get("/v1/queues/orders").await.of(200)["ready"], 1);
    server.stop().await;
}

#[tokio::test]
async fn waiting_and_handling_have_percentiles() {
    let server = TestServer::new().await;
    let nothing = server.get("/v1/queues/orders/durations").await.of(200);
    assert_eq!(nothing, json!({ "waited": null, "took": null }));
    for _ in 0..4 {
        server.post("/v1/queues/orders/messages", json!({ "body": "tea" })).await.of(201);
    }
    let got = server.post("/v1/queues/orders/receive", json!({ "max": 4, "visibility": "10m" })).await.of(200);
    let receipts: Vec<_> =
        got["messages"].as_array().unwrap().iter().map(|message| message["receipt"].clone()).collect();
    server.post("/v1/messages/ack", json!({ "receipts": receipts[..2] })).await.of(200);
    server.post("/v1/messages/nack", json!({ "receipts": [receipts[2]], "after": "1h", "error": "no" })).await.of(200);
    server.post("/v1/messages/release", json!({ "receipts": [receipts[3]] })).await.of(200);
    let found = server.get("/v1/queues/orders/durations").await.of(200);
    assert_eq!(
        (&found["waited"]["count"], &found["took"]["count"]),
        (&json!(4), &json!(3)),
        "a release is not counted as handling"
    );
    for one in ["waited", "took"] {
        let part = |name: &str| found[one][name].as_u64().unwrap();
        assert!(part("p50_ms") >= 1 && part("p50_ms") <= part("p95_ms") && part("p95_ms") <= part("p99_ms"), "{found}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_message_is_delivered_now_dead_lettered_and_deleted() {
    let server = TestServer::new().await;
    let mut ids = Vec::new();
    for (body, delay) in [("leased", "0s"), ("now", "1h"), ("dead", "1h"), ("gone", "1h")] {
        let new = json!({ "body": body, "delay": delay });
        ids.push(server.post("/v1/queues/orders/messages", new).await.of(201)["id"].as_str().unwrap().to_owned());
    }
    let [leased, now, dead, gone] = &ids[..] else { panic!() };
    let [message] = &receive(&server, "orders", json!({ "visibility": "10m" })).await[..] else { panic!() };
    assert_eq!(message["id"], json!(leased));
    let token = server.token(&[Role::Operate], None).await;
    let reader = server.token(&[Role::Read], None).await;
    let ask = async |token: &str, method: Method, path: &str, body: Option<Value>| {
        let mut request = server.request(method, path, body.as_ref());
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.send(request).await
    };
    let path = |id: &str, rest: &str| format!("/v1/queues/orders/messages/{id}{rest}");
    ask(&token, Method::POST, &path(now, "/deliver-now"), None).await.of(204);
    let death = json!({ "reason": "by hand", "error": "it is wrong" });
    ask(&token, Method::POST, &path(dead, "/dead-letter"), Some(death)).await.of(204);
    ask(&token, Method::DELETE, &path(gone, ""), None).await.of(204);
    let stats = ask(&token, Method::GET, "/v1/queues/orders", None).await.of(200);
    assert_eq!((&stats["ready"], &stats["delayed"], &stats["dead"]), (&json!(1), &json!(0), &json!(1)));
    let letter = ask(&token, Method::GET, &format!("/v1/queues/orders/dead-letters/{dead}"), None).await.of(200);
    assert_eq!((&letter["reason"], &letter["error"]), (&json!("by hand"), &json!("it is wrong")));

    assert_eq!(ask(&token, Method::DELETE, &path(gone, ""), None).await.code(), "message_not_found");
    // A leased message stays with its worker.
    let refused = ask(&token, Method::POST, &path(leased, "/deliver-now"), None).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (409, "message_leased".to_owned()));
    let refused = ask(&reader, Method::DELETE, &path(now, ""), None).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (403, "forbidden".to_owned()));

    let log = ask(&token, Method::GET, "/v1/audit?limit=5", None).await.of(200)["entries"].clone();
    let found: Vec<_> = log.as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(
        found,
        ["deliver_message_now", "delete_message", "delete_message", "dead_letter_message", "deliver_message_now"]
    );
    let is_done = [0, 1, 2, 3, 4].map(|at| log[at]["detail"]["outcome"] == "done");
    assert_eq!(is_done, [false, false, true, true, true], "{log}");
    assert_eq!((&log[3]["detail"]["id"], &log[3]["detail"]["reason"]), (&json!(dead), &json!("by hand")));
    server.stop().await;
}
