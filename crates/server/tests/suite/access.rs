//! Authentication and authorization: every route of the OpenAPI description with every role.

use axum::http::{Method, StatusCode};
use postrider::state_records::StateRecords;
use postrider::{DeadLetters, Deadline, Message, MessagingService, Nack, QueueAdmin, QueueName, ReceiveOptions};
use postrider_server::{Role, ServeError, Server, ServerOptions, role_named};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::{Answer, TIMEOUT, TestServer, TestStore, eventually};

/// A route of the OpenAPI description.
struct Described {
    method: Method,
    path: String,
    /// Any one of these suffices; empty if the route needs none.
    roles: Vec<Role>,
}

fn described() -> Vec<Described> {
    let document = postrider_server::openapi();
    let mut all = Vec::new();
    for (path, verbs) in document["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            let method = Method::from_bytes(verb.to_uppercase().as_bytes()).unwrap();
            let names = operation["x-roles"].as_array().into_iter().flatten();
            let roles = names.map(|name| role_named(name.as_str().unwrap()).unwrap()).collect();
            all.push(Described { method, path: path.clone(), roles });
        }
    }
    assert!(all.len() > 60, "{} routes", all.len());
    all
}

/// Fills a route's path with existing names and ids.
fn concrete(path: &str, id: &str) -> String {
    path.replace("{queue}", "orders").replace("{id}", id).replace("{name}", "nightly")
}

