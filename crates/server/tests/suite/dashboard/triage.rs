//! Dead letters by the thousand and queues by the hundred: pages stay small and quick, and a search is over all of them.

use std::time::Duration;

use tokio::time::Instant;

use super::browser::Browser;
use super::scene;
use crate::many_dead::{KINDS, bury_many, ensure_many};
use crate::place::Place;

/// Generous for a busy machine and a program that is not optimized.
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

/// Whether boxes of the page lie over each other.
async fn overlapping(browser: &Browser, css: &str) -> bool {
    let script = format!(
        "(() => {{ const boxes = $$('{css}').map((one) => one.getBoundingClientRect()).filter((box) => box.width > 0); \
         return boxes.some((a, i) => boxes.some((b, j) => i < j && a.left < b.right - 1 && b.left < a.right - 1 && \
         a.top < b.bottom - 1 && b.top < a.bottom - 1)); }})()"
    );
    browser.value(&script).await == true
}

#[tokio::test]
async fn twenty_thousand_letters_and_two_hundred_queues_stay_in_sight() {
    let place = Place::new().await;
    ensure_many(&place, QUEUES).await;
    bury_many(&place, "orders", LETTERS).await;
    let browser = Browser::start(&place).await;

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

    // The newest is on no page that was loaded, and is found.
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

    // Everything that matches, and first how much that is.
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
    assert_eq!(scene::stats(&place, "orders").await["dead"], LETTERS);

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
    place.stop().await;
}

#[tokio::test]
async fn many_kinds_are_folded_and_a_draining_queue_does_not_grow() {
    let place = scene::place().await;
    // A kind is its words, so each error has a word of its own.
    let word = |number: usize| ["tea", "milk", "rum", "rye", "soy", "gin"][number % 6].repeat(1 + number / 6);
    let errors: Vec<String> = (0..26).map(|number| format!("no {}", word(number))).collect();
    let letters: Vec<_> = errors.iter().map(|error| ("{}", error.as_str())).collect();
    scene::bury(&place, "orders", &letters).await;
    let browser = Browser::start(&place).await;
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
    for (ready, now, told) in [
        ("[10, 200, 900, 1800, 1500, 1200, 900, 600]", 400, ""),
        ("[10, 200, 900, 1800]", 2400, "growing"),
        ("[10, 10, 10, 200]", 900, "growing"),
        ("[900, 900, 900, 900]", 900, ""),
    ] {
        assert_eq!(browser.value(&kinds(ready, now)).await, told, "{ready} and now {now}");
    }

    // One queue and the tasks need attention, and that is what the heading counts.
    scene::dead_task(&place, "invoice.send", "{}", "no ink").await;
    browser.open("/").await;
    browser.see("@problem-tasks").await;
    assert_eq!(browser.text("@attention-count").await, "1 queue and tasks");
    browser.close(&[]).await;
    place.stop().await;
}
