//! Keyboard navigation.

use serde_json::json;

use super::browser::{Browser, ENTER, ESCAPE, TAB};
use super::fixtures;

#[tokio::test]
async fn pages_rows_and_dialogs_are_reached_with_keys() {
    let server = fixtures::server().await;
    for queue in ["a", "b", "c"] {
        fixtures::send(&server, queue, json!({ "body": "x" })).await;
    }
    fixtures::dead_letter(&server, "c", &[("{}", "no tea"), ("{}", "no milk")]).await;
    let browser = Browser::start(&server).await;
    let focused = async || browser.value("document.activeElement.dataset.test ?? document.activeElement.id").await;
    browser.open("/").await;
    browser.count("@queue-row", 3).await;

    browser.press(TAB).await;
    assert_eq!(browser.value("document.activeElement.className").await, "skip", "the skip link is first");
    browser.press(ENTER).await;
    browser.until("document.activeElement.id === 'main'").await;

    for (keys, page) in
        [("gt", "tasks"), ("gs", "schedules"), ("gw", "workers"), ("gp", "provider"), ("ga", "audit"), ("gk", "tokens")]
    {
        browser.press(keys).await;
        browser.until(&format!("location.pathname === '/ui/{page}' && $('@page-{page}')")).await;
    }
    browser.press("go").await;
    browser.count("@queue-row", 3).await;
    browser.press("/").await;
    assert_eq!(focused().await, "filter");
    browser.press("c").await;
    browser.count("@queue-row", 1).await;
    browser.press("\u{e003}").await;
    browser.count("@queue-row", 3).await;
    browser.press(ESCAPE).await;
    assert_ne!(focused().await, "filter");
    // The queue with a problem is first.
    browser.press("j").await;
    assert_eq!(browser.value("document.activeElement.dataset.key").await, "c");
    browser.press("j").await;
    assert_eq!(browser.value("document.activeElement.dataset.key").await, "a");
    browser.press("k").await;
    browser.press(ENTER).await;
    browser.until("location.pathname === '/ui/queues/c' && $('@page-queue')").await;

    browser.press("gd").await;
    browser.count("@dead-letter-row", 2).await;
    browser.press("j").await;
    browser.press("x").await;
    browser.reads("@selection", "1 selected").await;
    browser.press(ENTER).await;
    browser.until("$('@detail').hidden === false").await;
    browser.press(ESCAPE).await;
    browser.until("$('@detail').hidden === true").await;

    browser.press("?").await;
    browser.see("@dialog-help").await;
    browser.shot("dialog-help").await;
    for _ in 0..4 {
        browser.press(TAB).await;
        assert_eq!(browser.value("$('dialog').contains(document.activeElement)").await, true, "the focus stays inside");
    }
    browser.press("gt").await;
    assert_eq!(browser.value("location.pathname").await, "/ui/queues/c/dead-letters", "a dialog takes the keys");
    browser.press(ESCAPE).await;
    browser.gone("dialog").await;
    browser.press("gm").await;
    browser.see("@page-messages").await;
    browser.back().await;
    browser.see("@page-dead-letters").await;
    browser.close(&[]).await;
    server.stop().await;
}
