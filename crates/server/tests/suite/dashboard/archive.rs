//! The archive of a queue: search, pages, send again.

use serde_json::json;

use super::browser::Browser;
use super::fixtures;

#[tokio::test]
async fn archived_messages_are_searched_and_sent_again() {
    let server = fixtures::server().await;
    for n in 0..120 {
        let customer = if n == 7 { "anna" } else { "ben" };
        let new = json!({ "body": format!("order {n}"), "headers": { "customer": customer }, "ordering_key": format!("k{}", n % 3) });
        fixtures::send(&server, "orders", new).await;
    }
    for _ in 0..40 {
        // One of each key at a time.
        let got = fixtures::receive(&server, "orders", 100, "w").await;
        let receipts: Vec<_> = got.iter().map(|message| message["receipt"].clone()).collect();
        server.post("/v1/messages/ack", json!({ "receipts": receipts })).await.of(200);
    }
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders").await;
    browser.click("@tab-archive").await;
    browser.count("@archive-row", 100).await;
    browser.click("@load-more").await;
    browser.count("@archive-row", 120).await;
    browser.gone("@load-more").await;

    browser.fill("@archive-header", "customer=anna").await;
    browser.click("@archive-search").await;
    browser.count("@archive-row", 1).await;
    browser.click("@archive-row").await;
    browser.reads("@detail", "order 7").await;
    browser.shot("archive-detail").await;
    browser.click("@send-again").await;
    browser.confirm(&["same body, headers and ordering key", "[Send again]"]).await;
    let waiting = server.get("/v1/queues/orders/messages").await.of(200)["messages"].clone();
    assert_eq!(waiting.as_array().unwrap().len(), 1, "{waiting}");
    assert_eq!((&waiting[0]["body"], &waiting[0]["ordering_key"]), (&json!("order 7"), &json!("k1")));

    // A link leads to the same search.
    let linked = browser.value("location.pathname + location.search").await;
    browser.open(linked.as_str().unwrap()).await;
    browser.count("@archive-row", 1).await;
    browser.fill("@archive-header", "customer=nobody").await;
    browser.click("@archive-search").await;
    browser.reads("@empty-archive", "Nothing found").await;
    browser.fill("@archive-header", "customer").await;
    browser.click("@archive-search").await;
    browser.reads("@problem", "name=value").await;
    browser.close(&[("/v1/queues/orders/archive?header=customer&limit=100", 400)]).await;
    server.stop().await;
}
