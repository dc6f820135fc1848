//! `postrider config`, `migrate` and `doctor`

use serde_json::{Value, json};

use crate::scratch::{Scratch, text};

#[test]
fn config_shows_the_source_of_each_value() {
    let scratch = Scratch::bare().with("POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE", "50");
    std::fs::write(scratch.file("postrider.toml"), "[common.messaging]\ndefault_batch_size = 5\n").unwrap();
    let rows = scratch.rows(&["config", "--url", "amqp://ann:secret@host/"]);
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
    assert_eq!(text(&row("create_queues")["meaning"]), "Whether a send creates a missing queue.");
    let run = scratch.run(&["config", "--url", "amqp://ann:secret@host/"]).done();
    assert!(!run.stdout.contains("secret"), "{}", run.stdout);
}

#[test]
fn config_shows_a_part() {
    let scratch = Scratch::bare();
    insta::assert_snapshot!("config", scratch.run(&["config", "common.messaging.sqlite"]).done().seen());
    insta::assert_snapshot!("config_section", scratch.run(&["config", "common.retry.limits"]).done().seen());
    insta::assert_snapshot!("config_no_key", scratch.run(&["config", "retry"]).failed(2).seen());
}

#[test]
fn config_has_no_long_lines_and_can_list_only_changes() {
    let scratch = Scratch::bare().with("POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE", "50");
    let all = scratch.run(&["config"]).done().stdout;
    let longest = all.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!(longest.chars().count() <= 110, "{longest}");
    // A value that equals the default is not a change.
    std::fs::write(
        scratch.file("postrider.toml"),
        "[common.messaging]\ndefault_batch_size = 5\ncreate_queues = true\n",
    )
    .unwrap();
    let changed = scratch.run(&["config", "--changed"]).done().stdout;
    let cells: Vec<Vec<_>> = changed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        cells,
        [
            vec!["KEY", "VALUE", "SOURCE"],
            vec!["common.messaging.default_batch_size", "5", "postrider.toml:2:1"],
            vec!["common.messaging.max_batch_size", "50", "POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE"],
        ]
    );
    let keys: Vec<_> = scratch.rows(&["config", "--changed"]).iter().map(|row| text(&row["key"])).collect();
    assert_eq!(keys, ["common.messaging.default_batch_size", "common.messaging.max_batch_size"]);
    let run = Scratch::bare().run(&["config", "--changed"]).done();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", "postrider: every value is the default\n"));
}

#[test]
fn every_command_reports_all_errors_of_the_configuration() {
    let scratch = Scratch::bare().with("POSTRIDER__COMMON__MESSAGING__MAX_BATCH", "50");
    std::fs::write(scratch.file("postrider.toml"), "[common.messaging]\ndefault_batch_size = 0\nprovder = 1\n")
        .unwrap();
    let run = scratch.run(&["config"]).failed(2);
    insta::assert_snapshot!("config_wrong", run.seen());
    assert_eq!(scratch.run(&["send", "orders", "x"]).failed(2).stderr, run.stderr);
}

#[test]
fn without_any_configuration_the_embedded_file_is_used() {
    let scratch = Scratch::bare();
    let id = scratch.send(&["orders", "hello"]);
    assert!(scratch.file(".local/share/postrider/postrider.db").is_file());
    assert_eq!(scratch.row(&["receive", "orders"])["id"], id.as_str());
}

#[test]
fn a_data_folder_that_cannot_be_created_is_reported() {
    let scratch = Scratch::bare().with("XDG_DATA_HOME", "/proc/nowhere");
    insta::assert_snapshot!("no_data_folder", scratch.run(&["send", "orders", "x"]).failed(1).seen());
}

#[test]
fn migrations_are_listed_printed_and_applied() {
    let scratch = Scratch::new();
    let pending = scratch.rows(&["migrate", "--dry-run"]);
    assert_eq!(pending[0], json!({"migration": "0001_queue", "outcome": "pending"}));
    assert!(!scratch.file("queues.db").exists());
    assert!(text(&scratch.rows(&["migrate", "--print"])[0]["sql"]).contains("create table"));
    assert!(scratch.run(&["migrate", "--print"]).done().stdout.starts_with("-- 0001_queue\n"));
    let applied = scratch.rows(&["migrate"]);
    assert_eq!(applied.len(), pending.len());
    assert_eq!(applied[0], json!({"migration": "0001_queue", "outcome": "applied"}));
    let again = scratch.run(&["migrate"]).done();
    assert_eq!(again.stdout, "");
    assert!(again.stderr.contains("queues.db is up to date"), "{again:?}");
}

#[test]
fn a_store_without_auto_migrate_is_migrated_on_demand() {
    let scratch = Scratch::new().with("POSTRIDER__COMMON__MESSAGING__AUTO_MIGRATE", "false");
    insta::assert_snapshot!("not_migrated", scratch.run(&["send", "orders", "x"]).failed(1).seen());
    let url = format!("sqlite:{}", scratch.file("queues.db").display());
    scratch.run(&["migrate", &url]).done();
    scratch.send(&["orders", "x"]);
}

#[test]
fn doctor_prints_problems_with_their_fixes() {
    let scratch = Scratch::bare();
    let url = format!("sqlite:{}", scratch.file("mail.db").display());
    let missing = scratch.run(&["--json", "doctor", &url]).failed(1);
    let row: Value = serde_json::from_str(missing.stdout.trim()).unwrap();
    assert_eq!((&row["check"], &row["severity"]), (&json!("connection"), &json!("problem")));
    assert!(text(&row["fix"]).contains("postrider migrate"), "{row}");
    assert!(!scratch.file("mail.db").exists(), "an examination makes nothing");

    scratch.run(&["--url", &url, "send", "orders", "hello"]).done();
    let rows = scratch.rows(&["doctor", &url]);
    assert!(rows.iter().all(|row| row["severity"] == "fine" && row["fix"] == Value::Null), "{rows:?}");
    scratch.run(&["--url", &url, "pause", "orders"]).done();
    let rows = scratch.rows(&["doctor", &url]);
    let note = rows.iter().find(|row| row["severity"] == "note").unwrap();
    assert!(text(&note["fix"]).contains("postrider resume orders"), "{note}");
}
