use postrider_core::{Capabilities, MemoryStore};

use super::record::Record;
use super::*;
use crate::broken::{Fault, SimulatedStore};
use crate::storm::StormSettings;

const NAMES: QueueNames = QueueNames { longest: 47, capitals: false, dots: false, hyphens: true, apart_by_case: false };

fn section(capabilities: Capabilities, outcomes: &[(&'static str, Outcome)]) -> Section {
    let outcome = |name| outcomes.iter().find(|(named, _)| *named == name).map_or(Outcome::Holds, |(_, o)| o.clone());
    let test = |known: Known| TestReport { rule: known.rule, name: known.name, outcome: outcome(known.name) };
    let tests = all_tests().into_iter().map(test).collect();
    Section { report: Report::new(capabilities, 7, tests, None), queue_names: NAMES, tried: "On paper.".into() }
}

fn has(page: &str, line: &str) {
    assert!(page.lines().any(|found| found == line), "no line '{line}' in\n{page}");
}

#[test]
fn results_are_on_the_page() {
    let paper = Capabilities::native("paper")
        .with(Feature::Fencing, Support::emulated("a second look at\neach sheet"))
        .with(Feature::WakeUp, Support::emulated("a timer polls"))
        .with(Feature::Priority, Support::refused("sheets are alike"))
        .with(Feature::Recovery, Support::refused("there is nothing to lose."));
    let refused = Outcome::Refused("there is nothing to lose.".into());
    let outcomes = [
        ("l1_an_accepted_message_survives_a_restart", refused.clone()),
        ("l14_nothing_accepted_is_lost_over_a_restart", refused.clone()),
        ("l14_a_lease_from_before_a_restart_is_never_another_messages", refused.clone()),
        ("l14_a_waiting_receive_outlasts_a_restart", refused),
        ("l2_concurrent_receivers_share_nothing", Outcome::Broken("two had one sheet".into())),
        ("l9_an_undecodable_message_dies_alone_with_its_bytes", Outcome::NotExercised("no ink".into())),
        ("l13_peek_leases_nothing", Outcome::NotExercised("no access".into())),
        ("l11_a_look_does_not_change_the_order_of_a_key", Outcome::NotExercised("no access".into())),
    ];
    let stone = section(Capabilities::native("stone"), &[]);
    let page = page(&[section(paper, &outcomes), stone]);

    has(&page, "| | rule | paper | stone |");
    has(&page, r"| L1 | durable send | native\* | native |");
    has(&page, "| L2 | one lease | **broken** | native |");
    has(&page, "| L3 | fencing | emulated | native |");
    has(&page, "| L9 | bad bytes | not exercised | native |");
    has(&page, r"| L13 | honest capabilities | holds\* | holds |");
    has(&page, "| L14 | recovery | refused | native |");
    has(&page, "| one lease at a time | **broken** | native |");
    has(&page, "| peek | not exercised | native |");
    has(&page, "| priority | refused | native |");
    has(&page, "| wake-up hints | emulated | native |");
    has(&page, "| largest body | 1 MiB | 1 MiB |");
    has(&page, "| longest name of a queue | 47 characters | 47 characters |");

    has(&page, "- **L1 durable send**: holds, in part untried.");
    has(&page, "  - `l1_an_accepted_message_survives_a_restart`: refused. There is nothing to lose.");
    has(&page, "- **L2 one lease**: broken. l2_concurrent_receivers_share_nothing: two had one sheet");
    has(&page, "- **L3 fencing**: emulated. A second look at each sheet.");
    has(&page, "- **L9 bad bytes**: not exercised. No ink.");
    has(&page, "- **L14 recovery**: refused. There is nothing to lose.");
    has(&page, "- **priority**: refused. Sheets are alike.");
    has(&page, "- **wake-up hints**: emulated. A timer polls.");
    assert!(page.contains("\n### stone\n\nOn paper.\n\nEverything is native.\n\n"), "{page}");
}

#[test]
fn a_section_is_the_same_after_it_was_recorded() {
    let paper = Capabilities::native("paper")
        .with(Feature::Peek, Support::emulated("a second look"))
        .with_limits(Limits { dedup_window: Some(Duration::from_secs(300)), ..Limits::default() });
    let mut written = section(paper, &[("l13_peek_leases_nothing", Outcome::NotExercised("no access".into()))]);
    written.report.left_behind = Some("a sheet".into());
    let text = serde_json::to_string(&Record::of(&written)).unwrap();
    let read: Record = serde_json::from_str(&text).unwrap();
    assert_eq!(read.into_section("paper").unwrap(), written);
}

#[test]
fn a_record_of_another_suite_is_refused() {
    let mut record = Record::of(&section(Capabilities::native("paper"), &[]));
    record.outcomes.insert("l17_there_is_no_such_rule".into(), Outcome::Holds);
    assert_eq!(record.into_section("paper").unwrap_err(), "the suite has no test l17_there_is_no_such_rule");
}

#[test]
fn a_rule_without_a_record_is_listed_as_untested() {
    let stone = section(Capabilities::native("stone"), &[]);
    let mut record = Record::of(&section(Capabilities::native("paper"), &[]));
    record.outcomes.retain(|name, _| !name.starts_with("l5_"));
    let paper = record.into_section("paper").unwrap();
    assert_eq!(holes(&[stone, paper], &[]), ["L5 on paper: none of its tests was exercised"]);
}

#[test]
fn a_test_that_was_not_run_is_listed_as_untested() {
    let name = "l13_peek_leases_nothing";
    let mut record = Record::of(&section(Capabilities::native("paper"), &[]));
    record.outcomes.remove(name);
    let paper = record.into_section("paper").unwrap();
    assert_eq!(holes(&[paper], &[]), [format!("L13 on paper: {name} was not run")]);

    let refuses = |why| {
        let paper = Capabilities::native("paper").with(Feature::Peek, Support::refused(why));
        section(paper, &[(name, Outcome::Refused("no light".into()))])
    };
    assert_eq!(holes(&[refuses("no light")], &[]), [] as [&str; 0]);
    let undeclared =
        format!("L13 on paper: {name} was refused for a reason that the capabilities do not declare: no light");
    assert_eq!(holes(&[refuses("no table")], &[]), [undeclared]);
}

#[test]
fn an_untried_test_must_be_accepted_with_its_reason() {
    let name = "l13_peek_leases_nothing";
    let paper = section(Capabilities::native("paper"), &[(name, Outcome::NotExercised("no light".into()))]);
    let untried = |store, why| [Untried { test: name, stores: store, why }];
    let hole = format!("L13 on paper: {name} was not exercised: no light");
    let found = |untried: &[Untried]| holes(std::slice::from_ref(&paper), untried);
    assert_eq!(found(&untried(&["paper"], "no light")), [] as [&str; 0]);
    assert_eq!(found(&untried(&["stone"], "no light")), [hole.as_str()]);
    assert_eq!(found(&untried(&["paper"], "no table")), [hole.as_str()]);
    let stone = section(Capabilities::native("stone"), &[]);
    let tried = format!("L13 on stone: {name} is listed as untried, but was tried");
    assert_eq!(holes(&[stone], &untried(&["stone"], "no light")), [tried]);
    let gone = Untried { test: "l9_gone", stores: &["stone"], why: "no light" };
    assert_eq!(holes(&[], &[gone]), ["l9_gone is listed as untried, but is not a test"]);

    let test = "l9_an_undecodable_message_dies_alone_with_its_bytes";
    let paper = section(Capabilities::native("paper"), &[(test, Outcome::NotExercised("no ink".into()))]);
    assert_eq!(
        holes(&[paper], &[Untried { test, stores: &["paper"], why: "no ink" }]),
        ["L9 on paper: none of its tests was exercised"]
    );
}

#[test]
fn limits_are_shown_in_common_units() {
    let limits = Limits {
        max_body_bytes: 256 * 1024,
        max_header_bytes: 1000,
        max_delay: Duration::from_secs(15 * 60),
        time_resolution: Duration::from_secs(1),
        dedup_window: Some(Duration::from_secs(300)),
        ..Limits::default()
    };
    let page = page(&[section(Capabilities::native("cloud").with_limits(limits), &[])]);
    has(&page, "| largest body | 256 KiB |");
    has(&page, "| all names and values of headers together | 1000 bytes |");
    has(&page, "| longest delay of a send or a retry | 15m |");
    has(&page, "| unit of time, rounded up to | 1s |");
    has(&page, "| a dedup key is taken | for 5m after its send |");
    has(&page, "| `Orders` and `orders` | refused |");
    has(
        &page,
        "- A queue's name has 1 to 80 characters of `[A-Za-z0-9_.-]` and does not end in `_dlq`, which is the \
         ending of its dead letters; `.` and `..` are refused. Names of `[a-z][a-z0-9_]{0,39}` can be moved to every provider.",
    );
    has(&page, "- An ordering key or a dedup key has 1 to 128 bytes.");
}

#[test]
fn every_rule_has_a_promise_and_every_test_is_named() {
    let page = page(&[]);
    for rule in Rule::ALL {
        has(&page, &format!("- **{rule}, {}.** {}", rule.title(), rule.promise()));
        assert!(all_tests().iter().any(|test| test.rule == rule), "{rule}");
    }
    for test in all_tests() {
        assert!(page.contains(&format!("`{}`", test.name)), "{}", test.name);
    }
    for feature in Feature::ALL {
        assert!(tests_of(*feature).next().is_some(), "nothing shows {feature}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_rule_is_shown_as_broken() {
    let settings = || Settings {
        seed: 7,
        rules: vec![Rule::L3],
        storm: StormSettings { messages: 0, ..StormSettings::default() },
        ..Settings::default()
    };
    let lawful = Section::of(SimulatedStore::lawful(), settings(), "").await.unwrap();
    has(&page(&[lawful]), r"| L3 | fencing | native\* |");
    let broken = SimulatedStore::with_fault(Fault::IgnoresToken);
    let broken = Section::of(broken, settings(), "").await.unwrap();
    has(&page(&[broken]), "| L3 | fencing | **broken** |");
}

#[tokio::test]
async fn names_are_tried_and_their_queues_removed() {
    use postrider_core::{Deadline, QueueAdmin};
    let provider = MemoryStore::new().open();
    let names = QueueNames::try_on(&provider, "try").await.unwrap();
    let all = QueueNames { longest: 80, capitals: true, dots: true, hyphens: true, apart_by_case: true };
    assert_eq!(names, all);
    assert_eq!(provider.list_queues(Deadline::default()).await.unwrap(), []);
}
