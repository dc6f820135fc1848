//! Live updates.

use postrider::{Deadline, Message, MessagingService, QueueName};
use postrider_server::ServerOptions;
use serde_json::json;

use super::browser::{Browser, NO_ANSWER};
use super::fixtures;
use crate::test_server::{TestServer, TestStore};

/// Sends by the library, not through the server.
async fn send(server: &TestServer, queue: &str, body: &'static str) {
    let (queue, provider) = (QueueName::new(queue).unwrap(), &server.context.messaging_provider);
    provider.send_message(&queue, Message::new(body), Deadline::default()).await.unwrap();
}

#[tokio::test]
async fn changes_by_the_library_appear_without_a_reload() {
    let server = fixtures::server().await;
    send(&server, "orders", "first").await;
    let browser = Browser::start(&server).await;
    let mark = async || browser.value("(window.isSame = true)").await;
    let is_same = async || assert_eq!(browser.value("window.isSame ?? false").await, true, "the page was reloaded");

    browser.open("/").await;
    browser.until("$('@live-state').dataset.state === 'live'").await;
    mark().await;
    browser.count("@queue-row", 1).await;
    send(&server, "orders", "second").await;
    browser.until("$('@total-ready .tile-value').innerText === '2'").await;
    browser.until("$('@queue-row').cells[1].innerText === '2'").await;
    send(&server, "mail", "first").await;
    browser.count("@queue-row", 2).await;
    browser.count("@nav-queue", 2).await;
    fixtures::dead_letter(&server, "mail", &[("{}", "no stamp")]).await;
    browser.reads("@problem-queue", "1 dead letter").await;
    is_same().await;

    browser.click("@queue-row[data-key=orders] a").await;
    browser.until("$('@stat-ready .tile-value')?.innerText === '2'").await;
    send(&server, "orders", "third").await;
    browser.until("$('@stat-ready .tile-value').innerText === '3'").await;
    browser.click("@tab-messages").await;
    browser.count("@message-row", 3).await;
    send(&server, "orders", "the fourth").await;
    browser.count("@message-row", 4).await;
    browser.reads("@message-row:nth-child(4)", "the fourth").await;
    let held = fixtures::receive(&server, "orders", 1, "w1").await;
    browser.reads("@message-row:nth-child(1)", "PROCESSING").await;
    browser.click("@message-row:nth-child(1)").await;
    browser.reads("@detail", "PROCESSING").await;
    server.post("/v1/messages/ack", json!({ "receipts": [held[0]["receipt"]] })).await.of(200);
    browser.see("@message-left").await;
    browser.count("@message-row", 3).await;

    browser.click("@tab-dead-letters").await;
    browser.see("@empty-dead-letters").await;
    fixtures::dead_letter(&server, "orders", &[("{}", "no tea")]).await;
    browser.count("@dead-letter-row", 1).await;
    browser.reads("@tab-dead-count", "1").await;

    browser.click("@nav-tasks").await;
    browser.see("@empty-tasks").await;
    let id = fixtures::task(&server, json!({ "type": "report", "payload": "{}" })).await;
    browser.count("@task-row", 1).await;
    let claim = json!({ "types": ["report"], "worker": "press-1", "lease": "1m" });
    let claimed = server.post("/v1/tasks/claim", claim).await.of(200);
    browser.reads("@task-row", "PROCESSING").await;
    browser.click("@task-row a").await;
    browser.until(&format!("location.pathname === '/ui/tasks/{id}'")).await;
    let finish = json!({ "lease": claimed["tasks"][0]["lease"], "outcome": "succeeded", "result": "{\"pages\": 4}" });
    server.post("/v1/tasks/finish", json!({ "finish": [finish] })).await.of(200);
    browser.until("$('@page-task').dataset.state === 'SUCCEEDED'").await;
    browser.reads("@task-result", "\"pages\": 4").await;

    browser.click("@nav-overview").await;
    browser.count("@queue-row", 2).await;
    server.send(server.request(axum::http::Method::DELETE, "/v1/queues/mail", None)).await.of(204);
    browser.count("@queue-row", 1).await;
    is_same().await;
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn the_page_reconnects_to_a_restarted_server() {
    let files = TestStore::sqlite();
    let server = TestServer::on(&files, ServerOptions::default()).await;
    send(&server, "orders", "first").await;
    let browser = Browser::start(&server).await;
    // A page without periodic requests, so that the failed requests are known.
    browser.open("/ui/queues/orders/messages").await;
    browser.until("$('@live-state').dataset.state === 'live' && $('@message-row')").await;
    let listen = server.address;
    server.stop().await;
    browser.until("$('@live-state').dataset.state === 'reconnecting'").await;
    browser.until_logged(("/v1/queue-names", NO_ANSWER)).await;
    assert_eq!(browser.value("$$('@message-row').length").await, 1, "loaded rows stay");
    browser.shot("reconnecting").await;

    let server = TestServer::listening(&files, ServerOptions { listen, ..ServerOptions::default() }).await;
    send(&server, "orders", "second").await;
    browser.until("$('@live-state').dataset.state === 'live'").await;
    browser.count("@message-row", 2).await;
    browser.close(&[("/v1/events", NO_ANSWER), ("/v1/queue-names", NO_ANSWER)]).await;
    server.stop().await;
}

#[tokio::test]
async fn after_missed_changes_everything_is_loaded_again() {
    let server = fixtures::server().await;
    send(&server, "orders", "first").await;
    let browser = Browser::start(&server).await;
    browser.open("/").await;
    browser.until("$('@live-state').dataset.state === 'live' && $('@queue-row')").await;
    // Replaces the page's event source by one that the test can send events through.
    let hold = "(window.EventSource = class extends EventSource { constructor(url) { super(url); window.held = this; } }, \
                dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true })))";
    browser.value(hold).await;
    browser.until("window.held?.readyState === 1").await;
    let asked = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/v1/queues?')).length";
    // Once when the page was opened, and once after the reconnect.
    browser.until(&format!("{asked} === 2")).await;
    browser.value("window.held.dispatchEvent(new MessageEvent('resync', { data: '{}' }))").await;
    browser.until(&format!("{asked} === 3")).await;
    browser.close(&[]).await;
    server.stop().await;
}
