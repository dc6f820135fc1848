//! Thousands of dead letters and hundreds of queues: pages stay small and fast, and a search covers all of them.

use std::time::Duration;

use tokio::time::Instant;

use super::browser::Browser;
use super::fixtures;
use crate::many_dead_letters::{KINDS, dead_letter_many, ensure_many};
use crate::test_server::TestServer;

/// Time bound, generous for a busy machine and an unoptimized program.
const BOUND: Duration = Duration::from_secs(60);

const LETTERS: usize = 20_000;
const QUEUES: usize = 200;

async fn check(browser: &Browser, name: &str) {
    let rows = browser.value("$$('tbody tr').length").await.as_u64().unwrap();
    let height = browser.value("document.documentElement.scrollHeight").await.as_u64().unwrap();
    let width = browser.value("document.documentElement.scrollWidth <= innerWidth").await;
    let elements = browser.value("document.querySelectorAll('*').length").await.as_u64().unwrap();
    assert!(
        rows <= 300 && height <= 40_000 && elements <= 20_000,
        "{name}: {rows} rows, {height} px, {elements} elements"
    );
    assert_eq!(width, true, "{name} scrolls sideways");
    browser.shot(name).await;
}

/// Whether elements overlap.
async fn overlapping(browser: &Browser, css: &str) -> bool {
    let script = format!(
        "(() => {{ const boxes = $$('{css}').map((one) => one.getBoundingClientRect()).filter((box) => box.width > 0); \
         return boxes.some((a, i) => boxes.some((b, j) => i < j && a.left < b.right - 1 && b.left < a.right - 1 && \
         a.top < b.bottom - 1 && b.top < a.bottom - 1)); }})()"
    );
    browser.value(&script).await == true
}

#[tokio::test]
async fn twenty_thousand_dead_letters_and_two_hundred_queues_are_shown() {
    let server = TestServer::new().await;
    ensure_many(&server, QUEUES).await;
    dead_letter_many(&server, "orders", LETTERS).await;
    let browser = Browser::start(&server).await;

    let began = Instant::now();
    browser.open("/ui/queues/orders/dead-letters").await;
    browser.count("@group", KINDS).await;
    browser.count("@dead-letter-row", 100).await;
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    let counted = browser
        .value("$$('@group-count').map((one) => Number(one.innerText.replace(',', ''))).reduce((a, b) => a + b)")
        .await;
    assert_eq!(counted, LETTERS);
    assert!(!overlapping(&browser, "article.group > *").await);
    check(&browser, "triage").await;

    // The newest is on no loaded page, and is found.
    let began = Instant::now();
    browser.fill("@filter-error-contains", "litres is -19998.5").await;
    browser.count("@dead-letter-row", 1).await;
    browser.reads("@exit-badge", "exit 65").await;
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    let address = browser.value("location.pathname + location.search").await;
    browser.open(address.as_str().unwrap()).await;
    browser.count("@dead-letter-row", 1).await;
    browser.back().await;
    browser.click("@group:nth-child(2) @group-show").await;
    browser.until("location.search.includes('fingerprint=')").await;
    browser.count("@dead-letter-row", 100).await;
    browser.click("@next-page").await;
    browser.until("location.search.includes('after=')").await;
    browser.count("@dead-letter-row", 100).await;
    let kind = browser.value("new URLSearchParams(location.search).get('fingerprint')").await;
    let one = browser.text("@dead-letter-row @error-line").await;
    check(&browser, "triage-group").await;
    assert!(!one.is_empty() && kind.as_str().unwrap().contains('#'));

    // Everything that matches, with a preview.
    let began = Instant::now();
    browser.click("@group-redrive").await;
    browser.until("Number($('@bulk-count')?.innerText.replace(',', '')) > 6000").await;
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    browser.click("@purge-all").await;
    assert!(browser.question().await.contains("6,66"), "{}", browser.question().await);
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    assert_eq!(fixtures::stats(&server, "orders").await["dead"], LETTERS);

    let began = Instant::now();
    browser.open("/").await;
    browser.count("@queue-row", QUEUES).await;
    browser.reads("@next-page", "Next").await;
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    check(&browser, "overview-200").await;
    browser.click("@next-page").await;
    browser.count("@queue-row", 1).await;
    browser.fill("@filter", "queue-17").await;
    browser.count("@queue-row", 10).await;
    browser.until("location.search === '?q=queue-17'").await;
    browser.back().await;
    browser.until("location.search === '' && $('@filter').value === ''").await;

    for scheme in ["dark", "light"] {
        browser.prefers(scheme).await;
        browser.size(1280, 900).await;
        for (name, address, whole) in
            [("triage", "/ui/queues/orders/dead-letters", "@group ~ @group"), ("overview-200", "/", "@queue-row")]
        {
            browser.open(address).await;
            browser.see(whole).await;
            check(&browser, &format!("{name}-{scheme}")).await;
            browser.size(390, 844).await;
            browser.see(whole).await;
            assert!(!overlapping(&browser, "article.group > *, .filter-fields > *").await, "{name} at 390");
            check(&browser, &format!("{name}-{scheme}-390")).await;
            browser.size(1280, 900).await;
        }
    }
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn many_kinds_are_joined_and_a_draining_queue_is_not_growing() {
    let server = fixtures::server().await;
    // A kind is defined by its words, so each error has a different word.
    let word = |number: usize| ["tea", "milk", "rum", "rye", "soy", "gin"][number % 6].repeat(1 + number / 6);
    let errors: Vec<String> = (0..26).map(|number| format!("no {}", word(number))).collect();
    let letters: Vec<_> = errors.iter().map(|error| ("{}", error.as_str())).collect();
    fixtures::dead_letter(&server, "orders", &letters).await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/queues/orders/dead-letters").await;
    browser.count("@group", 20).await;
    browser.reads("@more-kinds", "6 more kinds of errors, 6 dead letters together").await;
    browser.count("@dead-letter-row", 26).await;

    let kinds = |ready: &str, now: usize| {
        let stats = format!("{{ queue: 'a', ready: {now}, dead: 0, paused: false, oldest_age_seconds: 1 }}");
        format!(
            "import('/assets/js/queue_health.js').then(({{ troubles }}) => \
             troubles({stats}, {{ ready: {ready} }}, 30).map((one) => one.kind).join())"
        )
    };
    for (ready, now, expected) in [
        ("[10, 200, 900, 1800, 1500, 1200, 900, 600]", 400, ""),
        ("[10, 200, 900, 1800]", 2400, "growing"),
        ("[10, 10, 10, 200]", 900, "growing"),
        ("[900, 900, 900, 900]", 900, ""),
    ] {
        assert_eq!(browser.value(&kinds(ready, now)).await, expected, "{ready} and now {now}");
    }

    // The heading counts one queue and the tasks.
    fixtures::dead_task(&server, "invoice.send", "{}", "no ink").await;
    browser.open("/").await;
    browser.see("@problem-tasks").await;
    assert_eq!(browser.text("@attention-count").await, "1 queue and tasks");
    browser.close(&[]).await;
    server.stop().await;
}
