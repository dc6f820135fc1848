//! Waiting messages over HTTP: looked for page by page, and acted on by a job.

use axum::http::Method;
use postrider_server::Role;
use serde_json::{Value, json};

use crate::place::{Place, eventually};

const MANY: usize = 40;

/// Messages, every fourth of them delayed; their ids in send order.
async fn send_many(place: &Place) -> Vec<String> {
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
    let sent = place.post("/v1/queues/orders/messages/batch", json!({ "messages": rows })).await.of(200);
    sent["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

async fn listed(place: &Place, query: &str) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), String::new());
    loop {
        let page = place.get(&format!("/v1/queues/orders/messages?{query}{after}")).await.of(200);
        ids.extend(page["messages"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return ids,
        }
    }
}

async fn ended(place: &Place, job: &Value) -> Value {
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    eventually(async || Some(place.get(&path).await.of(200)).filter(|job| job["state"] != "running")).await
}

#[tokio::test]
async fn they_are_listed_by_pages_and_filters() {
    let place = Place::new().await;
    let ids = send_many(&place).await;
    let leased = place.post("/v1/queues/orders/receive", json!({ "max": 1, "visibility": "10m" })).await.of(200);
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
            assert_eq!(listed(&place, &format!("{query}&limit={limit}")).await, wanted, "{query} by {limit}");
        }
    }
    for bad in ["state=dead", "header=tenant", "since=soon"] {
        assert_eq!(place.get(&format!("/v1/queues/orders/messages?{bad}")).await.code(), "invalid_input", "{bad}");
    }
    // A token for this queue only does not learn from a cursor how many rows other queues have.
    let token = place.token(&[Role::Read], Some(&["orders"])).await;
    let ask = async |after: &str| {
        let path = format!("/v1/queues/orders/messages?limit=2{after}");
        let mut request = place.request(Method::GET, &path, None);
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        place.send(request).await
    };
    let first = ask("").await.of(200);
    let next = first["next"].as_str().unwrap();
    assert!(next.parse::<i64>().is_err(), "{next}");
    assert_eq!(ask(&format!("&after={next}")).await.of(200)["messages"][0]["id"], json!(ids[2]));
    assert_eq!(ask("&after=2").await.code(), "invalid_input");
    place.stop().await;
}

#[tokio::test]
async fn an_action_on_many_is_counted_first_and_then_done_by_a_job() {
    let place = Place::new().await;
    let ids = send_many(&place).await;
    let leased = place.post("/v1/queues/orders/receive", json!({ "max": 1, "visibility": "10m" })).await.of(200);
    assert_eq!(leased["messages"][0]["id"], json!(ids[0]));
    let job = async |name: &str, body: Value| place.post(&format!("/v1/queues/orders/messages/{name}-job"), body).await;
    let before = place.get("/v1/queues/orders").await.of(200);

    let delayed = json!({ "state": "delayed", "header": "tenant=t1" });
    let mut dry = delayed.clone();
    dry["dry_run"] = json!(true);
    let preview = job("deliver-now", dry).await.of(200);
    assert_eq!(preview, json!({ "messages": MANY / 4, "skipped": 0, "complete": true }));
    let after = place.get("/v1/queues/orders").await.of(200);
    assert_eq!((&after["ready"], &after["delayed"]), (&before["ready"], &before["delayed"]), "nothing was changed");
    let done = ended(&place, &job("deliver-now", delayed).await.of(202)).await;
    assert_eq!(
        (&done["kind"], &done["state"], &done["done"], &done["skipped"]),
        (&json!("deliver_now"), &json!("done"), &json!(MANY / 4), &json!(0))
    );
    assert_eq!(place.get("/v1/queues/orders").await.of(200)["delayed"], 0);

    // What a worker has leased, and what is not there, is left out.
    let named = json!({ "ids": [ids[0], ids[1], ids[2], "01900000-0000-7000-8000-00000000abcd"], "reason": "by hand" });
    let mut dry = named.clone();
    dry["dry_run"] = json!(true);
    let preview = job("dead-letter", dry).await.of(200);
    assert_eq!((&preview["messages"], &preview["skipped"]), (&json!(2), &json!(2)));
    let done = ended(&place, &job("dead-letter", named).await.of(202)).await;
    assert_eq!((&done["done"], &done["skipped"], &done["total"]), (&json!(2), &json!(2), &json!(4)));
    let letter = place.get(&format!("/v1/queues/orders/dead-letters/{}", ids[1])).await.of(200);
    assert_eq!(letter["reason"], "by hand");

    let done = ended(&place, &job("delete", json!({ "key": "anna" })).await.of(202)).await;
    assert_eq!(done["done"], 1);
    assert_eq!(listed(&place, "key=anna").await, Vec::<String>::new());
    let done = ended(&place, &job("delete", json!({})).await.of(202)).await;
    assert_eq!(done["done"], MANY - 4);
    let left = place.get("/v1/queues/orders").await.of(200);
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
    place.stop().await;
}

#[tokio::test]
async fn a_slow_action_on_many_can_be_ended() {
    let place = Place::new().await;
    send_many(&place).await;
    let job = place.post("/v1/queues/orders/messages/delete-job", json!({ "rate": 0.1 })).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    eventually(async || (place.get(&path).await.of(200)["done"] == 1).then_some(())).await;
    place.send(place.request(Method::DELETE, &path, None)).await.of(200);
    let ended = ended(&place, &job).await;
    assert_eq!((&ended["state"], &ended["done"], &ended["total"]), (&json!("canceled"), &json!(1), &json!(MANY)));
    let stats = place.get("/v1/queues/orders").await.of(200);
    assert_eq!(stats["ready"].as_u64().unwrap() + stats["delayed"].as_u64().unwrap(), MANY as u64 - 1);
    place.stop().await;
}
