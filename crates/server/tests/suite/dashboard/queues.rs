//! Actions on queues and messages.

use serde_json::json;

use super::browser::{Browser, ESCAPE};
use super::fixtures;

#[tokio::test]
async fn a_queue_is_created_and_messages_are_sent() {
    let server = fixtures::server().await;
    let browser = Browser::start(&server).await;
    browser.open("/").await;
    browser.see("@empty-queues").await;
    browser.click("@new-queue").await;
    browser.fill("@queue-name-input", "bad name").await;
    browser.click("@new-queue-save").await;
    browser.reads("dialog @problem", "invalid_input").await;
    browser.fill("@queue-name-input", "scratch").await;
    browser.click("@new-queue-save").await;
    browser.until("location.pathname === '/ui/queues/scratch'").await;
    assert_eq!(server.get("/v1/queue-names").await.of(200), json!({ "queues": ["scratch"] }));

    browser.click("@send").await;
    browser.fill("@send-body", "{\"item\": \"tea\"}").await;
    browser.fill("@send-key", "k1").await;
    browser.fill("@send-dedup-key", "d1").await;
    browser.fill("@send-headers", "x: 1\ny: a:b").await;
    browser.shot("dialog-send").await;
    browser.click("@send-button").await;
    browser.gone("dialog").await;
    let sent = &server.get("/v1/queues/scratch/messages").await.of(200)["messages"][0];
    assert_eq!((&sent["body"], &sent["content_type"]), (&json!("{\"item\": \"tea\"}"), &json!("application/json")));
    assert_eq!((&sent["headers"], &sent["ordering_key"]), (&json!({ "x": "1", "y": "a:b" }), &json!("k1")));
    assert_eq!(sent["priority"], 4);

    browser.click("@send").await;
    browser.fill("@send-body", "plain").await;
    browser.fill("@send-delay", "nonsense").await;
    browser.click("@send-button").await;
    browser.see("dialog @problem").await;
    assert_eq!(fixtures::stats(&server, "scratch").await["delayed"], 0);
    browser.fill("@send-delay", "1h").await;
    browser.click("@send-button").await;
    browser.gone("dialog").await;
    browser.until("$('@stat-delayed .tile-value').innerText === '1'").await;
    let stats = fixtures::stats(&server, "scratch").await;
    assert_eq!((&stats["ready"], &stats["delayed"]), (&json!(1), &json!(1)));

    // Bytes that are not text are sent as base64.
    browser.click("@send").await;
    browser.fill("@send-body", "/wD+").await;
    browser.click("@send-base64").await;
    browser.click("@send-button").await;
    browser.gone("dialog").await;
    browser.open("/ui/queues/scratch/messages?q=binary").await;
    browser.fill("@filter", "").await;
    browser.click("@message-row:nth-child(3)").await;
    browser.reads("@payload-text", "00000000  ff 00 fe").await;
    browser.close(&[("/v1/queues/bad%20name", 400), ("/v1/queues/scratch/messages", 400)]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_queue_is_paused_resumed_purged_and_deleted() {
    let server = fixtures::server().await;
    for body in ["a", "b", "c"] {
        fixtures::send(&server, "orders", json!({ "body": body })).await;
    }
    fixtures::dead_letter(&server, "orders", &[("{}", "no tea")]).await;
    let dead = fixtures::stats(&server, "orders").await["dead"].as_u64().unwrap();
    let ready = fixtures::stats(&server, "orders").await["ready"].as_u64().unwrap();
    assert_eq!((ready, dead), (3, 1));
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders").await;

    browser.click("@pause").await;
    browser.confirm(&["3 ready", "[Pause]"]).await;
    browser.see("@resume").await;
    browser.see("@pill-paused").await;
    assert_eq!(fixtures::stats(&server, "orders").await["paused"], true);
    assert!(fixtures::receive(&server, "orders", 10, "w").await.is_empty(), "a paused queue delivers nothing");
    browser.click("@resume").await;
    browser.see("@pause").await;
    assert_eq!(fixtures::stats(&server, "orders").await["paused"], false);
    assert_eq!(fixtures::receive(&server, "orders", 1, "w").await.len(), 1);

    browser.click("@purge").await;
    let question = browser.question().await;
    assert!(question.contains("2 messages for good") && question.contains("[Purge 2 messages]"), "{question}");
    browser.shot("dialog-purge").await;
    browser.press(ESCAPE).await;
    browser.gone("dialog").await;
    assert_eq!(browser.value("document.activeElement.dataset.test").await, "purge", "the focus returns");
    assert_eq!(fixtures::stats(&server, "orders").await["ready"], 2, "Escape changes nothing");
    browser.click("@purge").await;
    browser.confirm(&["in flight (1) or dead (1) stays"]).await;
    let left = fixtures::stats(&server, "orders").await;
    assert_eq!((&left["ready"], &left["in_flight"], &left["dead"]), (&json!(0), &json!(1), &json!(1)));
    browser.click("@purge").await;
    assert!(browser.question().await.contains("nothing to remove"));
    assert_eq!(browser.value("$('@confirm-button').disabled").await, true);
    browser.press(ESCAPE).await;
    browser.gone("dialog").await;

    browser.click("@delete").await;
    browser.fill("@confirm-typed", "order").await;
    let question = browser.question().await;
    assert!(question.contains("[Delete the queue and 2 messages]"), "{question}");
    assert_eq!(browser.value("$('@confirm-button').disabled").await, true, "its name is not typed yet");
    browser.fill("@confirm-typed", "orders").await;
    browser.confirm(&["1 in flight", "1 dead letters"]).await;
    browser.until("location.pathname === '/'").await;
    browser.see("@empty-queues").await;
    assert_eq!(server.get("/v1/queue-names").await.of(200), json!({ "queues": [] }));

    let log = fixtures::audit(&server).await;
    let actions: Vec<_> = log.iter().map(|(action, target, _)| (action.as_str(), target.as_str())).collect();
    let wanted = ["delete_queue", "purge_queue", "resume_queue", "pause_queue"].map(|action| (action, "orders"));
    assert_eq!(actions, wanted);
    assert_eq!(log[1].2, json!({ "purged": 2 }));
    browser.click("@nav-audit").await;
    browser.count("@audit-row", 4).await;
    browser.reads("@audit-row", "delete_queue").await;
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_queue_shows_waiting_and_handling_percentiles() {
    let server = fixtures::server().await;
    for body in ["tea", "milk"] {
        fixtures::send(&server, "orders", json!({ "body": body })).await;
    }
    let got = fixtures::receive(&server, "orders", 2, "press-1").await;
    server.post("/v1/messages/ack", json!({ "receipts": [got[0]["receipt"]] })).await.of(200);
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders").await;
    for (line, label, count) in [("queue-waited", "Waited, last hour", 2), ("queue-took", "Handling, last hour", 1)] {
        browser.reads(&format!("@{line}"), label).await;
        for part in ["p50 ", "p95 ", "p99 "] {
            browser.reads(&format!("@{line}"), part).await;
        }
        assert_eq!(browser.value(&format!("$('@{line}').title")).await, format!("Of {count}"));
    }
    browser.close(&[]).await;
    server.stop().await;
}
