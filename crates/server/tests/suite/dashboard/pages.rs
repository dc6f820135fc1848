//! Every page: by URL, by navigation, dark, light and small. Screenshots of all are kept.

use std::time::Duration;

use axum::http::Method;
use postrider_server::ServerOptions;
use serde_json::json;

use super::browser::Browser;
use super::fixtures;
use crate::test_server::{TestServer, eventually};

/// Puts something on every page. Returns the id of a dead task.
async fn fill(server: &TestServer) -> String {
    fixtures::send(server, "orders", json!({ "body": "handled" })).await;
    let handled = fixtures::receive(server, "orders", 1, "picker-1").await;
    server.post("/v1/messages/ack", json!({ "receipts": [handled[0]["receipt"]] })).await.of(200);
    for order in 1..=12 {
        let body = json!({ "order": order, "item": "tea", "litres": order * 2 }).to_string();
        let new = json!({ "body": body, "content_type": "application/json", "headers": { "customer": "anna" },
                          "ordering_key": format!("anna-{}", order % 3) });
        fixtures::send(server, "orders", new).await;
    }
    fixtures::send(server, "orders", json!({ "body": "later", "delay": "2h" })).await;
    fixtures::send(server, "orders", json!({ "body_base64": "/wD+yMnK" })).await;
    let failed = fixtures::receive(server, "orders", 1, "picker-1").await;
    let nack =
        json!({ "receipts": [failed[0]["receipt"]], "after": "0s", "error": "connection to stock:5432 timed out" });
    server.post("/v1/messages/nack", nack).await.of(200);
    fixtures::receive(server, "orders", 2, "picker-1").await;
    fixtures::dead_letter(server, "orders", &[("{\"order\": 90, \"litres\": -1}", "litres is below zero"); 3]).await;
    fixtures::dead_letter(
        server,
        "orders",
        &[("{\"order\": 91}", "POST https://pay.example/charge: 503 after 30s"); 9],
    )
    .await;
    for queue in ["mail.out", "mail.in", "thumbnails"] {
        fixtures::send(server, queue, json!({ "body": "{\"n\": 1}" })).await;
    }
    server.post("/v1/queues/mail.in/pause", json!({})).await.of(200);

    let dead =
        fixtures::dead_task(server, "invoice.send", "{\"order\": 7, \"to\": \"anna\"}", "printer is on fire").await;
    for order in 8..12 {
        let payload = json!({ "order": order }).to_string();
        fixtures::task(server, json!({ "type": "report", "payload": payload, "tags": ["monthly"] })).await;
    }
    let claim = json!({ "types": ["report"], "worker": "press-1", "lease": "10m", "max": 2 });
    let claimed = server.post("/v1/tasks/claim", claim).await.of(200);
    let beat = json!({ "heartbeats": [{ "lease": claimed["tasks"][0]["lease"],
        "progress": { "fraction": 0.6, "text": "page 3 of 5" } }], "extend": "10m" });
    server.post("/v1/tasks/heartbeat", beat).await.of(200);
    let finish = json!({ "lease": claimed["tasks"][1]["lease"], "outcome": "succeeded", "result": "{\"pages\": 4}" });
    server.post("/v1/tasks/finish", json!({ "finish": [finish] })).await.of(200);
    for (name, put) in [
        (
            "reminders",
            json!({ "type": "remind", "payload": "{}", "cron": "0 9 * * mon-fri", "time_zone": "Europe/Berlin" }),
        ),
        ("heartbeat", json!({ "type": "beat", "payload": "{}", "every": "5m" })),
    ] {
        server.send(server.request(Method::PUT, &format!("/v1/schedules/{name}"), Some(&put))).await.of(200);
    }
    server.post("/v1/schedules/heartbeat/pause", json!({})).await.of(200);
    dead
}

/// Name of the screenshot, URL, and the selector of a complete page.
fn pages(task: &str) -> Vec<(&'static str, String, &'static str)> {
    vec![
        ("overview", "/".to_owned(), "@page-overview @problem-queue"),
        ("queue", "/ui/queues/orders".to_owned(), "@page-queue @stat-ready"),
        ("messages", "/ui/queues/orders/messages".to_owned(), "@page-messages @message-row"),
        ("dead-letters", "/ui/queues/orders/dead-letters".to_owned(), "@page-dead-letters @dead-letter-row"),
        ("archive", "/ui/queues/orders/archive".to_owned(), "@page-archive @archive-row"),
        ("tasks", "/ui/tasks".to_owned(), "@page-tasks @task-row"),
        ("task", format!("/ui/tasks/{task}"), "@page-task @timeline"),
        ("schedules", "/ui/schedules".to_owned(), "@page-schedules @schedule-row"),
        ("workers", "/ui/workers".to_owned(), "@page-workers @worker-row"),
        ("provider", "/ui/provider".to_owned(), "@page-provider @finding"),
        ("audit", "/ui/audit".to_owned(), "@page-audit @audit-row"),
        ("tokens", "/ui/tokens".to_owned(), "@page-tokens @empty-tokens"),
    ]
}

