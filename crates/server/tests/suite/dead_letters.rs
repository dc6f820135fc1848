//! Dead letters over HTTP: looked at, corrected, brought back at a rate, removed; and all of it in the log.

use axum::http::Method;
use postrider_server::Role;
use serde_json::{Value, json};

use crate::place::{Place, eventually};

/// Makes dead letters, with the error that each shall have.
async fn bury(place: &Place, errors: &[&str]) -> Vec<Value> {
    for error in errors {
        place.post("/v1/queues/orders/messages", json!({ "body": format!("because of {error}") })).await.of(201);
    }
    let got =
        place.post("/v1/queues/orders/receive", json!({ "max": errors.len(), "visibility": "10m" })).await.of(200);
    for (message, error) in got["messages"].as_array().unwrap().iter().zip(errors) {
        let nack = json!({ "receipts": [message["receipt"]], "reason": "rejected", "error": error });
        place.post("/v1/messages/dead-letter", nack).await.of(200);
    }
    got["messages"].as_array().unwrap().iter().map(|message| message["id"].clone()).collect()
}

#[tokio::test]
async fn they_are_grouped_previewed_and_brought_back_by_a_job() {
    let place = Place::new().await;
    bury(&place, &["no tea", "no tea", "no milk"]).await;
    let groups = place.get("/v1/queues/orders/dead-letters/groups").await.of(200);
    assert_eq!((&groups["looked_at"], &groups["complete"]), (&json!(3), &json!(true)));
    assert_eq!((&groups["groups"][0]["error"], &groups["groups"][0]["count"]), (&json!("no tea"), &json!(2)));

    let dry = json!({ "error": "no tea", "dry_run": true });
    let preview = place.post("/v1/queues/orders/dead-letters/redrive", dry).await.of(200);
    assert_eq!(preview["redriven"].as_array().unwrap().len(), 2);
    assert_eq!(place.get("/v1/queues/orders").await.of(200)["dead"], 3, "a preview changes nothing");

    let job = json!({ "error": "no tea", "rate": 100.0 });
    let job = place.post("/v1/queues/orders/dead-letters/redrive-job", job).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let ended = eventually(async || Some(place.get(&path).await.of(200)).filter(|job| job["state"] != "running")).await;
    assert_eq!((&ended["state"], &ended["total"], &ended["done"]), (&json!("done"), &json!(2), &json!(2)), "{ended}");
    let stats = place.get("/v1/queues/orders").await.of(200);
    assert_eq!((&stats["dead"], &stats["ready"]), (&json!(1), &json!(2)));

    let purge = place.post("/v1/queues/orders/dead-letters/purge", json!({ "dry_run": true })).await.of(200);
    assert_eq!(purge["purged"], 1);
    let purge = place.post("/v1/queues/orders/dead-letters/purge", json!({ "reason": "rejected" })).await.of(200);
    assert_eq!(purge["purged"], 1);
    place.stop().await;
}

#[tokio::test]
async fn a_slow_job_can_be_ended_and_what_it_did_stays() {
    let place = Place::new().await;
    bury(&place, &["a"; 20]).await;
    let job = place.post("/v1/queues/orders/dead-letters/redrive-job", json!({ "rate": 0.1 })).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    eventually(async || (place.get(&path).await.of(200)["done"] == 1).then_some(())).await;
    let ended = place.send(place.request(Method::DELETE, &path, None)).await.of(200);
    assert_eq!((&ended["state"], &ended["done"], &ended["total"]), (&json!("canceled"), &json!(1), &json!(20)));
    let stats = place.get("/v1/queues/orders").await.of(200);
    assert_eq!((&stats["dead"], &stats["ready"]), (&json!(19), &json!(1)));
    place.stop().await;
}

#[tokio::test]
async fn one_is_corrected_and_goes_back_alone() {
    let place = Place::new().await;
    let ids = bury(&place, &["a", "b"]).await;
    let path = format!("/v1/queues/orders/dead-letters/{}", ids[0].as_str().unwrap());
    let edit = json!({ "body": "better", "headers": { "fixed": "yes" } });
    let edited = place.send(place.request(Method::PATCH, &path, Some(&edit))).await.of(200);
    assert_eq!((&edited["body"], &edited["revision"], &edited["error"]), (&json!("better"), &json!(1), &json!("a")));
    let redriven = place.post("/v1/queues/orders/dead-letters/redrive", json!({ "ids": [ids[0]] })).await.of(200);
    assert_eq!(redriven, json!({ "redriven": [ids[0]], "skipped": [] }));
    let got = place.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
    assert_eq!((&got["messages"][0]["body"], &got["messages"][0]["receive_count"]), (&json!("better"), &json!(1)));
    let listed = place.get("/v1/queues/orders/dead-letters?limit=1").await.of(200);
    assert_eq!((&listed["dead_letters"][0]["id"], &listed["next"]), (&ids[1], &Value::Null));
    assert_eq!(place.get(&path).await.code(), "message_not_found");
    place.stop().await;
}

#[tokio::test]
async fn what_removes_or_changes_is_in_the_log_with_who_and_what_came_of_it() {
    let place = Place::new().await;
    bury(&place, &["a"]).await;
    let token = place.token(&[Role::Operate], None).await;
    let ask = async |method: Method, path: &str, body: Option<Value>| {
        let mut request = place.request(method, path, body.as_ref());
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        place.send(request).await
    };
    ask(Method::POST, "/v1/queues/orders/pause", None).await.of(200);
    ask(Method::POST, "/v1/queues/orders/resume", None).await.of(200);
    ask(Method::POST, "/v1/queues/orders/dead-letters/purge", Some(json!({}))).await.of(200);
    ask(Method::POST, "/v1/queues/orders/purge", None).await.of(200);
    ask(Method::DELETE, "/v1/queues/orders", None).await.of(204);
    let log = ask(Method::GET, "/v1/audit?limit=3", None).await.of(200);
    let rows = log["entries"].as_array().unwrap();
    let told: Vec<_> =
        rows.iter().map(|row| (row["action"].as_str().unwrap(), row["target"].as_str().unwrap())).collect();
    assert_eq!(told, [("delete_queue", "orders"), ("purge_queue", "orders"), ("purge_dead_letters", "orders")]);
    assert_eq!(rows[2]["detail"]["outcome"], json!({ "purged": 1 }));
    assert_eq!(rows[0]["who"], "[Operate]");
    let rest = ask(Method::GET, &format!("/v1/audit?after={}", log["next"].as_str().unwrap()), None).await.of(200);
    let told: Vec<_> = rest["entries"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(told, ["resume_queue", "pause_queue", "create_token", "create_token"]);
    place.stop().await;
}
