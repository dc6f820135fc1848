//! `postrider queues`, `stats`, `peek`, `purge`, `pause`, `resume`

use serde_json::{Value, json};

use crate::place::{PROGRAM, Place, text};

#[test]
fn queues_are_listed_by_name() {
    let place = Place::new();
    assert_eq!(place.rows(&["queues"]), Vec::<Value>::new());
    for queue in ["b", "a"] {
        place.send(&[queue, "1"]);
    }
    assert_eq!(place.rows(&["queues"]), [json!({"queue": "a"}), json!({"queue": "b"})]);
    assert_eq!(place.run(&["queues"]).done().stdout, "a\nb\n");
}

#[test]
fn stats_count_what_a_queue_holds() {
    let place = Place::new();
    place.bury("orders", "0", "poison");
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    place.send(&["orders", "later", "--delay", "1h"]);
    place.receive(&["orders"]);
    place.send(&["mail", "1"]);
    let mut rows = place.rows(&["stats"]);
    let age = rows[1]["oldest_age_seconds"].take().as_f64().unwrap();
    assert!((0.0..600.0).contains(&age));
    assert_eq!(
        rows[1],
        json!({"queue": "orders", "ready": 2, "in_flight": 1, "delayed": 1, "dead": 1, "oldest_age_seconds": null,
               "paused": false, "approximate": []})
    );
    assert_eq!((rows.len(), &rows[0]["queue"]), (2, &json!("mail")));
    let table = place.run(&["stats"]).done().stdout;
    let cells: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[0], ["QUEUE", "READY", "IN", "FLIGHT", "DELAYED", "DEAD", "OLDEST"]);
    assert_eq!(cells[2][..5], ["orders", "2", "1", "1", "1"]);
}

#[test]
fn a_queue_that_is_not_there_is_a_failure_and_another_name_is_suggested() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    let commands = [
        &["stats"][..],
        &["peek"],
        &["purge", "--yes"],
        &["pause"],
        &["resume"],
        &["dlq", "list"],
        &["dlq", "redrive", "--all"],
        &["dlq", "purge", "--all", "--yes"],
    ];
    for command in commands {
        for (queue, advice) in
            [("ordres", "did you mean 'orders'?"), ("mails", "'postrider queues' lists those that there are")]
        {
            let run = place.run(&[command, &[queue]].concat()).failed(1);
            let told = format!("postrider: there is no queue '{queue}'; {advice}\n");
            assert_eq!((run.stdout.as_str(), run.stderr), ("", told), "{command:?}");
        }
        assert_eq!(place.run(&[command, &["orders"]].concat()).done().stderr, "", "{command:?}");
    }
    assert_eq!(place.run(&["queues"]).done().stdout, "orders\n");
}

#[test]
fn a_receiver_may_come_before_the_first_sender_and_is_told_so_once() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    for wait in ["0s", "1ms"] {
        let run = place.run(&["receive", "ordres", "--wait", wait]).done();
        assert_eq!(run.stderr, "postrider: there is no queue 'ordres' yet; did you mean 'orders'?\n");
        assert_eq!(place.run(&["receive", "orders", "--wait", wait, "--visibility", "1ms"]).done().stderr, "");
    }
    let told = "queue 'ordres' is new, nothing was ever sent to it; did you mean 'orders'?";
    let run = place.run(&["work", "ordres", "--drain", "--", "true"]).done();
    assert_eq!(run.stderr.matches(told).count(), 1, "{run:?}");
    let run = place.run(&["work", "ordres", "--drain", "--", "true"]).done();
    assert!(!run.stderr.contains("is new"), "{run:?}");
}

#[test]
fn peek_shows_messages_and_leases_none() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines", "--key", "c7", "--header", "a=1"], b"1\n2\n3\n").done();
    let rows = place.rows(&["peek", "orders", "--max", "2"]);
    assert_eq!(rows.iter().map(|row| text(&row["body"])).collect::<Vec<_>>(), ["1", "2"]);
    let row = &rows[0];
    assert_eq!((&row["state"], &row["receive_count"]), (&json!("PENDING"), &json!(0)));
    assert_eq!((&row["ordering_key"], &row["headers"]), (&json!("c7"), &json!({"a": "1"})));
    assert_eq!((&row["priority"], &row["last_error"]), (&json!(4), &Value::Null));
    assert_eq!(place.row(&["stats", "orders"])["ready"], 3);
    place.run_with(&["send", "odd"], "tab\there \u{1b}[2J and much, much, much more than fits".as_bytes()).done();
    let table = place.run(&["peek", "odd"]).done().stdout;
    assert!(table.contains(r"tab\there \u{1b}[2J and much, much, muc…"), "{table}");
}

