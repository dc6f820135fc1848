//! Tokens, sessions, and the dashboard with the role `read`.

use axum::http::Method;
use postrider_server::Role;
use serde_json::{Value, json};

use super::browser::{Browser, ENTER};
use super::fixtures;
use crate::test_server::{Answer, TestServer, eventually};

async fn with_token(server: &TestServer, token: &str, path: &str) -> Answer {
    let mut request = server.request(Method::GET, path, None);
    request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    server.send(request).await
}

#[tokio::test]
async fn the_first_token_closes_the_server_and_others_are_created_and_revoked() {
    let server = fixtures::server().await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/tokens").await;
    browser.see("@empty-tokens").await;
    browser.see("@open-mode").await;
    let make = async |name: &str| {
        browser.click("@new-token").await;
        browser.fill("@token-name", name).await;
    };
    let secret = async || {
        browser.click("@token-save").await;
        let token = browser.text("@token-secret code").await;
        assert!(token.starts_with("prt_"), "{token}");
        token
    };
    make("anna").await;
    browser.see("@first-token").await;
    assert_eq!(browser.value("$('@token-role-admin').checked").await, true, "the first token must be an admin's");
    let admin = secret().await;
    assert_eq!(server.get("/v1/tokens").await.code(), "unauthorized", "the server is closed now");
    browser.click("dialog @dialog-cancel").await;
    browser.reads("@who", "anna").await;
    browser.count("@token-row", 1).await;
    browser.click("@token-revoke").await;
    browser.see("@last-admin").await;
    browser.click("dialog @dialog-cancel").await;

    make("ci").await;
    browser.click("@token-role-produce").await;
    browser.fill("@token-queues", "orders, mail.*").await;
    browser.fill("@token-expires-in", "30d").await;
    let ci = secret().await;
    browser.shot("dialog-token").await;
    browser.click("dialog @dialog-cancel").await;
    browser.count("@token-row", 2).await;
    browser.shot("tokens").await;
    let all = with_token(&server, &admin, "/v1/tokens").await.of(200)["tokens"].clone();
    let made = all.as_array().unwrap().iter().find(|token| token["name"] == "ci").unwrap();
    assert_eq!((&made["roles"], &made["queues"]), (&json!(["read", "produce"]), &json!(["orders", "mail.*"])));
    assert!(made["expires_at"].is_string());
    assert_eq!(with_token(&server, &ci, "/v1/session").await.of(200)["name"], "ci");

    let row = format!("[data-key='{}']", made["id"].as_str().unwrap());
    browser.click(&format!("{row} @token-revoke")).await;
    browser.confirm(&["1 token is refused from now on", "[Revoke 1 token]"]).await;
    browser.gone(&row).await;
    eventually(async || (with_token(&server, &ci, "/v1/session").await.status == 401).then_some(())).await;
    let log = with_token(&server, &admin, "/v1/audit").await.of(200);
    let actions: Vec<_> = log["entries"].as_array().unwrap().iter().map(|row| (&row["who"], &row["action"])).collect();
    assert_eq!(actions[0], (&json!("anna"), &json!("revoke_token")));
    assert_eq!(actions[1], (&json!("anna"), &json!("create_token")));
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_login_returns_to_the_page_and_a_reader_changes_nothing() {
    let server = fixtures::server().await;
    fixtures::dead_letter(&server, "orders", &[("{}", "no tea"); 3]).await;
    fixtures::send(&server, "mail.out", json!({ "body": "x" })).await;
    fixtures::dead_task(&server, "report", "{}", "timed out").await;
    let put = json!({ "type": "report", "payload": "", "every": "1h" });
    server.send(server.request(Method::PUT, "/v1/schedules/hourly", Some(&put))).await.of(200);
    let reader = server.token(&[Role::Read], None).await;
    let mail = server.token(&[Role::Read], Some(&["mail.*"])).await;
    let browser = Browser::start(&server).await;

    browser.open("/ui/queues/orders/dead-letters").await;
    browser.see("@page-login").await;
    browser.shot("login").await;
    let seen = browser.value("document.body.innerText").await;
    assert!(!seen.as_str().unwrap().contains("sqlite"), "the login page must not reveal the store: {seen}");
    browser.fill("@login-token", "prt_wrong").await;
    browser.click("@login-button").await;
    browser.reads("@problem", "unknown token").await;
    browser.fill("@login-token", &format!("{reader}{ENTER}")).await;
    browser.until("location.pathname === '/ui/queues/orders/dead-letters'").await;
    browser.reads("@who", "[Read]").await;

    // Every button that changes something is disabled, with the reason.
    let disabled = async |path: &str, buttons: &[&str]| {
        browser.open(path).await;
        for button in buttons {
            browser.see(&format!("@{button}")).await;
            let found = browser.value(&format!("[$('@{button}').ariaDisabled, $('@{button}').title]")).await;
            assert_eq!(found[0], "true", "{button} on {path}");
            assert!(found[1].as_str().unwrap().starts_with("This needs the role"), "{button} on {path}: {found}");
        }
    };
    disabled("/", &["new-queue"]).await;
    disabled("/ui/queues/orders", &["send", "pause", "purge", "delete"]).await;
    disabled("/ui/queues/orders/messages", &["send", "deliver-now-all", "dead-letter-all", "delete-all"]).await;
    disabled("/ui/tasks?state=DEAD", &["new-task", "replay-all"]).await;
    disabled(
        "/ui/schedules",
        &["new-schedule", "schedule-pause", "schedule-trigger", "schedule-edit", "schedule-delete"],
    )
    .await;
    disabled("/ui/queues/orders/dead-letters", &["redrive-all", "purge-all", "group-redrive", "group-purge"]).await;
    browser.click("@purge-all").await;
    browser.reads("@toast", "operate").await;
    assert_eq!(browser.value("$('dialog')").await, Value::Null);
    browser.shot("reader").await;
    browser.click("@dead-letter-row").await;
    browser.reads("@attempt", "no tea").await;
    for page in ["audit", "tokens"] {
        browser.open(&format!("/ui/{page}")).await;
        browser.reads("@refused", "This needs the role").await;
    }
    browser.open("/ui/provider").await;
    browser.see("@doctor-refused").await;
    browser.see("@health-ok").await;
    let letters = with_token(&server, &reader, "/v1/queues/orders/dead-letters").await.of(200);
    assert_eq!(letters["dead_letters"].as_array().unwrap().len(), 3, "nothing was changed");

    browser.click("@logout").await;
    browser.see("@page-login").await;
    assert_eq!(browser.value("fetch('/v1/queues').then((answer) => answer.status)").await, 401);
    browser.fill("@login-token", &format!("{mail}{ENTER}")).await;
    browser.count("@queue-row", 1).await;
    browser.reads("@queue-row", "mail.out").await;
    browser.open("/ui/queues/orders").await;
    browser.reads("@problem", "forbidden").await;
    browser.close(&[("/v1/session", 401), ("/v1/queues", 401), ("/v1/queues/orders", 403)]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_revoked_token_ends_its_session() {
    let server = fixtures::server().await;
    let reader = server.token(&[Role::Read], None).await;
    let admin = server.token(&[Role::Admin], None).await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/login").await;
    browser.fill("@login-token", &format!("{reader}{ENTER}")).await;
    browser.see("@page-overview").await;
    let all = with_token(&server, &admin, "/v1/tokens").await.of(200)["tokens"].clone();
    let own = all.as_array().unwrap().iter().find(|token| token["name"] == "[Read]").unwrap();
    let path = format!("/v1/tokens/{}", own["id"].as_str().unwrap());
    let mut request = server.request(Method::DELETE, &path, None);
    request.headers_mut().insert("authorization", format!("Bearer {admin}").parse().unwrap());
    server.send(request).await.of(204);
    eventually(async || (with_token(&server, &reader, "/v1/queues").await.status == 401).then_some(())).await;
    // The page asks for the log-in at the next thing that it reads: what is clicked, or the stream that the server ended.
    browser.until("$('@page-login') !== null || ($('@nav-tasks').click(), false)").await;
    browser.until("location.search.includes('from=')").await;
    browser.close(&[("", 401)]).await;
    server.stop().await;
}
