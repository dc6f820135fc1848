//! `postrider queues`, `stats`, `peek`, `purge`, `pause`, `resume`

use serde_json::{Value, json};

use crate::scratch::{PROGRAM, Scratch, text};

#[test]
fn queues_are_listed_by_name() {
    let scratch = Scratch::new();
    assert_eq!(scratch.rows(&["queues"]), Vec::<Value>::new());
    for queue in ["b", "a"] {
        scratch.send(&[queue, "1"]);
    }
    assert_eq!(scratch.rows(&["queues"]), [json!({"queue": "a"}), json!({"queue": "b"})]);
    assert_eq!(scratch.run(&["queues"]).done().stdout, "a\nb\n");
}

#[test]
fn stats_count_the_messages_of_a_queue() {
    let scratch = Scratch::new();
    scratch.dead_letter("orders", "0", "poison");
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    scratch.send(&["orders", "later", "--delay", "1h"]);
    scratch.receive(&["orders"]);
    scratch.send(&["mail", "1"]);
    let mut rows = scratch.rows(&["stats"]);
    let age = rows[1]["oldest_age_seconds"].take().as_f64().unwrap();
    assert!((0.0..600.0).contains(&age));
    assert_eq!(
        rows[1],
        json!({"queue": "orders", "ready": 2, "in_flight": 1, "delayed": 1, "dead": 1, "oldest_age_seconds": null,
               "paused": false, "approximate": []})
    );
    assert_eq!((rows.len(), &rows[0]["queue"]), (2, &json!("mail")));
    let table = scratch.run(&["stats"]).done().stdout;
    let cells: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[0], ["QUEUE", "READY", "IN", "FLIGHT", "DELAYED", "DEAD", "OLDEST"]);
    assert_eq!(cells[2][..5], ["orders", "2", "1", "1", "1"]);
}

#[test]
fn a_missing_queue_is_a_failure_with_a_suggestion() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
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
        for (queue, advice) in [("ordres", "did you mean 'orders'?"), ("mails", "'postrider queues' lists the queues")]
        {
            let run = scratch.run(&[command, &[queue]].concat()).failed(1);
            let noted = format!("postrider: there is no queue '{queue}'; {advice}\n");
            assert_eq!((run.stdout.as_str(), run.stderr), ("", noted), "{command:?}");
        }
        assert_eq!(scratch.run(&[command, &["orders"]].concat()).done().stderr, "", "{command:?}");
    }
    assert_eq!(scratch.run(&["queues"]).done().stdout, "orders\n");
}

#[test]
fn a_receiver_of_a_missing_queue_gets_one_notice() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    for wait in ["0s", "1ms"] {
        let run = scratch.run(&["receive", "ordres", "--wait", wait]).done();
        assert_eq!(run.stderr, "postrider: there is no queue 'ordres' yet; did you mean 'orders'?\n");
        assert_eq!(scratch.run(&["receive", "orders", "--wait", wait, "--visibility", "1ms"]).done().stderr, "");
    }
    let noted = "queue 'ordres' is new, and nothing was sent to it yet; did you mean 'orders'?";
    let run = scratch.run(&["work", "ordres", "--drain", "--", "true"]).done();
    assert_eq!(run.stderr.matches(noted).count(), 1, "{run:?}");
    let run = scratch.run(&["work", "ordres", "--drain", "--", "true"]).done();
    assert!(!run.stderr.contains("is new"), "{run:?}");
}

#[test]
fn peek_shows_messages_and_leases_none() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines", "--key", "c7", "--header", "a=1"], b"1\n2\n3\n").done();
    let rows = scratch.rows(&["peek", "orders", "--max", "2"]);
    assert_eq!(rows.iter().map(|row| text(&row["body"])).collect::<Vec<_>>(), ["1", "2"]);
    let row = &rows[0];
    assert_eq!((&row["state"], &row["receive_count"]), (&json!("PENDING"), &json!(0)));
    assert_eq!((&row["ordering_key"], &row["headers"]), (&json!("c7"), &json!({"a": "1"})));
    assert_eq!((&row["priority"], &row["last_error"]), (&json!(4), &Value::Null));
    assert_eq!(scratch.row(&["stats", "orders"])["ready"], 3);
    scratch.run_with(&["send", "odd"], "tab\there \u{1b}[2J and much, much, much more than fits".as_bytes()).done();
    let table = scratch.run(&["peek", "odd"]).done().stdout;
    assert!(table.contains(r"tab\there \u{1b}[2J and much, much, muc…"), "{table}");
}

