//! `docs/guarantees.md` has the results of all stores, and no rule is left out on any of them.

use postrider_conformance::guarantees::{Section, Untried, holes, page};

use crate::pages::ensure_up_to_date;

/// In the order of the page.
const STORES: [&str; 8] = ["memory", "sqlite", "spool", "postgres", "mysql", "pgmq", "rabbitmq", "sqs"];

const KEY_OUTLIVES_ITS_MESSAGE: &str = "a dedup key is held for 300s here, also after its message has ended";

const UNTRIED: &[Untried] = &[
    // The workers are on one host and have its clock.
    Untried {
        test: "l16_a_workers_clock_moves_no_lease_and_no_due_time",
        stores: &STORES,
        why: "this harness cannot give a worker a wrong clock",
    },
    // SQS has a fixed window for dedup keys.
    Untried { test: "l1_a_dedup_key_is_free_again_after_its_message", stores: &["sqs"], why: KEY_OUTLIVES_ITS_MESSAGE },
    Untried {
        test: "l10_a_redrive_makes_no_second_message_for_a_dedup_key",
        stores: &["sqs"],
        why: KEY_OUTLIVES_ITS_MESSAGE,
    },
    Untried {
        test: "l10_a_redrive_takes_the_dedup_key_of_an_expired_message",
        stores: &["sqs"],
        why: KEY_OUTLIVES_ITS_MESSAGE,
    },
];

#[test]
#[ignore = "reads what the suites of all stores recorded; scripts/test runs it after them"]
fn guarantees_page_is_up_to_date() {
    let recorded = |store| Section::recorded(store).unwrap_or_else(|why| panic!("{why}"));
    let sections = STORES.map(recorded);
    let unlawful = |section: &&Section| !section.report.is_lawful() || section.report.left_behind.is_some();
    let broken: String = sections.iter().filter(unlawful).map(|section| section.report.to_string()).collect();
    assert!(broken.is_empty(), "\n{broken}");
    let holes = holes(&sections, UNTRIED);
    assert!(holes.is_empty(), "not every rule was tried on every store:\n{}", holes.join("\n"));
    ensure_up_to_date("guarantees.md", &page(&sections), "--test suite guarantees -- --ignored");
}