async fn filled_server() -> (TestServer, String) {
    let options = ServerOptions { sample_interval: Duration::from_secs(1), ..ServerOptions::default() };
    let server = TestServer::with(options).await;
    let dead = fill(&server).await;
    // A chart needs two samples.
    eventually(async || {
        let history = server.get("/v1/history?queue=orders").await.of(200);
        (history["since_seconds"].as_f64()? > 3.0).then_some(())
    })
    .await;
    (server, dead)
}

#[tokio::test]
async fn every_page_opens_by_url_and_by_navigation() {
    let (server, task) = filled_server().await;
    let browser = Browser::start(&server).await;
    for (name, address, whole) in pages(&task) {
        browser.open(&address).await;
        browser.see(whole).await;
        browser.until("$('@live-state').dataset.state === 'live'").await;
        if ["overview", "queue"].contains(&name) {
            browser.until("$('@chart-depth path.line')?.getAttribute('d') && $('@chart-throughput path.line')").await;
        }
        browser.until("document.title.endsWith(' · Postrider') && $$('h1').length === 1").await;
        browser.shot(name).await;
    }
    browser.open("/ui/queues/orders/messages").await;
    browser.click("@message-row:nth-child(1)").await;
    browser.reads("@attempt", "timed out").await;
    browser.shot("message-detail").await;
    let linked = browser.value("location.pathname + location.search").await;
    browser.open(linked.as_str().unwrap()).await;
    browser.reads("@detail @attempt", "timed out").await;

    browser.open("/").await;
    for page in ["tasks", "schedules", "workers", "provider", "audit", "tokens", "overview"] {
        browser.click(&format!("@nav-{page}")).await;
        browser.see(&format!("@page-{page}")).await;
        browser.until(&format!("$('@nav-{page}').ariaCurrent === 'page'")).await;
    }
    browser.click("@nav-queue[data-queue=orders]").await;
    browser.see("@page-queue").await;
    browser.click("@tab-messages").await;
    browser.see("@message-row").await;
    browser.click("@tab-dead-letters").await;
    browser.see("@dead-letter-row").await;
    browser.click("@nav-tasks").await;
    browser.click(&format!("@task-row[data-key='{task}'] a")).await;
    browser.see("@page-task").await;
    browser.back().await;
    browser.see("@page-tasks").await;
    browser.click("@brand").await;
    browser.see("@page-overview").await;
    browser.click("@trouble-dead").await;
    browser.see("@page-dead-letters").await;

    browser.open("/ui/nothing").await;
    browser.see("@page-not-found").await;
    // An open server needs no login.
    browser.open("/ui/login").await;
    browser.see("@page-overview").await;
    browser.open("/reference").await;
    browser.until("document.body.innerText.includes('/v1/history') && $('main').offsetWidth <= 860").await;
    browser.shot("reference").await;
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn pages_are_dark_light_and_small() {
    let (server, task) = filled_server().await;
    let browser = Browser::start(&server).await;
    let background = async || browser.value("getComputedStyle(document.body).backgroundColor").await;
    browser.open("/").await;
    browser.prefers("light").await;
    let light = background().await;
    browser.prefers("dark").await;
    let dark = background().await;
    assert_ne!(light, dark, "it follows the system");
    browser.click("@theme-button").await;
    assert_eq!(background().await, light, "unless a theme is chosen");
    browser.prefers("light").await;
    browser.click("@theme-button").await;
    assert_eq!(background().await, dark);
    browser.open("/").await;
    assert_eq!(background().await, dark, "the choice is kept");
    let all = pages(&task);
    for (name, address, whole) in all.iter().filter(|(name, ..)| ["overview", "dead-letters", "task"].contains(name)) {
        browser.open(address).await;
        browser.see(whole).await;
        browser.shot(&format!("{name}-dark")).await;
    }
    browser.click("@theme-button").await;
    assert_eq!(background().await, light, "it follows the system again");

    browser.size(390, 844).await;
    for (name, address, whole) in &all {
        browser.open(address).await;
        browser.see(whole).await;
        assert_eq!(browser.value("document.documentElement.scrollWidth").await, 390, "{name} scrolls sideways");
        browser.shot(&format!("{name}-390")).await;
    }
    browser.click("@menu-button").await;
    browser.until("document.body.classList.contains('menu-open')").await;
    browser.shot("menu-390").await;
    browser.click("@nav-tasks").await;
    browser.see("@page-tasks").await;
    browser.until("!document.body.classList.contains('menu-open')").await;
    browser.open("/ui/queues/orders/dead-letters").await;
    browser.click("@dead-letter-row").await;
    browser.reads("@attempt", "litres").await;
    assert_eq!(browser.value("document.documentElement.scrollWidth").await, 390);
    browser.shot("dead-letter-detail-390").await;
    browser.click("@edit-retry").await;
    browser.see("@editor-body").await;
    let right = browser.value("Math.max(...$$('dialog *').map((one) => one.getBoundingClientRect().right))").await;
    assert!(right.as_f64().unwrap() <= 390.0, "the dialog ends at {right}");
    browser.shot("dialog-edit-390").await;
    browser.close(&[]).await;
    server.stop().await;
}