async fn with_token(server: &TestServer, method: &Method, path: &str, token: Option<&str>) -> Answer {
    // For most routes an empty object is invalid, but authorization comes first.
    let body = (*method != Method::GET).then(|| json!({}));
    let mut request = server.request(method.clone(), path, body.as_ref());
    if let Some(token) = token {
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    server.send(request).await
}

/// Whether the answer is an endless stream, of which only the head is read.
fn is_stream(path: &str) -> bool {
    path.ends_with("/wake-ups") || path == "/v1/events"
}

/// A server with a dead letter and a waiting message.
async fn with_messages() -> (TestServer, QueueName, String) {
    let server = TestServer::new().await;
    let queue = QueueName::new("orders").unwrap();
    let provider = &server.context.messaging_provider;
    for body in ["dead", "living"] {
        provider.send_message(&queue, Message::new(body), Deadline::default()).await.unwrap();
    }
    let got = provider.receive_messages(&queue, &ReceiveOptions::default(), Deadline::default()).await.unwrap();
    let message = got.into_iter().next().unwrap();
    let id = message.id().to_string();
    provider.nack_message(&queue, message, Nack::dead_letter("rejected"), Deadline::default()).await.unwrap();
    (server, queue, id)
}

/// Reads everything that a refused request could have changed.
async fn everything(server: &TestServer, queue: &QueueName) -> Value {
    let provider = &server.context.messaging_provider;
    let stats = provider.queue_stats(queue, Deadline::default()).await.unwrap();
    let dead = provider.list_dead_letters(queue, &Default::default(), Deadline::default()).await.unwrap();
    let audit = postrider::state_records::RecordKind::constant("audit");
    let audit = server.state.list(&audit, &Default::default(), Deadline::default()).await.unwrap();
    json!([
        stats.ready.value(),
        stats.in_flight.value(),
        stats.dead.value(),
        stats.paused,
        dead.letters.iter().map(|letter| letter.revision).collect::<Vec<_>>(),
        provider.list_queues(Deadline::default()).await.unwrap().len(),
        audit.records.len(),
    ])
}

#[tokio::test]
async fn every_route_checks_its_role_and_a_refused_request_changes_nothing() {
    let (server, queue, id) = with_messages().await;
    let all = [Role::Read, Role::Produce, Role::Consume, Role::Operate, Role::Admin];
    let mut tokens = Vec::new();
    for role in all {
        tokens.push((role, server.token(&[role], None).await));
    }
    let elsewhere = server.token(&[Role::Read, Role::Produce, Role::Consume, Role::Operate], Some(&["mail*"])).await;
    eventually(async || (server.get("/v1/queues").await.status == 401).then_some(())).await;
    let before = everything(&server, &queue).await;
    for route in described() {
        let path = concrete(&route.path, &id);
        if route.roles.is_empty() {
            continue;
        }
        let nobody = with_token(&server, &route.method, &path, None).await;
        assert_eq!(nobody.status, 401, "{} {path}", route.method);
        assert_eq!(nobody.headers["www-authenticate"], "Bearer realm=\"postrider\"");
        let made_up = format!("prt_{}_{}", "0".repeat(32), "x".repeat(43));
        for wrong in [made_up.as_str(), "prt_x", &tokens[4].1[..tokens[4].1.len() - 1]] {
            let status = with_token(&server, &route.method, &path, Some(wrong)).await.status;
            assert!(status == 401 || status == 429, "{} {path}: {status}", route.method);
        }
        for (role, token) in &tokens {
            let includes = |needed: &Role| {
                role == needed || *role == Role::Admin || (*role == Role::Operate && *needed == Role::Read)
            };
            let may = route.roles.iter().any(includes);
            if !may {
                let answer = with_token(&server, &route.method, &path, Some(token)).await;
                assert_eq!(answer.status, 403, "{} {path} as {role:?}", route.method);
                assert_eq!(answer.code(), "forbidden");
            }
        }
        if route.path.contains("{queue}") {
            let answer = with_token(&server, &route.method, &path, Some(&elsewhere)).await;
            assert_eq!(answer.status, 403, "{} {path} of another queue", route.method);
        }
    }
    assert_eq!(everything(&server, &queue).await, before, "a refused request changed something");

    // With the right role, every route passes the check.
    for route in described().into_iter().filter(|route| !is_stream(&route.path)) {
        for needed in &route.roles {
            let token = &tokens.iter().find(|(role, _)| role == needed).unwrap().1;
            let path = concrete(&route.path, &id);
            let answer = with_token(&server, &route.method, &path, Some(token)).await;
            assert!(!matches!(answer.status.as_u16(), 401 | 403 | 500..), "{} {path}: {answer:?}", route.method);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_token_limited_to_queues_sees_and_settles_only_those() {
    let server = TestServer::new().await;
    let send =
        async |queue: &str| server.post(&format!("/v1/queues/{queue}/messages"), json!({ "body": "a" })).await.of(201);
    send("orders").await;
    send("mail").await;
    let received = server.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
    let foreign = received["messages"][0]["receipt"].as_str().unwrap().to_owned();
    let token = server.token(&[Role::Read, Role::Consume, Role::Produce], Some(&["mail*"])).await;
    eventually(async || (server.get("/v1/queues").await.status == 401).then_some(())).await;
    let ask = async |method: Method, path: &str, body: Option<Value>| {
        let mut request = server.request(method, path, body.as_ref());
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.send(request).await
    };
    let seen = ask(Method::GET, "/v1/queues", None).await.of(200);
    assert_eq!(seen["queues"].as_array().unwrap().len(), 1);
    assert_eq!(ask(Method::GET, "/v1/queue-names", None).await.of(200)["queues"], json!(["mail"]));
    assert_eq!(ask(Method::POST, "/v1/receive", Some(json!({ "queues": ["mail", "orders"] }))).await.status, 403);
    assert_eq!(ask(Method::POST, "/v1/queues/verify", Some(json!({ "queues": ["orders"] }))).await.status, 403);
    for (path, body) in [
        ("/v1/messages/ack", json!({ "receipts": [foreign] })),
        ("/v1/messages/nack", json!({ "receipts": [foreign] })),
        ("/v1/messages/release", json!({ "receipts": [foreign] })),
        ("/v1/messages/dead-letter", json!({ "receipts": [foreign], "reason": "x" })),
        ("/v1/messages/extend", json!({ "receipts": [foreign], "visibility": "1s" })),
        ("/v1/messages/settle", json!({ "settlements": [{ "receipt": foreign, "outcome": "ack" }] })),
    ] {
        let rows = ask(Method::POST, path, Some(body)).await.of(200);
        assert_eq!(rows["results"][0]["problem"]["code"], "invalid_receipt", "{path}");
    }
    assert_eq!(ask(Method::POST, "/v1/tasks", Some(json!({ "type": "x", "payload": "" }))).await.status, 403);
    let orders = QueueName::new("orders").unwrap();
    let stats = server.context.messaging_provider.queue_stats(&orders, Deadline::default()).await.unwrap();
    assert_eq!(stats.in_flight.value(), Some(1));
    server.stop().await;
}

#[tokio::test]
async fn a_session_is_a_cookie_that_other_sites_cannot_use_and_that_ends_with_its_token() {
    let server = TestServer::new().await;
    let token = server.token(&[Role::Admin], None).await;
    eventually(async || (server.get("/v1/queues").await.status == 401).then_some(())).await;
    let log_in = async |token: &str| {
        let mut request = server.request(Method::POST, "/v1/session", Some(&json!({ "token": token })));
        request.headers_mut().insert("origin", format!("http://{}", server.address).parse().unwrap());
        server.send(request).await
    };
    let unknown = format!("prt_{}_{}", "0".repeat(32), "x".repeat(43));
    for (wrong, why) in [("prt_wrong", "a token has the form 'prt_…_…'"), (&unknown, "mistyped, revoked or expired")]
    {
        let problem = log_in(wrong).await.of(401);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("unknown token: ") && detail.contains(why), "{detail}");
        assert_eq!(problem["code"], "unauthorized");
    }
    let answer = log_in(&token).await;
    let cookie = answer.headers["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    answer.of(204);
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let ask = async |method: Method, origin: Option<&str>| {
        let mut request = server.request(method, "/v1/queues/orders", None);
        request.headers_mut().insert("cookie", cookie.parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        server.send(request).await.status
    };
    let own = format!("http://{}", server.address);
    assert_eq!(ask(Method::GET, None).await, 200);
    assert_eq!(ask(Method::PUT, Some(&own)).await, 204);
    assert_eq!(ask(Method::PUT, Some("http://evil.example")).await, 403);
    assert_eq!(ask(Method::PUT, None).await, 403);
    // The session ends with its token.
    let tokens = postrider_server::Tokens::new(server.state.clone());
    for token in tokens.list(Deadline::default()).await.unwrap() {
        assert!(tokens.revoke(token.id, "test", Deadline::default()).await.unwrap());
    }
    // No token is left, and the server stays closed.
    eventually(async || (ask(Method::GET, None).await == 401).then_some(())).await;
    server.stop().await;
}

#[tokio::test]
async fn guesses_are_throttled_and_valid_tokens_are_not() {
    let files = TestStore::sqlite();
    let server = TestServer::on(&files, ServerOptions::default()).await;
    let (seen, unseen) = (server.token(&[Role::Admin], None).await, server.token(&[Role::Admin], None).await);
    eventually(async || (server.get("/v1/queues").await.status == 401).then_some(())).await;
    let ask = async |server: &TestServer, name: &'static str, value: &str| {
        let mut request = server.request(Method::GET, "/v1/queues", None);
        request.headers_mut().insert(name, value.parse().unwrap());
        server.send(request).await
    };
    let bearer = |token: &str| format!("Bearer {token}");
    let log_in = async |server: &TestServer| {
        let mut request = server.request(Method::POST, "/v1/session", Some(&json!({ "token": seen })));
        request.headers_mut().insert("origin", format!("http://{}", server.address).parse().unwrap());
        let cookie = server.send(request).await.headers["set-cookie"].to_str().unwrap().to_owned();
        cookie.split(';').next().unwrap().to_owned()
    };
    ask(&server, "authorization", &bearer(&seen)).await.of(200);
    let cookie = log_in(&server).await;
    // A wrong cookie counts once, however often it is sent.
    for _ in 0..30 {
        assert_eq!(ask(&server, "cookie", "postrider_session=over").await.status, 401);
    }
    let made_up = || format!("prt_{:032x}_{}", rand::random::<u128>(), "x".repeat(43));
    let mut refused = 0;
    let held_up = loop {
        let answer = ask(&server, "authorization", &bearer(&made_up())).await;
        if answer.status != 401 {
            break answer;
        }
        refused += 1;
        assert!(refused < 30, "guesses are not throttled");
    };
    assert!(held_up.headers.contains_key("retry-after"), "{held_up:?}");
    assert_eq!(held_up.code(), "too_many_requests");
    // A valid token is accepted, even if this server has never seen it.
    ask(&server, "authorization", &bearer(&unseen)).await.of(200);
    ask(&server, "authorization", &bearer(&seen)).await.of(200);
    ask(&server, "cookie", &cookie).await.of(200);
    let newer = log_in(&server).await;
    ask(&server, "cookie", &newer).await.of(200);
    server.stop().await;

    // Another server has counted no wrong tokens.
    let server = TestServer::on(&files, ServerOptions::default()).await;
    ask(&server, "authorization", &bearer(&unseen)).await.of(200);
    ask(&server, "cookie", &cookie).await.of(200);
    server.stop().await;
}

#[tokio::test]
async fn the_first_token_is_an_admins_and_the_log_names_its_creator() {
    let server = TestServer::new().await;
    let refused = server.post("/v1/tokens", json!({ "name": "ci", "roles": ["produce"] })).await;
    let detail = refused.of(400)["detail"].clone();
    assert!(detail.as_str().unwrap().contains("postrider token create NAME --role admin"), "{detail}");
    let endless = json!({ "name": "ops", "roles": ["admin"], "expires_in": "40000d" });
    let detail = server.post("/v1/tokens", endless).await.of(400)["detail"].clone();
    assert!(detail.as_str().unwrap().contains("more than a hundred years"), "{detail}");
    // The server is still open.
    assert_eq!(server.get("/v1/tokens").await.of(200)["tokens"], json!([]));
    assert_eq!(server.get("/v1/audit").await.of(200)["entries"], json!([]));

    let reader = server.token(&[Role::Read], None).await;
    let tokens = postrider_server::Tokens::new(server.state.clone());
    let made = tokens.list(Deadline::default()).await.unwrap();
    tokens.revoke(made[1].id, "anna", Deadline::default()).await.unwrap();
    let admin = server.token(&[Role::Admin], None).await;
    let status = async |token: &str| with_token(&server, &Method::GET, "/v1/queues", Some(token)).await.status;
    eventually(async || (status(&reader).await == 401).then_some(())).await;
    let log = with_token(&server, &Method::GET, "/v1/audit", Some(&admin)).await.of(200);
    let found = |row: &Value| [row["who"].clone(), row["action"].clone(), row["detail"]["outcome"].clone()];
    let found: Vec<_> = log["entries"].as_array().unwrap().iter().map(found).collect();
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(found[1], [json!("anna"), json!("revoke_token"), json!({ "was_there": true })]);
    assert_eq!(found[2], [json!("test"), json!("create_token"), json!({ "id": made[1].id })]);
    server.stop().await;
}

#[tokio::test]
async fn after_the_last_token_ends_the_server_stays_closed_and_its_requests_end() {
    let server = TestServer::new().await;
    let token = server.token(&[Role::Consume, Role::Read], None).await;
    eventually(async || (server.get("/v1/queues").await.status == 401).then_some(())).await;
    let ask = async |path: &str| with_token(&server, &Method::GET, path, Some(&token)).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head =
        format!("GET /v1/queues/orders/wake-ups HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let mut waits = server.request(Method::POST, "/v1/queues/orders/receive", Some(&json!({ "wait": "20s" })));
    waits.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let tokens = postrider_server::Tokens::new(server.state.clone());
    let revoke = async {
        eventually(async || (ask("/v1/workers").await.json()["workers"][0]["waiting"] == true).then_some(())).await;
        for token in tokens.list(Deadline::default()).await.unwrap() {
            assert!(tokens.revoke(token.id, "test", Deadline::default()).await.unwrap());
        }
        eventually(async || (ask("/v1/capabilities").await.status == 401).then_some(())).await;
        let queue = QueueName::new("orders").unwrap();
        server.context.messaging_provider.send_message(&queue, Message::new("a"), Deadline::default()).await.unwrap();
    };
    // The long poll is refused although a message arrived, and the stream ends.
    let (waited, ()) = tokio::join!(server.send(waits), revoke);
    assert_eq!(waited.code(), "unauthorized");
    let mut rest = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.expect("the stream ends").unwrap();
    assert_eq!(server.get("/v1/queues").await.status, 401, "requests without a token are refused");
    let queue = QueueName::new("orders").unwrap();
    let options = ReceiveOptions::default().wait(std::time::Duration::from_secs(10));
    let got = server.context.messaging_provider.receive_messages(&queue, &options, Deadline::default()).await.unwrap();
    assert_eq!(got[0].receive_count(), 1, "its lease was released uncounted");
    server.stop().await;
}

#[tokio::test]
async fn metrics_need_a_token_without_a_queue_limit() {
    let server = TestServer::new().await;
    let (some, all) = (server.token(&[Role::Read], Some(&["mail*"])).await, server.token(&[Role::Read], None).await);
    eventually(async || (server.get("/metrics").await.status == 401).then_some(())).await;
    assert_eq!(with_token(&server, &Method::GET, "/metrics", Some(&some)).await.code(), "forbidden");
    assert_eq!(with_token(&server, &Method::GET, "/metrics", Some(&all)).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn an_open_server_answers_to_local_names_only() {
    let server = TestServer::new().await;
    let ask = async |name: &'static str, value: &str| {
        let mut request = server.request(Method::PUT, "/v1/queues/orders", None);
        request.headers_mut().insert(name, value.parse().unwrap());
        server.send(request).await.status
    };
    assert_eq!(ask("origin", "http://evil.example").await, 403);
    assert_eq!(ask("sec-fetch-site", "cross-site").await, 403);
    assert_eq!(ask("host", "evil.example").await, 403, "a foreign name that resolves to this machine");
    assert_eq!(ask("host", "localhost:1").await, 204);
    server.stop().await;
}

#[tokio::test]
async fn a_request_without_or_with_two_hosts_is_refused() {
    let server = TestServer::new().await;
    for (version, hosts, status) in [
        ("1.1", "host: localhost\r\n", "200"),
        ("1.1", "", "400"),
        ("1.1", "host: localhost\r\nhost: evil.example\r\n", "400"),
        ("1.0", "", "200"),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!("GET /v1/queues HTTP/{version}\r\n{hosts}connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.expect("in time").unwrap();
        assert_eq!(&answer[9..12], status, "{head}{answer}");
        assert_eq!(
            answer.contains("malformed_request") && answer.contains("'Host' header"),
            status == "400",
            "{answer}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_public_address_needs_a_token() {
    let server = TestServer::new().await;
    let listen = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let options = ServerOptions { listen, ..ServerOptions::default() };
    let refused = Server::bind(server.context.clone(), server.state.clone(), options).await;
    let error = refused.expect_err("it is refused");
    assert!(matches!(error, ServeError::Open { .. }), "{error}");
    assert!(error.to_string().contains("postrider token create"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn secrets_are_stored_as_hashes_and_pages_have_a_strict_policy() {
    let server = TestServer::new().await;
    let token = server.token(&[Role::Read], None).await;
    let secret = token.splitn(3, '_').nth(2).unwrap();
    let kept = postrider::state_records::RecordKind::constant("token");
    let kept = server.state.list(&kept, &Default::default(), Deadline::default()).await.unwrap();
    let text = String::from_utf8_lossy(&kept.records[0].value).into_owned();
    assert!(!text.contains(secret) && text.contains("sha256"), "{text}");
    let page = server.get("/").await;
    assert_eq!(page.status, StatusCode::OK);
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    assert_eq!(page.headers["x-frame-options"], "DENY");
    server.stop().await;
}
