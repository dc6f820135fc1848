//! Bodies that are slow to render: deeply nested, or a megabyte on one line.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::browser::Browser;
use super::fixtures;

/// Time bound, generous for a busy machine.
const BOUND: Duration = Duration::from_secs(30);

/// Upper bound of the characters of a code block.
const SHOWN: usize = 400_000;

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

fn nested_objects(levels: usize) -> String {
    format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels))
}

#[tokio::test]
async fn deep_and_long_bodies_are_shown_in_bounded_time() {
    let server = fixtures::server().await;
    let mebibyte = 1024 * 1024;
    let bodies = [
        ("arrays of 28 KB", nested(14_000), true),
        ("arrays of 1 MB", nested(mebibyte / 2 - 8), true),
        ("objects of 1 MB", nested_objects(170_000), true),
        ("numbers of 1 MB", format!("[{}1]", "1,".repeat(mebibyte / 2 - 8)), true),
        ("a text of 1 MB", json!("x".repeat(mebibyte - 16)).to_string(), true),
        ("a line of 1 MB", "y".repeat(mebibyte - 16), false),
        ("half of an array", "[".repeat(500_000), false),
    ];
    let mut ids = Vec::new();
    for (at, (name, body, _)) in bodies.iter().enumerate() {
        let new = json!({ "body": body, "headers": { "name": name } });
        ids.push(fixtures::send(&server, &format!("bodies-{at}"), new).await.as_str().unwrap().to_owned());
    }
    let browser = Browser::start(&server).await;
    for (at, ((name, body, is_json), id)) in bodies.iter().zip(&ids).enumerate() {
        let began = Instant::now();
        browser.open(&format!("/ui/queues/bodies-{at}/messages?id={id}")).await;
        browser.until("$('@payload-text')?.textContent.length > 0").await;
        assert!(began.elapsed() < BOUND, "{name} took {:?}", began.elapsed());
        let pressed = browser.value("$('@payload [aria-pressed=true]').innerText").await;
        assert_eq!(pressed, if *is_json { "Pretty" } else { "Raw" }, "{name}");
        for view in ["raw", "base64"] {
            browser.click(&format!("@payload-{view}")).await;
            browser.until(&format!("$('@payload-{view}').ariaPressed === 'true'")).await;
            let shown = browser.value("$('@payload-text').textContent.length").await.as_u64().unwrap();
            assert!(shown > 0 && shown as usize <= SHOWN, "{name}: {shown} characters in {view}");
        }
        browser.click("@payload-raw").await;
        assert_eq!(browser.value("$('@payload-text').textContent.slice(0, 1000)").await, body[..1000.min(body.len())]);
        let elements = browser.value("document.querySelectorAll('*').length").await.as_u64().unwrap();
        assert!(elements < 10_000, "{name}: {elements} elements");
        if body.len() > SHOWN {
            browser.reads("@payload-rest", "of ").await;
            browser.click("@payload-more").await;
            browser.until("$('@payload-text').textContent.length > 200000").await;
        }
        assert!(began.elapsed() < 3 * BOUND, "{name} took {:?}", began.elapsed());
    }
    browser.open(&format!("/ui/queues/bodies-0/messages?id={}", ids[0])).await;
    browser.see("@payload-text").await;
    browser.shot("body-nested").await;
    let fits = "document.documentElement.scrollWidth <= innerWidth && $('@message-table').scrollWidth <= $('@message-table').parentElement.clientWidth";
    assert_eq!(browser.value(fits).await, true, "the page scrolls sideways");
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_deep_body_is_edited_and_invalid_json_is_refused_with_its_position() {
    let server = fixtures::server().await;
    let deep = nested(14_000);
    fixtures::dead_letter(&server, "orders", &[(&deep, "too deep"), ("{\"order\": 7,\n \"litres\": 2}", "no litres")])
        .await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders/dead-letters?fingerprint=too+deep").await;
    browser.click("@dead-letter-row").await;
    let began = Instant::now();
    browser.click("@edit-retry").await;
    browser.click("@editor-format").await;
    browser.click("@editor-review").await;
    browser.see("@diff-body").await;
    assert!(began.elapsed() < BOUND, "it took {:?}", began.elapsed());
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;

    browser.open("/ui/queues/orders/dead-letters?fingerprint=no+litres").await;
    browser.click("@dead-letter-row").await;
    browser.click("@edit-retry").await;
    browser.fill("@editor-body", "{\"order\": 7,\n \"litres\" 3}").await;
    browser.reads("@editor-hint", "line 2, column 11").await;
    browser.click("@editor-review").await;
    browser.reads("dialog @problem-detail", "line 2, column 11").await;
    assert_eq!(browser.value("$('@editor-body').value.slice($('@editor-body').selectionStart)").await, "3}");
    browser.shot("dialog-edit-spoiled").await;
    // With another content type it is accepted.
    browser.fill("@editor-content-type", "text/plain").await;
    browser.click("@editor-review").await;
    browser.click("@editor-save").await;
    browser.gone("dialog").await;
    let letters = fixtures::dead_letters(&server, "orders").await;
    let saved = letters.iter().find(|letter| letter["error"] == "no litres").unwrap();
    assert_eq!(
        (&saved["content_type"], &saved["body"]),
        (&json!("text/plain"), &json!("{\"order\": 7,\n \"litres\" 3}"))
    );
    browser.close(&[]).await;
    server.stop().await;
}
