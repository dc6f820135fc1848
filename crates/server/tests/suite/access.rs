//! Who may do what: every route of the description, with every role.

use axum::http::{Method, StatusCode};
use postrider::state_records::StateRecords;
use postrider::{DeadLetters, Deadline, Message, MessagingService, Nack, QueueAdmin, QueueName, ReceiveOptions};
use postrider_server::{Role, ServeError, Server, ServerOptions, role_named};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::place::{Answer, Files, PATIENCE, Place, eventually};

/// A route of the description.
struct Described {
    method: Method,
    path: String,
    /// One of these is enough; none where anybody may come.
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

/// A path of a route, about things that are there.
fn concrete(path: &str, id: &str) -> String {
    path.replace("{queue}", "orders").replace("{id}", id).replace("{name}", "nightly")
}

async fn with_token(place: &Place, method: &Method, path: &str, token: Option<&str>) -> Answer {
    // An empty object is enough to be refused, and for most routes to be a mistake.
    let body = (*method != Method::GET).then(|| json!({}));
    let mut request = place.request(method.clone(), path, body.as_ref());
    if let Some(token) = token {
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    place.send(request).await
}

/// Streams do not end; their head is all that is wanted.
fn is_stream(path: &str) -> bool {
    path.ends_with("/wake-ups") || path == "/v1/events"
}

/// A dead letter and a living message.
async fn with_messages() -> (Place, QueueName, String) {
    let place = Place::new().await;
    let queue = QueueName::new("orders").unwrap();
    let provider = &place.context.messaging_provider;
    for body in ["dead", "living"] {
        provider.send_message(&queue, Message::new(body), Deadline::default()).await.unwrap();
    }
    let got = provider.receive_messages(&queue, &ReceiveOptions::default(), Deadline::default()).await.unwrap();
    let message = got.into_iter().next().unwrap();
    let id = message.id().to_string();
    provider.nack_message(&queue, message, Nack::dead_letter("rejected"), Deadline::default()).await.unwrap();
    (place, queue, id)
}

/// Everything that a refused request could have changed.
async fn everything(place: &Place, queue: &QueueName) -> Value {
    let provider = &place.context.messaging_provider;
    let stats = provider.queue_stats(queue, Deadline::default()).await.unwrap();
    let dead = provider.list_dead_letters(queue, &Default::default(), Deadline::default()).await.unwrap();
    let audit = postrider::state_records::RecordKind::constant("audit");
    let audit = place.state.list(&audit, &Default::default(), Deadline::default()).await.unwrap();
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
async fn every_route_asks_who_comes_and_changes_nothing_for_the_wrong_one() {
    let (place, queue, id) = with_messages().await;
    let all = [Role::Read, Role::Produce, Role::Consume, Role::Operate, Role::Admin];
    let mut tokens = Vec::new();
    for role in all {
        tokens.push((role, place.token(&[role], None).await));
    }
    let elsewhere = place.token(&[Role::Read, Role::Produce, Role::Consume, Role::Operate], Some(&["mail*"])).await;
    eventually(async || (place.get("/v1/queues").await.status == 401).then_some(())).await;
    let before = everything(&place, &queue).await;
    for route in described() {
        let path = concrete(&route.path, &id);
        if route.roles.is_empty() {
            continue;
        }
        let nobody = with_token(&place, &route.method, &path, None).await;
        assert_eq!(nobody.status, 401, "{} {path}", route.method);
        assert_eq!(nobody.headers["www-authenticate"], "Bearer realm=\"postrider\"");
        let made_up = format!("prt_{}_{}", "0".repeat(32), "x".repeat(43));
        for wrong in [made_up.as_str(), "prt_x", &tokens[4].1[..tokens[4].1.len() - 1]] {
            let status = with_token(&place, &route.method, &path, Some(wrong)).await.status;
            assert!(status == 401 || status == 429, "{} {path}: {status}", route.method);
        }
        for (role, token) in &tokens {
            let includes = |needed: &Role| {
                role == needed || *role == Role::Admin || (*role == Role::Operate && *needed == Role::Read)
            };
            let may = route.roles.iter().any(includes);
            if !may {
                let answer = with_token(&place, &route.method, &path, Some(token)).await;
                assert_eq!(answer.status, 403, "{} {path} as {role:?}", route.method);
                assert_eq!(answer.code(), "forbidden");
            }
        }
        if route.path.contains("{queue}") {
            let answer = with_token(&place, &route.method, &path, Some(&elsewhere)).await;
            assert_eq!(answer.status, 403, "{} {path} of another queue", route.method);
        }
    }
    assert_eq!(everything(&place, &queue).await, before, "a refused request changed something");

    // And with the right one, every route is let through.
    for route in described().into_iter().filter(|route| !is_stream(&route.path)) {
        for needed in &route.roles {
            let token = &tokens.iter().find(|(role, _)| role == needed).unwrap().1;
            let path = concrete(&route.path, &id);
            let answer = with_token(&place, &route.method, &path, Some(token)).await;
            assert!(!matches!(answer.status.as_u16(), 401 | 403 | 500..), "{} {path}: {answer:?}", route.method);
        }
    }
    place.stop().await;
}

#[tokio::test]
async fn a_token_of_some_queues_sees_and_settles_those_alone() {
    let place = Place::new().await;
    let send =
        async |queue: &str| place.post(&format!("/v1/queues/{queue}/messages"), json!({ "body": "a" })).await.of(201);
    send("orders").await;
    send("mail").await;
    let received = place.post("/v1/queues/orders/receive", json!({ "visibility": "10m" })).await.of(200);
    let foreign = received["messages"][0]["receipt"].as_str().unwrap().to_owned();
    let token = place.token(&[Role::Read, Role::Consume, Role::Produce], Some(&["mail*"])).await;
    eventually(async || (place.get("/v1/queues").await.status == 401).then_some(())).await;
    let ask = async |method: Method, path: &str, body: Option<Value>| {
        let mut request = place.request(method, path, body.as_ref());
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        place.send(request).await
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
    let stats = place.context.messaging_provider.queue_stats(&orders, Deadline::default()).await.unwrap();
    assert_eq!(stats.in_flight.value(), Some(1));
    place.stop().await;
}

#[tokio::test]
async fn a_session_is_a_cookie_that_other_sites_cannot_use_and_that_ends_with_its_token() {
    let place = Place::new().await;
    let token = place.token(&[Role::Admin], None).await;
    eventually(async || (place.get("/v1/queues").await.status == 401).then_some(())).await;
    let log_in = async |token: &str| {
        let mut request = place.request(Method::POST, "/v1/session", Some(&json!({ "token": token })));
        request.headers_mut().insert("origin", format!("http://{}", place.address).parse().unwrap());
        place.send(request).await
    };
    let unknown = format!("prt_{}_{}", "0".repeat(32), "x".repeat(43));
    for (wrong, why) in [
        ("prt_wrong", "a token begins with 'prt_' and has two more parts"),
        (&unknown, "it was mistyped, revoked, or has expired"),
    ] {
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
        let mut request = place.request(method, "/v1/queues/orders", None);
        request.headers_mut().insert("cookie", cookie.parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        place.send(request).await.status
    };
    let own = format!("http://{}", place.address);
    assert_eq!(ask(Method::GET, None).await, 200);
    assert_eq!(ask(Method::PUT, Some(&own)).await, 204);
    assert_eq!(ask(Method::PUT, Some("http://evil.example")).await, 403);
    assert_eq!(ask(Method::PUT, None).await, 403);
    // With its token, the session is over.
    let tokens = postrider_server::Tokens::new(place.state.clone());
    for token in tokens.list(Deadline::default()).await.unwrap() {
        assert!(tokens.revoke(token.id, "test", Deadline::default()).await.unwrap());
    }
    // No other is left, and the server stays closed.
    eventually(async || (ask(Method::GET, None).await == 401).then_some(())).await;
    place.stop().await;
}

#[tokio::test]
async fn whoever_guesses_is_held_up_and_whoever_is_right_is_not() {
    let files = Files::sqlite();
    let place = Place::on(&files, ServerOptions::default()).await;
    let (seen, unseen) = (place.token(&[Role::Admin], None).await, place.token(&[Role::Admin], None).await);
    eventually(async || (place.get("/v1/queues").await.status == 401).then_some(())).await;
    let ask = async |place: &Place, name: &'static str, value: &str| {
        let mut request = place.request(Method::GET, "/v1/queues", None);
        request.headers_mut().insert(name, value.parse().unwrap());
        place.send(request).await
    };
    let bearer = |token: &str| format!("Bearer {token}");
    let log_in = async |place: &Place| {
        let mut request = place.request(Method::POST, "/v1/session", Some(&json!({ "token": seen })));
        request.headers_mut().insert("origin", format!("http://{}", place.address).parse().unwrap());
        let cookie = place.send(request).await.headers["set-cookie"].to_str().unwrap().to_owned();
        cookie.split(';').next().unwrap().to_owned()
    };
    ask(&place, "authorization", &bearer(&seen)).await.of(200);
    let cookie = log_in(&place).await;
    // One wrong cookie is one mistake, however often it is sent.
    for _ in 0..30 {
        assert_eq!(ask(&place, "cookie", "postrider_session=over").await.status, 401);
    }
    let made_up = || format!("prt_{:032x}_{}", rand::random::<u128>(), "x".repeat(43));
    let mut refused = 0;
    let held_up = loop {
        let answer = ask(&place, "authorization", &bearer(&made_up())).await;
        if answer.status != 401 {
            break answer;
        }
        refused += 1;
        assert!(refused < 30, "guesses go on");
    };
    assert!(held_up.headers.contains_key("retry-after"), "{held_up:?}");
    assert_eq!(held_up.code(), "too_many_requests");
    // Whoever is right is let in, also if this server has never seen them.
    ask(&place, "authorization", &bearer(&unseen)).await.of(200);
    ask(&place, "authorization", &bearer(&seen)).await.of(200);
    ask(&place, "cookie", &cookie).await.of(200);
    let newer = log_in(&place).await;
    ask(&place, "cookie", &newer).await.of(200);
    place.stop().await;

    // Another server has seen nothing wrong.
    let place = Place::on(&files, ServerOptions::default()).await;
    ask(&place, "authorization", &bearer(&unseen)).await.of(200);
    ask(&place, "cookie", &cookie).await.of(200);
    place.stop().await;
}

#[tokio::test]
async fn the_first_token_is_an_admins_and_whoever_makes_one_is_told_of() {
    let place = Place::new().await;
    let refused = place.post("/v1/tokens", json!({ "name": "ci", "roles": ["produce"] })).await;
    let detail = refused.of(400)["detail"].clone();
    assert!(detail.as_str().unwrap().contains("postrider token create NAME --role admin"), "{detail}");
    let endless = json!({ "name": "ops", "roles": ["admin"], "expires_in": "40000d" });
    let detail = place.post("/v1/tokens", endless).await.of(400)["detail"].clone();
    assert!(detail.as_str().unwrap().contains("more than a hundred years away"), "{detail}");
    // The server is as open as before.
    assert_eq!(place.get("/v1/tokens").await.of(200)["tokens"], json!([]));
    assert_eq!(place.get("/v1/audit").await.of(200)["entries"], json!([]));

    let reader = place.token(&[Role::Read], None).await;
    let tokens = postrider_server::Tokens::new(place.state.clone());
    let made = tokens.list(Deadline::default()).await.unwrap();
    tokens.revoke(made[1].id, "anna", Deadline::default()).await.unwrap();
    let admin = place.token(&[Role::Admin], None).await;
    let status = async |token: &str| with_token(&place, &Method::GET, "/v1/queues", Some(token)).await.status;
    eventually(async || (status(&reader).await == 401).then_some(())).await;
    let log = with_token(&place, &Method::GET, "/v1/audit", Some(&admin)).await.of(200);
    let told = |row: &Value| [row["who"].clone(), row["action"].clone(), row["detail"]["outcome"].clone()];
    let told: Vec<_> = log["entries"].as_array().unwrap().iter().map(told).collect();
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!(told[1], [json!("anna"), json!("revoke_token"), json!({ "was_there": true })]);
    assert_eq!(told[2], [json!("test"), json!("create_token"), json!({ "id": made[1].id })]);
    place.stop().await;
}

#[tokio::test]
async fn the_last_token_that_ends_lets_nobody_in_and_ends_what_its_holder_had_open() {
    let place = Place::new().await;
    let token = place.token(&[Role::Consume, Role::Read], None).await;
    eventually(async || (place.get("/v1/queues").await.status == 401).then_some(())).await;
    let ask = async |path: &str| with_token(&place, &Method::GET, path, Some(&token)).await;
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    let head =
        format!("GET /v1/queues/orders/wake-ups HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let mut waits = place.request(Method::POST, "/v1/queues/orders/receive", Some(&json!({ "wait": "20s" })));
    waits.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let tokens = postrider_server::Tokens::new(place.state.clone());
    let revoke = async {
        eventually(async || (ask("/v1/workers").await.json()["workers"][0]["waiting"] == true).then_some(())).await;
        for token in tokens.list(Deadline::default()).await.unwrap() {
            assert!(tokens.revoke(token.id, "test", Deadline::default()).await.unwrap());
        }
        eventually(async || (ask("/v1/capabilities").await.status == 401).then_some(())).await;
        let queue = QueueName::new("orders").unwrap();
        place.context.messaging_provider.send_message(&queue, Message::new("a"), Deadline::default()).await.unwrap();
    };
    // The long poll is refused although a message came, and the stream ends by itself.
    let (waited, ()) = tokio::join!(place.send(waits), revoke);
    assert_eq!(waited.code(), "unauthorized");
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the stream ends").unwrap();
    assert_eq!(place.get("/v1/queues").await.status, 401, "nobody is let in without a token any more");
    let queue = QueueName::new("orders").unwrap();
    let options = ReceiveOptions::default().wait(std::time::Duration::from_secs(10));
    let got = place.context.messaging_provider.receive_messages(&queue, &options, Deadline::default()).await.unwrap();
    assert_eq!(got[0].receive_count(), 1, "what was leased for it went back uncounted");
    place.stop().await;
}

#[tokio::test]
async fn metrics_are_for_those_who_may_see_every_queue() {
    let place = Place::new().await;
    let (some, all) = (place.token(&[Role::Read], Some(&["mail*"])).await, place.token(&[Role::Read], None).await);
    eventually(async || (place.get("/metrics").await.status == 401).then_some(())).await;
    assert_eq!(with_token(&place, &Method::GET, "/metrics", Some(&some)).await.code(), "forbidden");
    assert_eq!(with_token(&place, &Method::GET, "/metrics", Some(&all)).await.status, 200);
    place.stop().await;
}

#[tokio::test]
async fn an_open_server_is_for_this_machine_and_not_for_pages_of_others() {
    let place = Place::new().await;
    let ask = async |name: &'static str, value: &str| {
        let mut request = place.request(Method::PUT, "/v1/queues/orders", None);
        request.headers_mut().insert(name, value.parse().unwrap());
        place.send(request).await.status
    };
    assert_eq!(ask("origin", "http://evil.example").await, 403);
    assert_eq!(ask("sec-fetch-site", "cross-site").await, 403);
    assert_eq!(ask("host", "evil.example").await, 403, "a name of somebody else's that leads here");
    assert_eq!(ask("host", "localhost:1").await, 204);
    place.stop().await;
}

#[tokio::test]
async fn a_request_that_names_no_host_or_two_is_refused() {
    let place = Place::new().await;
    for (version, hosts, status) in [
        ("1.1", "host: localhost\r\n", "200"),
        ("1.1", "", "400"),
        ("1.1", "host: localhost\r\nhost: evil.example\r\n", "400"),
        ("1.0", "", "200"),
    ] {
        let mut stream = TcpStream::connect(place.address).await.unwrap();
        let head = format!("GET /v1/queues HTTP/{version}\r\n{hosts}connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("in time").unwrap();
        assert_eq!(&answer[9..12], status, "{head}{answer}");
        assert_eq!(
            answer.contains("malformed_request") && answer.contains("'Host' header"),
            status == "400",
            "{answer}"
        );
    }
    place.stop().await;
}

#[tokio::test]
async fn an_address_that_others_reach_needs_a_token() {
    let place = Place::new().await;
    let listen = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let options = ServerOptions { listen, ..ServerOptions::default() };
    let refused = Server::bind(place.context.clone(), place.state.clone(), options).await;
    let error = refused.expect_err("it is refused");
    assert!(matches!(error, ServeError::Open { .. }), "{error}");
    assert!(error.to_string().contains("postrider token create"), "{error}");
    place.stop().await;
}

#[tokio::test]
async fn secrets_are_kept_as_hashes_and_pages_forbid_everything_else() {
    let place = Place::new().await;
    let token = place.token(&[Role::Read], None).await;
    let secret = token.splitn(3, '_').nth(2).unwrap();
    let kept = postrider::state_records::RecordKind::constant("token");
    let kept = place.state.list(&kept, &Default::default(), Deadline::default()).await.unwrap();
    let text = String::from_utf8_lossy(&kept.records[0].value).into_owned();
    assert!(!text.contains(secret) && text.contains("sha256"), "{text}");
    let page = place.get("/").await;
    assert_eq!(page.status, StatusCode::OK);
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    assert_eq!(page.headers["x-frame-options"], "DENY");
    place.stop().await;
}
