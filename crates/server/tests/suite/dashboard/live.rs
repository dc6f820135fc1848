//! What happens elsewhere is shown without being asked for.

use postrider::{Deadline, Message, MessagingService, QueueName};
use postrider_server::ServerOptions;
use serde_json::json;

use super::browser::{Browser, NO_ANSWER};
use super::scene;
use crate::place::{Files, Place};

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

#[tokio::test]
async fn a_server_that_went_away_is_found_again() {
    let files = Files::sqlite();
    let place = Place::on(&files, ServerOptions::default()).await;
    send(&place, "orders", "first").await;
    let browser = Browser::start(&place).await;
    // A page that asks for nothing by the clock, so that it is known what goes unanswered.
    browser.open("/ui/queues/orders/messages").await;
    browser.until("$('@live-state').dataset.state === 'live' && $('@message-row')").await;
    let listen = place.address;
    place.stop().await;
    browser.until("$('@live-state').dataset.state === 'reconnecting'").await;
    browser.until_told(("/v1/queue-names", NO_ANSWER)).await;
    assert_eq!(browser.value("$$('@message-row').length").await, 1, "what is known stays in sight");
    browser.shot("reconnecting").await;

    let place = Place::listening(&files, ServerOptions { listen, ..ServerOptions::default() }).await;
    send(&place, "orders", "second").await;
    browser.until("$('@live-state').dataset.state === 'live'").await;
    browser.count("@message-row", 2).await;
    browser.close(&[("/v1/events", NO_ANSWER), ("/v1/queue-names", NO_ANSWER)]).await;
    place.stop().await;
}

#[tokio::test]
async fn whoever_missed_changes_asks_for_everything_again() {
    let place = scene::place().await;
    send(&place, "orders", "first").await;
    let browser = Browser::start(&place).await;
    browser.open("/").await;
    browser.until("$('@live-state').dataset.state === 'live' && $('@queue-row')").await;
    // The page connects again, by something that can be spoken through.
    let hold = "(window.EventSource = class extends EventSource { constructor(url) { super(url); window.held = this; } }, \
                dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true })))";
    browser.value(hold).await;
    browser.until("window.held?.readyState === 1").await;
    let asked = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/v1/queues?')).length";
    // Once when it was opened, and once when it had connected again.
    browser.until(&format!("{asked} === 2")).await;
    browser.value("window.held.dispatchEvent(new MessageEvent('resync', { data: '{}' }))").await;
    browser.until(&format!("{asked} === 3")).await;
    browser.close(&[]).await;
    place.stop().await;
}
