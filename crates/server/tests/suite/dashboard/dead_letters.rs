//! Actions on dead letters: view, edit, redrive, purge.

use serde_json::{Value, json};

use super::browser::{Browser, ESCAPE};
use super::fixtures;
use crate::test_server::{TestServer, eventually};

async fn job(server: &TestServer) -> Value {
    server.get("/v1/jobs").await.of(200)["jobs"][0].clone()
}

#[tokio::test]
async fn one_is_edited_with_a_diff_and_redriven() {
    let server = fixtures::server().await;
    let body = "{\"order\": 12345678901234567890, \"litres\": -2}";
    fixtures::dead_letter(&server, "orders", &[(body, "litres is below zero"), ("{}", "no tea"), ("{}", "no tea")])
        .await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders/dead-letters").await;
    browser.count("@group", 2).await;
    browser.count("@dead-letter-row", 3).await;
    browser.click("[data-error^=litres] @group-show").await;
    browser.count("@dead-letter-row", 1).await;
    browser.until("location.search.includes('fingerprint=litres')").await;
    browser.click("@dead-letter-row").await;
    browser.reads("@payload-text", "12345678901234567890").await;
    browser.reads("@attempt", "litres is below zero").await;
    browser.shot("dead-letter-detail").await;

    browser.click("@edit-retry").await;
    browser.fill("@editor-body", "{\"order\": 12345678901234567890, \"litres\": 2}").await;
    browser.fill("@editor-headers", "customer: ben").await;
    browser.click("@editor-review").await;
    let shown = browser.text("@diff-body").await;
    assert!(shown.contains("\"litres\": -2") && shown.contains("\"litres\": 2"), "{shown}");
    let shown = browser.text("@diff-headers").await;
    assert!(shown.contains("anna") && shown.contains("ben"), "{shown}");
    browser.shot("dialog-edit-diff").await;
    browser.click("@editor-back").await;
    browser.see("@editor-body").await;
    assert_eq!(fixtures::dead_letters(&server, "orders").await.len(), 3, "a review saves nothing");
    browser.click("@editor-review").await;
    browser.click("@editor-save-redrive").await;
    browser.gone("dialog").await;
    let back = server.get("/v1/queues/orders/messages").await.of(200)["messages"].clone();
    assert_eq!(back.as_array().unwrap().len(), 1);
    assert_eq!(back[0]["body"], "{\"order\": 12345678901234567890, \"litres\": 2}");
    assert_eq!(back[0]["headers"], json!({ "customer": "ben" }));
    assert_eq!(fixtures::dead_letters(&server, "orders").await.len(), 2);
    let log = fixtures::audit(&server).await;
    let actions: Vec<_> = log.iter().map(|(action, ..)| action.as_str()).collect();
    assert_eq!(actions, ["redrive_dead_letters", "edit_dead_letter"]);
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_group_is_redriven_at_a_rate_with_progress() {
    let server = fixtures::server().await;
    fixtures::dead_letter(&server, "orders", &[("{}", "POST /pay timed out"); 40]).await;
    fixtures::dead_letter(&server, "orders", &[("{}", "no tea"); 3]).await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders/dead-letters").await;
    browser.click("[data-error^=POST] @group-redrive").await;
    browser.reads("@bulk-count", "40").await;
    browser.reads("@bulk-start", "Redrive 40 messages").await;
    assert_eq!(fixtures::stats(&server, "orders").await["dead"], 43, "a preview changes nothing");
    browser.fill("@bulk-rate", "4").await;
    browser.shot("dialog-redrive").await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'running' && $('@job-progress').value >= 2").await;
    browser.shot("dialog-job").await;
    assert_eq!(job(&server).await["state"], "running");
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    browser.reads("@jobs-button", "1 job running").await;
    browser.click("@jobs-button").await;
    browser.click("@job-cancel").await;
    browser.until("$('@job').dataset.state === 'canceled'").await;
    let ended = eventually(async || Some(job(&server).await).filter(|job| job["state"] == "canceled")).await;
    let done = ended["done"].as_u64().unwrap();
    assert!((2..40).contains(&done), "{ended}");
    let stats = fixtures::stats(&server, "orders").await;
    assert_eq!((&stats["ready"], &stats["dead"]), (&json!(done), &json!(43 - done)));
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;

    // The rest, without a rate and to another queue.
    browser.click("[data-error^=POST] @group-redrive").await;
    browser.fill("@bulk-to", "later").await;
    assert_eq!(browser.value("$('@bulk-start').disabled").await, true, "it is counted again for another queue");
    browser.reads("@bulk-start", &format!("Redrive {} messages", 40 - done)).await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    assert_eq!(fixtures::stats(&server, "later").await["ready"], 40 - done);
    assert_eq!(fixtures::stats(&server, "orders").await["dead"], 3);
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    browser.count("@dead-letter-row", 3).await;
    let log = fixtures::audit(&server).await;
    assert_eq!(log.iter().filter(|(action, ..)| action == "redrive_dead_letters").count(), 2, "{log:?}");
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn they_are_selected_purged_by_error_and_all_purged() {
    let server = fixtures::server().await;
    fixtures::dead_letter(&server, "orders", &[("{}", "no tea"); 110]).await;
    fixtures::dead_letter(&server, "orders", &[("{\"milk\": 1}", "no milk"); 4]).await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders/dead-letters").await;
    browser.count("@dead-letter-row", 100).await;
    browser.click("@next-page").await;
    browser.count("@dead-letter-row", 14).await;
    browser.until("location.search.includes('after=')").await;
    browser.back().await;
    browser.count("@dead-letter-row", 100).await;
    browser.fill("@filter", "milk").await;
    browser.count("@dead-letter-row", 4).await;
    browser.click("tr:nth-child(1) @select-row").await;
    browser.click("tr:nth-child(2) @select-row").await;
    browser.click("@selection-redrive").await;
    browser.reads("@bulk-count", "2").await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    let stats = fixtures::stats(&server, "orders").await;
    assert_eq!((&stats["ready"], &stats["dead"]), (&json!(2), &json!(112)));

    browser.click("[data-error='no milk'] @group-purge").await;
    browser.confirm(&["2 dead letters with this error", "[Purge 2 dead letters]"]).await;
    let left = fixtures::dead_letters(&server, "orders").await;
    assert!(left.len() == 110 && left.iter().all(|letter| letter["error"] == "no tea"));
    browser.reads("@purge-all", "Purge all that match").await;
    browser.click("@purge-all").await;
    assert!(browser.question().await.contains("There is nothing to remove"), "the filter applies");
    browser.press(ESCAPE).await;
    browser.gone("dialog").await;
    browser.fill("@filter", "").await;
    browser.count("@dead-letter-row", 100).await;
    browser.click("@purge-all").await;
    browser.confirm(&["110 dead letters of orders will be removed for good", "[Purge 110 dead letters]"]).await;
    browser.see("@empty-dead-letters").await;
    assert!(fixtures::dead_letters(&server, "orders").await.is_empty());
    assert_eq!(fixtures::stats(&server, "orders").await["ready"], 2, "waiting messages stay");
    let log = fixtures::audit(&server).await;
    let actions: Vec<_> = log.iter().map(|(action, _, outcome)| (action.as_str(), outcome.clone())).collect();
    assert_eq!(actions[0], ("purge_dead_letters", json!({ "purged": 110 })));
    assert_eq!(actions[1], ("purge_dead_letters", json!({ "purged": 2 })));
    browser.close(&[]).await;
    server.stop().await;
}