#[test]
fn peek_shows_when_a_message_is_due() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "later", "--delay", "3h"]);
    scratch.send(&["orders", "now"]);
    let table = scratch.run(&["peek", "orders"]).done().stdout;
    let names: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(names, ["ID", "STATE", "AGE", "DUE", "DELIVERIES", "KEY", "BODY"]);
    let line = |body: &str| table.lines().find(|line| line.ends_with(body)).unwrap().to_owned();
    assert!(line("later").contains("  in 3h ") && line("now").contains("  now "), "{table}");
}

#[test]
fn purge_leaves_leases_and_dead_letters() {
    let scratch = Scratch::new();
    scratch.dead_letter("orders", "0", "poison");
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    let receipt = scratch.receive(&["orders"]);
    assert_eq!(scratch.row(&["purge", "orders", "--yes"]), json!({"queue": "orders", "purged": 2}));
    scratch.run(&["ack", &receipt]).done();
    let stats = scratch.row(&["stats", "orders"]);
    assert_eq!((&stats["ready"], &stats["dead"]), (&json!(0), &json!(1)));
    let run = scratch.run(&["purge", "orders_dlq"]).failed(2);
    assert!(run.stderr.contains("use 'postrider dlq purge orders'"), "{run:?}");
}

#[test]
fn a_removal_asks_for_confirmation_on_a_terminal() {
    let scratch = Scratch::new();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    let ask = |answer: &str, args: &str| {
        // `script` gives the program a terminal.
        let mut command = scratch.command("sh");
        let program = format!("echo {answer} | script -qec '{PROGRAM} {args}' /dev/null");
        let output = command.args(["-c", &program]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, printed) = ask("n", "purge orders");
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("Remove 3 messages from 'orders' for good? [y/N]"), "{printed}");
    assert_eq!(scratch.row(&["stats", "orders"])["ready"], 3);
    let (code, printed) = ask("n", "purge orders --yes");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("3 messages were removed"), "{printed}");

    scratch.dead_letter("orders", "1", "poison");
    let (code, printed) = ask("y", "dlq purge orders --reason poison");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("Remove 1 dead letter of 'orders' for good? [y/N]"), "{printed}");
    assert_eq!(scratch.row(&["stats", "orders"])["dead"], 0);
}

#[test]
fn a_paused_queue_delivers_nothing_until_it_is_resumed() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "1"]);
    assert_eq!(scratch.row(&["pause", "orders"]), json!({"queue": "orders", "paused": true}));
    for wait in ["0s", "1ms"] {
        let run = scratch.run(&["receive", "orders", "--wait", wait]).done();
        assert!(
            run.stdout.is_empty() && run.stderr.contains("queue 'orders' is paused; 'postrider resume orders'"),
            "{run:?}"
        );
    }
    assert_eq!(scratch.row(&["stats", "orders"])["paused"], true);
    assert!(scratch.run(&["stats"]).done().stdout.trim_end().ends_with("paused"));
    scratch.send(&["orders", "2"]);
    assert_eq!(scratch.row(&["resume", "orders"]), json!({"queue": "orders", "paused": false}));
    assert_eq!(scratch.rows(&["receive", "orders", "--max", "5"]).len(), 2);
}

#[test]
fn queues_are_created_and_deleted_with_their_messages() {
    let scratch = Scratch::new();
    scratch.dead_letter("orders", "0", "poison");
    scratch.send(&["orders", "1"]);
    let outcomes = scratch.run(&["--json", "queues", "create", "orders", "mail"]).done().outcomes();
    assert_eq!(outcomes, ["existed", "created"]);
    assert_eq!(scratch.run(&["queues"]).done().stdout, "mail\norders\n");

    let mut command = scratch.command("sh");
    let program = format!("echo n | script -qec '{PROGRAM} queues delete orders' /dev/null");
    let output = command.args(["-c", &program]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("Delete 'orders' with 1 message and 1 dead letter for good? [y/N]"), "{printed}");

    let run = scratch.run(&["--json", "queues", "delete", "orders", "nowhere", "mail", "--yes"]).failed(1);
    assert_eq!(run.outcomes(), ["deleted", "not_found", "deleted"]);
    assert_eq!(scratch.rows(&["queues"]), Vec::<Value>::new());
    scratch.send(&["orders", "new"]);
    assert_eq!(scratch.row(&["stats", "orders"])["dead"], 0);
    scratch.run(&["queues", "create", "orders_dlq"]).failed(2);
}

#[test]
fn a_created_file_is_announced_once() {
    let scratch = Scratch::new();
    let run = scratch.run(&["queues"]).done();
    assert_eq!(run.stderr, format!("postrider: created {}\n", scratch.file("queues.db").display()));
    assert_eq!(scratch.run(&["queues"]).done().stderr, "");
    let other = format!("sqlite:{}", scratch.file("other.db").display());
    assert!(scratch.run(&["migrate", &other, "--dry-run"]).done().stderr.is_empty());
    assert!(scratch.run(&["migrate", &other]).done().stderr.contains("created "));
}
