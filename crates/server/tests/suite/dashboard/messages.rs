//! Actions on waiting messages: one, some, and all that match.

use serde_json::json;

use super::browser::Browser;
use super::fixtures;

/// The counts of a queue: ready, in flight, delayed, dead.
async fn counts(server: &crate::test_server::TestServer) -> [u64; 4] {
    let stats = fixtures::stats(server, "orders").await;
    ["ready", "in_flight", "delayed", "dead"].map(|name| stats[name].as_u64().unwrap())
}

#[tokio::test]
async fn waiting_messages_are_found_and_acted_on() {
    let server = fixtures::server().await;
    let mut ids = Vec::new();
    for number in 0..12 {
        let tenant = if number % 2 == 0 { "acme" } else { "north" };
        let mut new = json!({ "body": format!("order {number}"), "headers": { "tenant": tenant } });
        if number >= 6 {
            new["delay"] = json!("1h");
        }
        ids.push(fixtures::send(&server, "orders", new).await.as_str().unwrap().to_owned());
    }
    fixtures::receive(&server, "orders", 1, "press-1").await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders/messages").await;
    browser.count("@message-row", 12).await;
    browser.reads("@count-ready", "5").await;
    browser.reads("@count-delayed", "6").await;
    browser.reads("@count-in-flight", "1").await;
    browser.shot("messages-actions").await;
    let has = async |css: &str| browser.value(&format!("$('{css}') !== null")).await == true;
    let row = |at: usize, button: &str| format!("@message-row[data-key=\"{}\"] @{button}", ids[at]);
    assert!(!has(&row(0, "row-delete")).await, "a leased message stays with its worker");
    assert!(!has(&row(1, "row-deliver-now")).await, "it is due");

    // One, in its row and in its details.
    browser.click(&row(6, "row-deliver-now")).await;
    browser.reads("@toasts", "The message is due").await;
    assert_eq!(counts(&server).await, [6, 1, 5, 0]);
    browser.click(&row(1, "row-delete")).await;
    browser.confirm(&["removed for good", "[Delete]"]).await;
    browser.gone(&format!("@message-row[data-key=\"{}\"]", ids[1])).await;
    browser.click(&format!("@message-row[data-key=\"{}\"] .main-cell", ids[2])).await;
    browser.click("@dead-letter-one").await;
    browser.click("@dead-letter-start").await;
    browser.reads("dialog @problem", "The reason is missing").await;
    browser.fill("@death-reason", "by hand").await;
    browser.fill("@death-error", "the address is wrong").await;
    browser.shot("messages-dead-letter").await;
    browser.click("@dead-letter-start").await;
    browser.gone("dialog").await;
    let letters = fixtures::dead_letters(&server, "orders").await;
    assert_eq!((&letters[0]["id"], &letters[0]["reason"]), (&json!(ids[2]), &json!("by hand")));
    assert_eq!(letters[0]["error"], "the address is wrong");

    // The text filter applies to the shown messages only, so bulk actions are hidden.
    browser.fill("@filter", "order 7").await;
    browser.count("@message-row", 1).await;
    browser.gone("@delete-all").await;
    browser.fill("@filter", "").await;
    browser.see("@delete-all").await;

    // Filters and states are links.
    browser.click("@state-delayed").await;
    browser.until("location.search === '?state=delayed'").await;
    browser.count("@message-row", 5).await;
    browser.fill("@filter-header", "tenant=acme").await;
    browser.count("@message-row", 2).await;
    let address = browser.value("location.pathname + location.search").await;
    browser.open(address.as_str().unwrap()).await;
    browser.count("@message-row", 2).await;
    browser.shot("messages-filtered").await;

    // All that match: a preview, then a job.
    browser.click("@deliver-now-all").await;
    browser.reads("@bulk-count", "2").await;
    assert_eq!(counts(&server).await, [4, 1, 5, 1], "a preview changes nothing");
    browser.shot("messages-bulk").await;
    browser.click("@bulk-start").await;
    browser.reads("@job-text", "Done: 2 of 2").await;
    browser.press(super::browser::ESCAPE).await;
    browser.gone("dialog").await;
    assert_eq!(counts(&server).await, [6, 1, 3, 1]);
    browser.see("@empty-filter").await;
    browser.click("@clear-filters").await;

    // Some: the leased one is skipped.
    browser.count("@message-row", 10).await;
    browser.click("@select-all").await;
    browser.reads("@selection", "10 selected").await;
    browser.click("@selection-delete").await;
    browser.reads("@bulk-count", "9").await;
    browser.reads("@bulk-skipped-count", "1").await;
    browser.click("@bulk-start").await;
    browser.reads("@job-text", "Done: 9 of 10, 1 skipped").await;
    assert_eq!(counts(&server).await, [0, 1, 0, 1]);
    let actions: Vec<_> = fixtures::audit(&server).await.into_iter().map(|(action, ..)| action).collect();
    assert_eq!(
        actions,
        ["delete_messages", "deliver_messages_now", "dead_letter_message", "delete_message", "deliver_message_now"]
    );
    browser.close(&[]).await;
    server.stop().await;
}
