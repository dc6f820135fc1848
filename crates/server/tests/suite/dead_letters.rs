//! Dead letters over HTTP: list, edit, redrive at a rate, purge, and their audit entries.

use axum::http::Method;
use postrider::Timestamp;
use postrider_server::Role;
use serde_json::{Value, json};

use crate::many_dead_letters::{KINDS, dead_letter_many};
use crate::test_server::{TestServer, eventually};

/// Makes dead letters with these errors.
async fn dead_letter(server: &TestServer, errors: &[&str]) -> Vec<Value> {
    for error in errors {
        server.post("/v1/queues/orders/messages", json!({ "body": format!("because of {error}") })).await.of(201);
    }
    let got =
        server.post("/v1/queues/orders/receive", json!({ "max": errors.len(), "visibility": "10m" })).await.of(200);
    for (message, error) in got["messages"].as_array().unwrap().iter().zip(errors) {
        let nack = json!({ "receipts": [message["receipt"]], "reason": "rejected", "error": error });
        server.post("/v1/messages/dead-letter", nack).await.of(200);
    }
    got["messages"].as_array().unwrap().iter().map(|message| message["id"].clone()).collect()
}

#[tokio::test]
async fn they_are_grouped_previewed_and_redriven_by_a_job() {
    let server = TestServer::new().await;
    dead_letter(&server, &["no tea", "no tea", "no milk"]).await;
    let groups = server.get("/v1/queues/orders/dead-letters/groups").await.of(200);
    assert_eq!((&groups["looked_at"], &groups["complete"]), (&json!(3), &json!(true)));
    assert_eq!((&groups["groups"][0]["error"], &groups["groups"][0]["count"]), (&json!("no tea"), &json!(2)));

    let dry = json!({ "error": "no tea", "dry_run": true });
    let preview = server.post("/v1/queues/orders/dead-letters/redrive", dry).await.of(200);
    assert_eq!((preview["redriven"].as_array().unwrap().len(), &preview["dry_run"]), (2, &json!(true)));
    assert_eq!(server.get("/v1/queues/orders").await.of(200)["dead"], 3, "a preview changes nothing");

    let job = json!({ "error": "no tea", "rate": 100.0 });
    let job = server.post("/v1/queues/orders/dead-letters/redrive-job", job).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let ended =
        eventually(async || Some(server.get(&path).await.of(200)).filter(|job| job["state"] != "running")).await;
    assert_eq!((&ended["state"], &ended["total"], &ended["done"]), (&json!("done"), &json!(2), &json!(2)), "{ended}");
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!((&stats["dead"], &stats["ready"]), (&json!(1), &json!(2)));

    let purge = server.post("/v1/queues/orders/dead-letters/purge", json!({ "dry_run": true })).await.of(200);
    assert_eq!(purge, json!({ "purged": 1, "dry_run": true }));
    let purge = server.post("/v1/queues/orders/dead-letters/purge", json!({ "reason": "rejected" })).await.of(200);
    assert_eq!(purge, json!({ "purged": 1 }));
    server.stop().await;
}

#[tokio::test]
async fn a_slow_job_can_be_canceled_and_undoes_nothing() {
    let server = TestServer::new().await;
    dead_letter(&server, &["a"; 20]).await;
    let job = server.post("/v1/queues/orders/dead-letters/redrive-job", json!({ "rate": 0.1 })).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    eventually(async || (server.get(&path).await.of(200)["done"] == 1).then_some(())).await;
    let ended = server.send(server.request(Method::DELETE, &path, None)).await.of(200);
    assert_eq!((&ended["state"], &ended["done"], &ended["total"]), (&json!("canceled"), &json!(1), &json!(20)));
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!((&stats["dead"], &stats["ready"]), (&json!(19), &json!(1)));
    server.stop().await;
}

#[tokio::test]
async fn one_is_edited_and_redriven_alone() {
    let server = TestServer::new().await;
    let ids = dead_letter(&server, &["a", "b"]).await;
    let path = format!("/v1/queues/orders/dead-letters/{}", ids[0].as_str().unwrap());
    let edit = json!({ "body": "better", "headers": { "fixed": "yes" } });
    let edited = server.send(server.request(Method::PATCH, &path, Some(&edit))).await.of(200);
    assert_eq!((&edited["body"], &edited["revision"], &edited["error"]), (&json!("better"), &json!(1), &json!("a")));
    let redriven = server.post("/v1/queues/orders/dead-letters/redrive", json!({ "ids": [ids[0]] })).await.of(200);
    assert_eq!(redriven, json!({ "redriven": [ids[0]], "skipped": [] }));
    let got = server.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
    assert_eq!((&got["messages"][0]["body"], &got["messages"][0]["receive_count"]), (&json!("better"), &json!(1)));
    let listed = server.get("/v1/queues/orders/dead-letters?limit=1").await.of(200);
    assert_eq!((&listed["dead_letters"][0]["id"], &listed["next"]), (&ids[1], &Value::Null));
    assert_eq!(server.get(&path).await.code(), "message_not_found");
    server.stop().await;
}

