//! The archive of a queue: searched, paged, and a message sent again.

use serde_json::json;

use super::browser::Browser;
use super::scene;

#[tokio::test]
async fn what_ended_is_searched_and_sent_again() {
    let place = scene::place().await;
    for n in 0..120 {
        let customer = if n == 7 { "anna" } else { "ben" };
        let new = json!({ "body": format!("order {n}"), "headers": { "customer": customer }, "ordering_key": format!("k{}", n % 3) });
        scene::send(&place, "orders", new).await;
    }
    for _ in 0..40 {
        // One of each key at a time.
        let got = scene::receive(&place, "orders", 100, "w").await;
        let receipts: Vec<_> = got.iter().map(|message| message["receipt"].clone()).collect();
        place.post("/v1/messages/ack", json!({ "receipts": receipts })).await.of(200);
    }
    let browser = Browser::start(&place).await;
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
    browser.confirm(&["same body, headers and key", "[Send again]"]).await;
    let waiting = place.get("/v1/queues/orders/messages").await.of(200)["messages"].clone();
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
    place.stop().await;
}