#[test]
fn peek_shows_when_a_message_is_due() {
    let place = Place::new();
    place.send(&["orders", "later", "--delay", "3h"]);
    place.send(&["orders", "now"]);
    let table = place.run(&["peek", "orders"]).done().stdout;
    let names: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(names, ["ID", "STATE", "AGE", "DUE", "DELIVERIES", "KEY", "BODY"]);
    let line = |body: &str| table.lines().find(|line| line.ends_with(body)).unwrap().to_owned();
    assert!(line("later").contains("  in 3h ") && line("now").contains("  now "), "{table}");
}

#[test]
fn purge_leaves_leases_and_dead_letters() {
    let place = Place::new();
    place.bury("orders", "0", "poison");
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    let receipt = place.receive(&["orders"]);
    assert_eq!(place.row(&["purge", "orders", "--yes"]), json!({"queue": "orders", "purged": 2}));
    place.run(&["ack", &receipt]).done();
    let stats = place.row(&["stats", "orders"]);
    assert_eq!((&stats["ready"], &stats["dead"]), (&json!(0), &json!(1)));
    let run = place.run(&["purge", "orders_dlq"]).failed(2);
    assert!(run.stderr.contains("use 'postrider dlq purge orders'"), "{run:?}");
}

#[test]
fn a_terminal_is_asked_before_messages_are_removed() {
    let place = Place::new();
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    let ask = |answer: &str, args: &str| {
        // `script` gives the program a terminal.
        let mut command = place.command("sh");
        let program = format!("echo {answer} | script -qec '{PROGRAM} {args}' /dev/null");
        let output = command.args(["-c", &program]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = ask("n", "purge orders");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("Remove 3 messages from 'orders' for good? [y/N]"), "{said}");
    assert_eq!(place.row(&["stats", "orders"])["ready"], 3);
    let (code, said) = ask("n", "purge orders --yes");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("3 messages were removed"), "{said}");

    place.bury("orders", "1", "poison");
    let (code, said) = ask("y", "dlq purge orders --reason poison");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Remove 1 dead letter of 'orders' for good? [y/N]"), "{said}");
    assert_eq!(place.row(&["stats", "orders"])["dead"], 0);
}

#[test]
fn a_paused_queue_gives_nothing_until_it_goes_on() {
    let place = Place::new();
    place.send(&["orders", "1"]);
    assert_eq!(place.row(&["pause", "orders"]), json!({"queue": "orders", "paused": true}));
    for wait in ["0s", "1ms"] {
        let run = place.run(&["receive", "orders", "--wait", wait]).done();
        assert!(run.stdout.is_empty() && run.stderr.contains("queue 'orders' is paused and gives nothing"), "{run:?}");
    }
    assert_eq!(place.row(&["stats", "orders"])["paused"], true);
    assert!(place.run(&["stats"]).done().stdout.trim_end().ends_with("paused"));
    place.send(&["orders", "2"]);
    assert_eq!(place.row(&["resume", "orders"]), json!({"queue": "orders", "paused": false}));
    assert_eq!(place.rows(&["receive", "orders", "--max", "5"]).len(), 2);
}

#[test]
fn queues_are_made_and_deleted_with_everything_in_them() {
    let place = Place::new();
    place.bury("orders", "0", "poison");
    place.send(&["orders", "1"]);
    let outcomes = place.run(&["--json", "queues", "create", "orders", "mail"]).done().outcomes();
    assert_eq!(outcomes, ["existed", "created"]);
    assert_eq!(place.run(&["queues"]).done().stdout, "mail\norders\n");

    let mut command = place.command("sh");
    let program = format!("echo n | script -qec '{PROGRAM} queues delete orders' /dev/null");
    let output = command.args(["-c", &program]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("Delete 'orders' with 1 message and 1 dead letter for good? [y/N]"), "{said}");

    let run = place.run(&["--json", "queues", "delete", "orders", "nowhere", "mail", "--yes"]).failed(1);
    assert_eq!(run.outcomes(), ["deleted", "not_found", "deleted"]);
    assert_eq!(place.rows(&["queues"]), Vec::<Value>::new());
    place.send(&["orders", "new"]);
    assert_eq!(place.row(&["stats", "orders"])["dead"], 0);
    place.run(&["queues", "create", "orders_dlq"]).failed(2);
}

#[test]
fn a_file_that_is_made_is_told_once() {
    let place = Place::new();
    let run = place.run(&["queues"]).done();
    assert_eq!(run.stderr, format!("postrider: made {}\n", place.file("queues.db").display()));
    assert_eq!(place.run(&["queues"]).done().stderr, "");
    let other = format!("sqlite:{}", place.file("other.db").display());
    assert!(place.run(&["migrate", &other, "--dry-run"]).done().stderr.is_empty());
    assert!(place.run(&["migrate", &other]).done().stderr.contains("made "));
}
