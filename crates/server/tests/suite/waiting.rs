//! Waiting messages over HTTP: search by pages, and actions by jobs.

use axum::http::Method;
use postrider_server::Role;
use serde_json::{Value, json};

use crate::test_server::{TestServer, eventually};

const MANY: usize = 40;

/// Sends messages, every fourth of them delayed. Returns their ids in send order.
async fn send_many(server: &TestServer) -> Vec<String> {
    let row = |number: usize| {
        let mut row = json!({ "body": "tea", "headers": { "tenant": format!("t{}", number % 2) } });
        if number % 4 == 3 {
            row["delay"] = json!("1h");
        }
        if number == 5 {
            row["ordering_key"] = json!("anna");
        }
        row
    };
    let rows: Vec<_> = (0..MANY).map(row).collect();
    let sent = server.post("/v1/queues/orders/messages/batch", json!({ "messages": rows })).await.of(200);
    sent["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

async fn listed(server: &TestServer, query: &str) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/queues/orders/messages?{query}{after}")).await.of(200);
        ids.extend(page["messages"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return ids,
        }
    }
}

async fn ended(server: &TestServer, job: &Value) -> Value {
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    eventually(async || Some(server.get(&path).await.of(200)).filter(|job| job["state"] != "running")).await
}

#[tokio::test]
async fn they_are_listed_by_pages_and_filters() {
    let server = TestServer::new().await;
    let ids = send_many(&server).await;
    let leased = server.post("/v1/queues/orders/receive", json!({ "max": 1, "visibility": "10m" })).await.of(200);
    assert_eq!(leased["messages"][0]["id"], json!(ids[0]));
    let of = |wanted: &dyn Fn(usize) -> bool| -> Vec<String> {
        (0..MANY).filter(|number| wanted(*number)).map(|number| ids[number].clone()).collect()
    };
    for (query, wanted) in [
        (String::new(), of(&|_| true)),
        ("state=in_flight".to_owned(), of(&|number| number == 0)),
        ("state=delayed".to_owned(), of(&|number| number % 4 == 3)),
        ("state=ready".to_owned(), of(&|number| number % 4 != 3 && number != 0)),
        ("header=tenant%3Dt0".to_owned(), of(&|number| number % 2 == 0)),
        ("key=anna".to_owned(), of(&|number| number == 5)),
        ("since=2099-01-01T00:00:00Z".to_owned(), Vec::new()),
        ("before=2099-01-01T00:00:00Z&state=delayed".to_owned(), of(&|number| number % 4 == 3)),
    ] {
        for limit in [1, 7, 1000] {
            assert_eq!(listed(&server, &format!("{query}&limit={limit}")).await, wanted, "{query} by {limit}");
        }
    }
    for bad in ["state=dead", "header=tenant", "since=soon"] {
        assert_eq!(server.get(&format!("/v1/queues/orders/messages?{bad}")).await.code(), "invalid_input", "{bad}");
    }
    // The cursor of a token limited to this queue does not reveal rows of other queues.
    let token = server.token(&[Role::Read], Some(&["orders"])).await;
    let ask = async |after: &str| {
        let path = format!("/v1/queues/orders/messages?limit=2{after}");
        let mut request = server.request(Method::GET, &path, None);
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.send(request).await
    };
    let first = ask("").await.of(200);
    let next = first["next"].as_str().unwrap();
    assert!(next.parse::<i64>().is_err(), "{next}");
    assert_eq!(ask(&format!("&after={next}")).await.of(200)["messages"][0]["id"], json!(ids[2]));
    assert_eq!(ask("&after=2").await.code(), "invalid_input");
    server.stop().await;
}

#[tokio::test]
async fn a_bulk_action_is_previewed_and_then_done_by_a_job() {
    let server = TestServer::new().await;
    let ids = send_many(&server).await;
    let leased = server.post("/v1/queues/orders/receive", json!({ "max": 1, "visibility": "10m" })).await.of(200);
    assert_eq!(leased["messages"][0]["id"], json!(ids[0]));
    let job =
        async |name: &str, body: Value| server.post(&format!("/v1/queues/orders/messages/{name}-job"), body).await;
    let before = server.get("/v1/queues/orders").await.of(200);

    let delayed = json!({ "state": "delayed", "header": "tenant=t1" });
    let mut dry = delayed.clone();
    dry["dry_run"] = json!(true);
    let preview = job("deliver-now", dry).await.of(200);
    assert_eq!(preview, json!({ "messages": MANY / 4, "skipped": 0, "complete": true, "dry_run": true }));
    let after = server.get("/v1/queues/orders").await.of(200);
    assert_eq!((&after["ready"], &after["delayed"]), (&before["ready"], &before["delayed"]), "nothing was changed");
    let done = ended(&server, &job("deliver-now", delayed).await.of(202)).await;
    assert_eq!(
        (&done["kind"], &done["state"], &done["done"], &done["skipped"]),
        (&json!("deliver_now"), &json!("done"), &json!(MANY / 4), &json!(0))
    );
    assert_eq!(server.get("/v1/queues/orders").await.of(200)["delayed"], 0);

    // Leased and missing messages are skipped.
    let named = json!({ "ids": [ids[0], ids[1], ids[2], "01900000-0000-7000-8000-00000000abcd"], "reason": "by hand" });
    let mut dry = named.clone();
    dry["dry_run"] = json!(true);
    let preview = job("dead-letter", dry).await.of(200);
    assert_eq!((&preview["messages"], &preview["skipped"]), (&json!(2), &json!(2)));
    let done = ended(&server, &job("dead-letter", named).await.of(202)).await;
    assert_eq!((&done["done"], &done["skipped"], &done["total"]), (&json!(2), &json!(2), &json!(4)));
    let letter = server.get(&format!("/v1/queues/orders/dead-letters/{}", ids[1])).await.of(200);
    assert_eq!(letter["reason"], "by hand");

    let done = ended(&server, &job("delete", json!({ "key": "anna" })).await.of(202)).await;
    assert_eq!(done["done"], 1);
    assert_eq!(listed(&server, "key=anna").await, Vec::<String>::new());
    let done = ended(&server, &job("delete", json!({})).await.of(202)).await;
    assert_eq!(done["done"], MANY - 4);
    let left = server.get("/v1/queues/orders").await.of(200);
    assert_eq!(
        (&left["ready"], &left["in_flight"], &left["dead"]),
        (&json!(0), &json!(1), &json!(2)),
        "the worker keeps its message"
    );
    for (name, body) in [
        ("delete", json!({ "state": "in_flight" })),
        ("delete", json!({ "reason": "by hand" })),
        ("dead-letter", json!({})),
        ("dead-letter", json!({ "reason": "" })),
        ("deliver-now", json!({ "ids": [ids[0]], "key": "anna" })),
        ("deliver-now", json!({ "rate": 0.0 })),
    ] {
        assert_eq!(job(name, body.clone()).await.code(), "invalid_input", "{name} {body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_slow_bulk_action_can_be_canceled() {
    let server = TestServer::new().await;
    send_many(&server).await;
    let job = server.post("/v1/queues/orders/messages/delete-job", json!({ "rate": 0.1 })).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    eventually(async || (server.get(&path).await.of(200)["done"] == 1).then_some(())).await;
    server.send(server.request(Method::DELETE, &path, None)).await.of(200);
    let ended = ended(&server, &job).await;
    assert_eq!((&ended["state"], &ended["done"], &ended["total"]), (&json!("canceled"), &json!(1), &json!(MANY)));
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!(stats["ready"].as_u64().unwrap() + stats["delayed"].as_u64().unwrap(), MANY as u64 - 1);
    server.stop().await;
}
