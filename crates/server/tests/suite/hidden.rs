//! Rows hidden from a token do not show in its answers.

use std::time::Duration;

use axum::http::Method;
use postrider_server::{Role, ServerOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::test_server::{TIMEOUT, TestServer, eventually};

/// The queues of the token.
const OWN: [&str; 2] = ["mail*", "task_mail*"];

/// A server with rows of two teams, or of one.
struct Teams {
    server: TestServer,
    both: bool,
    token: String,
    hidden_task: Option<String>,
}

impl Teams {
    async fn new(both: bool) -> Self {
        let options = ServerOptions { sample_interval: Duration::from_millis(50), ..ServerOptions::default() };
        let server = TestServer::with(options).await;
        let mut teams = Self { server, both, token: String::new(), hidden_task: None };
        // Hidden rows are first, last and in between, and more than fit on a page.
        for number in 0..4 {
            teams.hide(number * 2).await;
            teams.died("mail", &format!("no stamp {number}")).await;
            teams.dead_letter("mail", &format!("torn {number}")).await;
            teams.handled("mail").await;
            teams.hide(number * 2 + 1).await;
        }
        for kind in ["mail", "mail.bulk"] {
            teams.server.post("/v1/tasks", json!({ "type": kind, "payload": "", "tags": ["red"] })).await.of(201);
        }
        teams.schedule("nightly", "mail").await;
        if both {
            teams.schedule("secret", "sms").await;
            teams.server.post("/v1/tasks", json!({ "type": "sms", "payload": "", "tags": ["red"] })).await.of(201);
            // Larger than all others, and running.
            let claim = json!({ "types": ["sms"], "worker": "spy", "lease": "10m" });
            teams.server.post("/v1/tasks/claim", claim).await.of(200);
            teams.server.post("/v1/tasks/replay-job", json!({ "type": ["sms"], "rate": 0.01 })).await.of(202);
            let ask = json!({ "queues": ["mail", "orders"], "worker": "anna" });
            teams.server.post("/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
            teams.server.post("/v1/queues/orders/receive", json!({ "worker": "ben" })).await.of(200);
            teams.server.post("/v1/receive", ask).await.of(200);
        } else {
            teams.server.post("/v1/receive", json!({ "queues": ["mail"], "worker": "anna" })).await.of(200);
        }
        let claim = json!({ "types": ["mail.bulk"], "worker": "carl", "lease": "10m" });
        assert_eq!(teams.server.post("/v1/tasks/claim", claim).await.of(200)["tasks"].as_array().unwrap().len(), 1);
        teams.token = teams.server.token(&[Role::Read, Role::Operate], Some(&OWN)).await;
        eventually(async || (teams.server.get("/v1/queues").await.status == 401).then_some(())).await;
        teams
    }

    async fn hide(&mut self, number: usize) {
        if self.both {
            self.hidden_task = Some(self.died("sms", &format!("no stamp, the secret is {number}")).await);
            self.dead_letter("orders", "a secret").await;
            self.handled("orders").await;
        }
    }

    async fn died(&self, kind: &str, error: &str) -> String {
        let made = self.server.post("/v1/tasks", json!({ "type": kind, "payload": "" })).await.of(201);
        let claim = json!({ "types": [kind], "worker": "w", "lease": "1m" });
        let claimed = self.server.post("/v1/tasks/claim", claim).await.of(200);
        let end =
            json!({ "lease": claimed["tasks"][0]["lease"], "outcome": "dead", "reason": "permanent", "error": error });
        self.server.post("/v1/tasks/finish", json!({ "finish": [end] })).await.of(200);
        made["id"].as_str().unwrap().to_owned()
    }

    async fn dead_letter(&self, queue: &str, error: &str) {
        self.server.post(&format!("/v1/queues/{queue}/messages"), json!({ "body": "a" })).await.of(201);
        let got = self.server.post(&format!("/v1/queues/{queue}/receive"), json!({ "worker": "w" })).await.of(200);
        let dead = json!({ "receipts": [got["messages"][0]["receipt"]], "reason": "odd", "error": error });
        self.server.post("/v1/messages/dead-letter", dead).await.of(200);
    }

    async fn handled(&self, queue: &str) {
        self.server.post(&format!("/v1/queues/{queue}/messages"), json!({ "body": "a" })).await.of(201);
        let got = self.server.post(&format!("/v1/queues/{queue}/receive"), json!({ "worker": "w" })).await.of(200);
        self.server.post("/v1/messages/ack", json!({ "receipts": [got["messages"][0]["receipt"]] })).await.of(200);
    }

    async fn schedule(&self, name: &str, kind: &str) {
        let put = json!({ "type": kind, "payload": "{}", "cron": "0 7 * * *" });
        self.server.send(self.server.request(Method::PUT, &format!("/v1/schedules/{name}"), Some(&put))).await.of(200);
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut request = self.server.request(method, path, body);
        request.headers_mut().insert("authorization", format!("Bearer {}", self.token).parse().unwrap());
        let answer = self.server.send(request).await;
        let status = answer.status.as_u16();
        (status, if answer.body.is_empty() { Value::Null } else { answer.json() })
    }

    /// Reads all pages of a listing.
    async fn all_pages(&self, path: &str) -> Vec<(u16, Value)> {
        let (mut pages, mut after) = (Vec::new(), String::new());
        loop {
            let between = if path.contains('?') { '&' } else { '?' };
            let (status, page) = self.ask(Method::GET, &format!("{path}{between}after={after}"), None).await;
            let next = page["next"].as_str().map(str::to_owned);
            pages.push((status, normalized(&page)));
            assert!(pages.len() < 100, "{path} does not end");
            match next {
                Some(next) => after = next,
                None => return pages,
            }
        }
    }
}

/// Removes what differs between servers: ids, times, and texts of cursors.
fn normalized(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let is_time = name.ends_with("_at")
                    || name == "scheduled_for"
                    || name.ends_with("_seconds")
                    || name.ends_with("_ms");
                let shown = match name.as_str() {
                    _ if is_time => json!(value.is_null()),
                    "next" => json!(value.as_str().map(str::len)),
                    "times" => json!(value.as_array().map(Vec::len)),
                    "now" | "request_id" => Value::Null,
                    _ => normalized(value),
                };
                (name.clone(), shown)
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::Array(rows) => Value::Array(rows.iter().map(normalized).collect()),
        Value::String(text) if text.len() == 36 && text.matches('-').count() == 4 => json!("an id"),
        Value::String(text) if text.starts_with("sqlite:") => json!("a file"),
        other => other.clone(),
    }
}

#[tokio::test]
async fn every_listing_is_the_same_with_and_without_hidden_rows() {
    let (with, without) = (Teams::new(true).await, Teams::new(false).await);
    let mut paths = vec!["/v1/queues?prefix=".to_owned(), "/v1/queues?prefix=o".to_owned()];
    for filter in [
        "",
        "state=DEAD",
        "state=PENDING&state=DEAD",
        "state=PROCESSING",
        "state=CANCELED",
        "type=mail",
        "type=sms",
        "type=mail&type=sms",
        "within=*",
        "within=s*",
        "within=mail.*",
        "tag=red",
        "schedule=secret",
        "reason=permanent",
        "error=stamp",
        "error=secret",
        "state=DEAD&error=secret",
        "state=DEAD&type=sms&error=secret",
        "since=2020-01-01T00:00:00Z",
        "before=2020-01-01T00:00:00Z",
    ] {
        for limit in [1, 2, 4, 100] {
            paths.push(format!("/v1/tasks?limit={limit}&{filter}"));
        }
    }
    for limit in [1, 3, 100] {
        paths.push(format!("/v1/queues?limit={limit}"));
        paths.push(format!("/v1/queues/mail/dead-letters?limit={limit}"));
        paths.push(format!("/v1/queues/mail/dead-letters?limit={limit}&reason=odd"));
        for filter in ["error_contains=torn", "error_contains=secret", "text=torn", "text=secret"] {
            paths.push(format!("/v1/queues/mail/dead-letters?limit={limit}&{filter}"));
        }
        paths.push(format!("/v1/queues/mail/archive?limit={limit}"));
        paths.push(format!("/v1/queues/mail/archive?limit={limit}&state=COMPLETED"));
        paths.push(format!("/v1/queues/mail/archive?limit={limit}&state=FAILED"));
        paths.push(format!("/v1/audit?limit={limit}"));
    }
    for path in &paths {
        assert_eq!(with.all_pages(path).await, without.all_pages(path).await, "{path}");
    }
    // Some of the listings are not empty.
    let dead: usize = with
        .all_pages("/v1/tasks?limit=1&state=DEAD")
        .await
        .iter()
        .map(|(_, page)| page["tasks"].as_array().unwrap().len())
        .sum();
    assert_eq!(dead, 4);
    for path in [
        "/v1/queue-names",
        "/v1/queues/mail/dead-letters/groups",
        "/v1/jobs",
        "/v1/workers",
        "/v1/schedules",
        "/v1/schedules/nightly",
        "/v1/schedules/secret",
        "/v1/schedules/nightly/times",
        "/v1/schedules/secret/times",
        "/v1/tasks/counts",
        "/v1/tasks/counts?type=sms",
        "/v1/session",
        "/v1/doctor",
        "/metrics",
    ] {
        let (one, other) = (with.ask(Method::GET, path, None).await, without.ask(Method::GET, path, None).await);
        assert_eq!((one.0, normalized(&one.1)), (other.0, normalized(&other.1)), "{path}");
    }
    let (_, workers) = with.ask(Method::GET, "/v1/workers", None).await;
    let names: Vec<_> = workers["workers"].as_array().unwrap().iter().map(|worker| worker["name"].clone()).collect();
    assert!(
        names.contains(&json!("anna")) && names.contains(&json!("carl")) && !names.contains(&json!("spy")),
        "{names:?}"
    );

    // Every action on a hidden task reports that it is not found.
    let hidden = with.hidden_task.clone().unwrap();
    let nothing = uuid::Uuid::now_v7().to_string();
    for (method, end, body) in [
        (Method::GET, "", None),
        (Method::POST, "/cancel", Some(json!({}))),
        (Method::POST, "/retry", Some(json!({}))),
        (Method::POST, "/replay", Some(json!({}))),
        (Method::PUT, "/payload", Some(json!({ "payload": "x" }))),
    ] {
        let about = async |id: &str| {
            let (status, answer) = with.ask(method.clone(), &format!("/v1/tasks/{id}{end}"), body.as_ref()).await;
            (status, answer.to_string().replace(id, "it"), answer["code"].clone())
        };
        let (one, other) = (about(&hidden).await, about(&nothing).await);
        assert_eq!((one.0, &one.2), (404, &json!("task_not_found")), "{end}: {}", one.1);
        assert_eq!((one.0, &one.2), (other.0, &other.2), "{end}: {} and {}", one.1, other.1);
    }
    // A cursor of another listing, or a row number, is invalid.
    for made_up in ["5", "5.5", "9223372036854775807", "prc1.AAAA"] {
        let (status, answer) = with.ask(Method::GET, &format!("/v1/tasks?after={made_up}"), None).await;
        assert_eq!(status, 400, "{answer}");
        for listing in ["dead-letters", "archive"] {
            let path = format!("/v1/queues/mail/{listing}?after={made_up}");
            assert_eq!(with.ask(Method::GET, &path, None).await.0, 400);
        }
    }
    for teams in [with, without] {
        teams.server.stop().await;
    }
}

#[tokio::test]
async fn the_history_is_as_long_as_that_of_the_visible_queues() {
    let teams = Teams::new(true).await;
    // The hidden queue is older than the visible one by several samples.
    let all = teams.server.token(&[Role::Read], None).await;
    let mut request = teams.server.request(Method::GET, "/v1/history", None);
    request.headers_mut().insert("authorization", format!("Bearer {all}").parse().unwrap());
    teams.server.send(request).await.of(200);
    let own = eventually(async || {
        let (_, history) = teams.ask(Method::GET, "/v1/history", None).await;
        (!history["queues"].as_array().unwrap().is_empty()).then_some(history)
    })
    .await;
    let queues: Vec<_> = own["queues"].as_array().unwrap().iter().map(|queue| queue["queue"].clone()).collect();
    assert_eq!(queues, [json!("mail")]);
    assert!(!own["queues"][0]["ready"][0].is_null(), "its first number is its first sample: {own}");
    teams.server.stop().await;
}

#[tokio::test]
async fn a_stream_of_events_reveals_nothing_hidden() {
    let teams = Teams::new(true).await;
    let mut stream = TcpStream::connect(teams.server.address).await.unwrap();
    let head = format!("GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n", teams.token);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut events = BufReader::new(stream).lines();
    let mut next = async || loop {
        let line = tokio::time::timeout(TIMEOUT, events.next_line())
            .await
            .expect("in time")
            .unwrap()
            .expect("the stream continues");
        if let Some(name) = line.strip_prefix("event: ") {
            return name.to_owned();
        }
        assert!(!line.contains("orders") && !line.contains("secret"), "{line}");
    };
    let admin = teams.server.token(&[Role::Admin], None).await;
    let with = async |method: Method, path: &str, body: Value| {
        let mut request = teams.server.request(method, path, Some(&body));
        request.headers_mut().insert("authorization", format!("Bearer {admin}").parse().unwrap());
        teams.server.send(request).await
    };
    for _ in 0..3 {
        with(Method::POST, "/v1/tasks", json!({ "type": "sms", "payload": "" })).await.of(201);
        with(Method::POST, "/v1/schedules/secret/pause", json!({})).await.of(200);
        with(Method::POST, "/v1/queues/orders/messages", json!({ "body": "a" })).await.of(201);
        // Hints within the interval would be joined.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    with(Method::POST, "/v1/queues/mail/messages", json!({ "body": "a" })).await.of(201);
    assert_eq!(next().await, "queues", "the first visible change");
    with(Method::POST, "/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    while next().await != "tasks" {}
    with(Method::POST, "/v1/schedules/nightly/pause", json!({})).await.of(200);
    while next().await != "schedules" {}
    teams.server.stop().await;
}
