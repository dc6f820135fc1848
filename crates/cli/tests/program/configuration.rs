//! `postrider config`, `migrate` and `doctor`

use serde_json::{Value, json};

use crate::place::{Place, text};

#[test]
fn config_says_where_each_value_comes_from() {
    let place = Place::bare().with("POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE", "50");
    std::fs::write(place.file("postrider.toml"), "[common.messaging]\ndefault_batch_size = 5\n").unwrap();
    let rows = place.rows(&["config", "--url", "amqp://ann:secret@host/"]);
    let row = |key: &str| rows.iter().find(|row| row["key"] == format!("common.messaging.{key}")).unwrap();
    for (key, value, source) in [
        ("default_batch_size", "5", "postrider.toml:2:1"),
        ("max_batch_size", "50", "POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE"),
        ("url", "amqp://ann:***@host/", "--url"),
        ("create_queues", "true", "default"),
    ] {
        assert_eq!((text(&row(key)["value"]).as_str(), text(&row(key)["source"]).as_str()), (value, source), "{key}");
    }
    assert_eq!(row("sqlite.path")["value"], Value::Null);
    assert_eq!(text(&row("create_queues")["meaning"]), "Whether a send creates a queue that is missing.");
    let run = place.run(&["config", "--url", "amqp://ann:secret@host/"]).done();
    assert!(!run.stdout.contains("secret"), "{}", run.stdout);
}

#[test]
fn config_shows_a_part() {
    let place = Place::bare();
    insta::assert_snapshot!("config", place.run(&["config", "common.messaging.sqlite"]).done().seen());
    insta::assert_snapshot!("config_section", place.run(&["config", "common.retry.limits"]).done().seen());
    insta::assert_snapshot!("config_no_key", place.run(&["config", "retry"]).failed(2).seen());
}

#[test]
fn config_has_no_long_lines_and_can_be_asked_for_what_was_changed() {
    let place = Place::bare().with("POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE", "50");
    let all = place.run(&["config"]).done().stdout;
    let longest = all.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!(longest.chars().count() <= 110, "{longest}");
    // What is said and is the default is no change.
    std::fs::write(place.file("postrider.toml"), "[common.messaging]\ndefault_batch_size = 5\ncreate_queues = true\n")
        .unwrap();
    let changed = place.run(&["config", "--changed"]).done().stdout;
    let cells: Vec<Vec<_>> = changed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        cells,
        [
            vec!["KEY", "VALUE", "SOURCE"],
            vec!["common.messaging.default_batch_size", "5", "postrider.toml:2:1"],
            vec!["common.messaging.max_batch_size", "50", "POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE"],
        ]
    );
    let keys: Vec<_> = place.rows(&["config", "--changed"]).iter().map(|row| text(&row["key"])).collect();
    assert_eq!(keys, ["common.messaging.default_batch_size", "common.messaging.max_batch_size"]);
    let run = Place::bare().run(&["config", "--changed"]).done();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", "postrider: every value is its default\n"));
}

#[test]
fn everything_that_is_wrong_is_told_by_every_command() {
    let place = Place::bare().with("POSTRIDER__COMMON__MESSAGING__MAX_BATCH", "50");
    std::fs::write(place.file("postrider.toml"), "[common.messaging]\ndefault_batch_size = 0\nprovder = 1\n").unwrap();
    let run = place.run(&["config"]).failed(2);
    insta::assert_snapshot!("config_wrong", run.seen());
    assert_eq!(place.run(&["send", "orders", "x"]).failed(2).stderr, run.stderr);
}

#[test]
fn without_any_configuration_the_embedded_file_is_used() {
    let place = Place::bare();
    let id = place.send(&["orders", "hello"]);
    assert!(place.file(".local/share/postrider/postrider.db").is_file());
    assert_eq!(place.row(&["receive", "orders"])["id"], id.as_str());
}

#[test]
fn a_data_folder_that_cannot_be_made_is_told() {
    let place = Place::bare().with("XDG_DATA_HOME", "/proc/nowhere");
    insta::assert_snapshot!("no_data_folder", place.run(&["send", "orders", "x"]).failed(1).seen());
}

#[test]
fn migrations_are_listed_printed_and_applied() {
    let place = Place::new();
    let pending = place.rows(&["migrate", "--dry-run"]);
    assert_eq!(pending[0], json!({"migration": "0001_queue", "outcome": "pending"}));
    assert!(!place.file("queues.db").exists());
    assert!(text(&place.rows(&["migrate", "--print"])[0]["sql"]).contains("create table"));
    assert!(place.run(&["migrate", "--print"]).done().stdout.starts_with("-- 0001_queue\n"));
    let applied = place.rows(&["migrate"]);
    assert_eq!(applied.len(), pending.len());
    assert_eq!(applied[0], json!({"migration": "0001_queue", "outcome": "applied"}));
    let again = place.run(&["migrate"]).done();
    assert_eq!(again.stdout, "");
    assert!(again.stderr.contains("queues.db is up to date"), "{again:?}");
}

#[test]
fn a_store_that_must_not_migrate_itself_is_migrated_on_demand() {
    let place = Place::new().with("POSTRIDER__COMMON__MESSAGING__AUTO_MIGRATE", "false");
    insta::assert_snapshot!("not_migrated", place.run(&["send", "orders", "x"]).failed(1).seen());
    let url = format!("sqlite:{}", place.file("queues.db").display());
    place.run(&["migrate", &url]).done();
    place.send(&["orders", "x"]);
}

#[test]
fn doctor_says_what_is_wrong_and_what_to_do() {
    let place = Place::bare();
    let url = format!("sqlite:{}", place.file("mail.db").display());
    let missing = place.run(&["--json", "doctor", &url]).failed(1);
    let row: Value = serde_json::from_str(missing.stdout.trim()).unwrap();
    assert_eq!((&row["check"], &row["severity"]), (&json!("connection"), &json!("problem")));
    assert!(text(&row["fix"]).contains("postrider migrate"), "{row}");
    assert!(!place.file("mail.db").exists(), "an examination makes nothing");

    place.run(&["--url", &url, "send", "orders", "hello"]).done();
    let rows = place.rows(&["doctor", &url]);
    assert!(rows.iter().all(|row| row["severity"] == "fine" && row["fix"] == Value::Null), "{rows:?}");
    place.run(&["--url", &url, "pause", "orders"]).done();
    let rows = place.rows(&["doctor", &url]);
    let note = rows.iter().find(|row| row["severity"] == "note").unwrap();
    assert!(text(&note["fix"]).contains("postrider resume orders"), "{note}");
}