/// Reads all pages of a listing.
async fn listed(server: &TestServer, query: &str) -> Vec<Value> {
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/queues/orders/dead-letters?{query}{after}");
        let page = server.get(&path).await.of(200);
        found.extend(page["dead_letters"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return found,
        }
    }
}

#[tokio::test]
async fn a_search_covers_all_and_its_cursors_continue_it() {
    const MANY: usize = 1_300;
    let server = TestServer::new().await;
    dead_letter_many(&server, "orders", MANY).await;
    let groups = server.get("/v1/queues/orders/dead-letters/groups").await.of(200);
    let counts: Vec<_> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["count"].as_u64().unwrap()).collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (KINDS, MANY as u64), "{groups}");
    assert_eq!((&groups["more_kinds"], &groups["complete"]), (&json!(0), &json!(true)));
    let folded = server.get("/v1/queues/orders/dead-letters/groups?limit=1").await.of(200);
    assert_eq!((&folded["more_kinds"], &folded["more_count"]), (&json!(2), &json!(MANY as u64 - counts[0])));

    let all = listed(&server, "limit=1000").await;
    assert_eq!(all.len(), MANY);
    let last = all.last().unwrap();
    let (id, at) = (last["id"].as_str().unwrap(), all[MANY - 10]["dead_at"].as_str().unwrap());
    let of = |wanted: &dyn Fn(&Value) -> bool| all.iter().filter(|letter| wanted(letter)).count();
    let error = |letter: &Value| letter["error"].as_str().unwrap().to_owned();
    let dead_at = |letter: &Value| letter["dead_at"].as_str().unwrap().parse::<Timestamp>().unwrap();
    let time = at.parse().unwrap();
    let kind = groups["groups"][0]["fingerprint"].as_str().unwrap().to_owned();
    let kind: String = form_urlencoded::byte_serialize(kind.as_bytes()).collect();
    for (query, wanted) in [
        (format!("fingerprint={kind}"), usize::try_from(counts[0]).unwrap()),
        ("error_contains=PAY.example".to_owned(), of(&|letter| error(letter).contains("pay.example"))),
        (format!("id={}", &id[20..]), 1),
        (format!("since={at}"), of(&|letter| dead_at(letter) >= time)),
        (format!("before={at}"), of(&|letter| dead_at(letter) < time)),
        ("text=ANNA-3".to_owned(), of(&|letter| letter["headers"]["customer"] == "anna-3")),
        ("text=%22order%22%3A+1299%2C".to_owned(), 1),
        (
            "reason=rejected&error_contains=is+no+number".to_owned(),
            of(&|letter| error(letter).contains("is no number")),
        ),
        ("key=nobody".to_owned(), 0),
        ("reason=expired".to_owned(), 0),
    ] {
        for limit in [7, 100, 1000] {
            let found = listed(&server, &format!("{query}&limit={limit}")).await;
            let ids: std::collections::HashSet<_> = found.iter().map(|letter| letter["id"].as_str().unwrap()).collect();
            assert_eq!((found.len(), ids.len()), (wanted, wanted), "{query} by {limit}");
        }
    }
    assert_eq!(server.get("/v1/queues/orders/dead-letters?since=soon").await.code(), "malformed_request");

    // The same filter redrives and purges exactly the matches.
    let filter = json!({ "error_contains": "pay.example", "since": at });
    let wanted = of(&|letter| error(letter).contains("pay.example") && dead_at(letter) >= time);
    let asked = json!({ "filter": filter, "dry_run": true });
    let preview = server.post("/v1/queues/orders/dead-letters/redrive", asked.clone()).await.of(200);
    assert_eq!(preview["redriven"].as_array().unwrap().len(), wanted);
    let preview = server.post("/v1/queues/orders/dead-letters/purge", asked).await.of(200);
    assert_eq!(preview["purged"], wanted);
    let group = json!({ "filter": { "reason": "rejected", "fingerprint": groups["groups"][1]["fingerprint"] } });
    let purged = server.post("/v1/queues/orders/dead-letters/purge", group).await.of(200);
    assert_eq!(purged["purged"], counts[1]);
    let job = server
        .post("/v1/queues/orders/dead-letters/redrive-job", json!({ "filter": { "text": "anna-3" } }))
        .await
        .of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let ended =
        eventually(async || Some(server.get(&path).await.of(200)).filter(|job| job["state"] != "running")).await;
    let stats = server.get("/v1/queues/orders").await.of(200);
    assert_eq!((&ended["state"], &ended["done"]), (&json!("done"), &stats["ready"]), "{ended}");
    assert_eq!(stats["dead"].as_u64().unwrap() + stats["ready"].as_u64().unwrap(), MANY as u64 - counts[1]);
    assert!(listed(&server, "text=anna-3").await.is_empty());
    let both = json!({ "ids": [id], "filter": {} });
    assert_eq!(server.post("/v1/queues/orders/dead-letters/purge", both).await.code(), "invalid_input");
    server.stop().await;
}

