//! What happens elsewhere is shown without being asked for.

use postrider::{Deadline, Message, MessagingService, QueueName};
use serde_json::json;

use crate::browser::Browser;
use crate::place::Place;
use crate::scene;

/// Sends by the library, past the server.
async fn send(place: &Place, queue: &str, body: &'static str) {
    let (queue, provider) = (QueueName::new(queue).unwrap(), &place.context.messaging_provider);
    provider.send_message(&queue, Message::new(body), Deadline::default()).await.unwrap();
}

#[tokio::test]
async fn what_the_library_does_appears_without_a_reload() {
    let place = scene::place().await;
    send(&place, "orders", "first").await;
    let browser = Browser::start(&place).await;
    let mark = async || browser.value("(window.isSame = true)").await;
    let is_same = async || assert_eq!(browser.value("window.isSame ?? false").await, true, "the page was loaded again");

    browser.open("/").await;
    browser.until("$('@live-state').dataset.state === 'live'").await;
    mark().await;
    browser.count("@queue-row", 1).await;
    send(&place, "orders", "second").await;
    browser.until("$('@total-ready .tile-value').innerText === '2'").await;
    browser.until("$('@queue-row').cells[1].innerText === '2'").await;
    send(&place, "mail", "first").await;
    browser.count("@queue-row", 2).await;
    browser.count("@nav-queue", 2).await;
    scene::bury(&place, "mail", &[("{}", "no stamp")]).await;
    browser.reads("@problem-queue", "1 dead letter").await;
    is_same().await;

    browser.click("@queue-row[data-key=orders] a").await;
    browser.until("$('@stat-ready .tile-value')?.innerText === '2'").await;
    send(&place, "orders", "third").await;
    browser.until("$('@stat-ready .tile-value').innerText === '3'").await;
    browser.click("@tab-messages").await;
    browser.count("@message-row", 3).await;
    send(&place, "orders", "the fourth").await;
    browser.count("@message-row", 4).await;
    browser.reads("@message-row:nth-child(4)", "the fourth").await;
    let held = scene::receive(&place, "orders", 1, "w1").await;
    browser.reads("@message-row:nth-child(1)", "PROCESSING").await;
    browser.click("@message-row:nth-child(1)").await;
    browser.reads("@detail", "PROCESSING").await;
    place.post("/v1/messages/ack", json!({ "receipts": [held[0]["receipt"]] })).await.of(200);
    browser.see("@message-left").await;
    browser.count("@message-row", 3).await;

    browser.click("@tab-dead-letters").await;
    browser.see("@empty-dead-letters").await;
    scene::bury(&place, "orders", &[("{}", "no tea")]).await;
    browser.count("@dead-letter-row", 1).await;
    browser.reads("@tab-dead-count", "1").await;

    browser.click("@nav-tasks").await;
    browser.see("@empty-tasks").await;
    let id = scene::task(&place, json!({ "type": "report", "payload": "{}" })).await;
    browser.count("@task-row", 1).await;
    let claim = json!({ "types": ["report"], "worker": "press-1", "lease": "1m" });
    let claimed = place.post("/v1/tasks/claim", claim).await.of(200);
    browser.reads("@task-row", "PROCESSING").await;
    browser.click("@task-row a").await;
    browser.until(&format!("location.pathname === '/ui/tasks/{id}'")).await;
    let finish = json!({ "lease": claimed["tasks"][0]["lease"], "outcome": "succeeded", "result": "{\"pages\": 4}" });
    place.post("/v1/tasks/finish", json!({ "finish": [finish] })).await.of(200);
    browser.until("$('@page-task').dataset.state === 'SUCCEEDED'").await;
    browser.reads("@task-result", "\"pages\": 4").await;

    browser.click("@nav-overview").await;
    browser.count("@queue-row", 2).await;
    place.send(place.request(axum::http::Method::DELETE, "/v1/queues/mail", None)).await.of(204);
    browser.count("@queue-row", 1).await;
    is_same().await;
    browser.close(&[]).await;
    place.stop().await;
}