#[tokio::test]
async fn json_stays_json_unless_the_content_type_changes_too() {
    let server = TestServer::new().await;
    let new = json!({ "body": "{\"litres\": 2}", "content_type": "application/json" });
    server.post("/v1/queues/orders/messages", new).await.of(201);
    let got = server.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
    let nack = json!({ "receipts": [got["messages"][0]["receipt"]], "reason": "rejected", "error": "no" });
    server.post("/v1/messages/dead-letter", nack).await.of(200);
    let path = format!("/v1/queues/orders/dead-letters/{}", got["messages"][0]["id"].as_str().unwrap());
    let edit = async |edit: Value| server.send(server.request(Method::PATCH, &path, Some(&edit))).await;
    let refused = edit(json!({ "body": "{\"litres\":\n 2" })).await.of(400);
    assert_eq!(refused["code"], "invalid_input");
    let why = refused["detail"].as_str().unwrap();
    assert!(why.contains("line 2, column 2") && why.contains("change the content type"), "{why}");
    assert_eq!(server.get(&path).await.of(200)["revision"], 0, "nothing was changed");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(edit(json!({ "body": deep })).await.of(200)["revision"], 1, "however deep, it is JSON");
    let edited = edit(json!({ "body": "litres: 2", "content_type": "text/plain" })).await.of(200);
    assert_eq!(edited["body"], "litres: 2");
    edit(json!({ "content_type": "application/json" })).await.of(400);
    edit(json!({ "headers": { "fixed": "yes" } })).await.of(200);
    server.stop().await;
}

#[tokio::test]
async fn changes_are_audited_with_caller_and_outcome() {
    let server = TestServer::new().await;
    dead_letter(&server, &["a"]).await;
    let token = server.token(&[Role::Operate], None).await;
    let ask = async |method: Method, path: &str, body: Option<Value>| {
        let mut request = server.request(method, path, body.as_ref());
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.send(request).await
    };
    ask(Method::POST, "/v1/queues/orders/pause", None).await.of(200);
    ask(Method::POST, "/v1/queues/orders/resume", None).await.of(200);
    ask(Method::POST, "/v1/queues/orders/dead-letters/purge", Some(json!({}))).await.of(200);
    ask(Method::POST, "/v1/queues/orders/purge", None).await.of(200);
    ask(Method::DELETE, "/v1/queues/orders", None).await.of(204);
    let log = ask(Method::GET, "/v1/audit?limit=3", None).await.of(200);
    let rows = log["entries"].as_array().unwrap();
    let found: Vec<_> =
        rows.iter().map(|row| (row["action"].as_str().unwrap(), row["target"].as_str().unwrap())).collect();
    assert_eq!(found, [("delete_queue", "orders"), ("purge_queue", "orders"), ("purge_dead_letters", "orders")]);
    assert_eq!(rows[2]["detail"]["outcome"], json!({ "purged": 1 }));
    assert_eq!(rows[0]["who"], "[Operate]");
    let rest = ask(Method::GET, &format!("/v1/audit?after={}", log["next"].as_str().unwrap()), None).await.of(200);
    let found: Vec<_> = rest["entries"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(found, ["resume_queue", "pause_queue", "create_token", "create_token"]);
    server.stop().await;
}
