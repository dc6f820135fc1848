//! A folder as a store: commands, and other programs that put files into it and take them out.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::place::{Place, text};

/// A place whose store is a folder.
struct Spool(Place);

impl std::ops::Deref for Spool {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.0
    }
}

impl Spool {
    fn new() -> Self {
        let place = Place::bare();
        let url = format!("spool:{}", place.file("mail").display());
        Self(place.at(url))
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.file("mail").join(name)
    }

    /// The names in a folder that are not hidden.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.folder(folder)).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
        names.filter(|name| !name.starts_with('.')).collect()
    }

    /// Puts a file into a queue as a shell script does: written elsewhere on the same disk, and a while later renamed.
    /// A process that has not seen the rename cannot tell a file that was written a moment ago from one that still is.
    fn move_in(&self, queue: &str, name: &str, content: &str) {
        fs::write(self.file(name), content).expect("a file");
        let written = File::options().write(true).open(self.file(name)).expect("the file");
        written.set_modified(SystemTime::now() - Duration::from_secs(60)).expect("its time is set");
        fs::rename(self.file(name), self.folder(&format!("{queue}/incoming/{name}"))).expect("it is moved");
    }

    fn stats(&self, queue: &str) -> [u64; 4] {
        let row = self.row(&["stats", queue]);
        ["ready", "in_flight", "delayed", "dead"].map(|field| row[field].as_u64().expect("a number"))
    }

    /// The bodies of what is dead.
    fn dead(&self, queue: &str) -> Vec<Value> {
        self.rows(&["dlq", "list", queue])
    }
}

#[test]
fn a_receipt_is_used_in_another_process_and_only_once() {
    let place = Spool::new();
    let sent = place.run(&["--json", "send", "orders", "hello", "--header", "kind=greeting"]).done();
    assert!(sent.stderr.contains(&format!("made {}", place.file("mail").display())), "{sent:?}");
    let row = place.row(&["receive", "orders", "--visibility", "1m"]);
    assert_eq!((&row["body"], &row["receive_count"]), (&json!("hello"), &json!(1)));
    assert_eq!(row["headers"]["kind"], "greeting");
    assert_eq!(place.stats("orders"), [0, 1, 0, 0]);
    assert_eq!(place.rows(&["receive", "orders"]), Vec::<Value>::new(), "it is leased");
    let receipt = text(&row["receipt"]);
    assert_eq!(place.row(&["extend", &receipt, "2m"])["outcome"], "extended");
    assert_eq!(place.row(&["ack", &receipt])["outcome"], "acked");
    assert_eq!(place.run(&["--json", "ack", &receipt]).failed(1).outcomes(), ["expired"]);
    assert_eq!(place.stats("orders"), [0, 0, 0, 0]);
    assert_eq!(place.run(&["queues"]).done().stdout, "orders\n");
}

#[test]
fn a_lease_that_ran_out_settles_nothing() {
    let place = Spool::new();
    place.send(&["orders", "1"]);
    let late = place.receive(&["orders", "--visibility", "1ms"]);
    let next = place.receive(&["orders", "--wait", "60s"]);
    assert_eq!(place.run(&["--json", "ack", &late]).failed(1).outcomes(), ["expired"]);
    assert_eq!(place.run(&["--json", "release", &next]).done().outcomes(), ["released"]);
    assert_eq!(place.stats("orders"), [1, 0, 0, 0]);
}

#[test]
fn work_drains_what_was_sent_and_what_was_moved_in() {
    let place = Spool::new();
    place.run_with(&["send", "orders", "--lines", "--key", "bulk"], b"one\ntwo\nthree\n").done();
    place.move_in("orders", "from-a-script.json", r#"{"item": "tea"}"#);
    let seen = place.file("seen");
    let noting = format!("cat >> '{0}'; echo >> '{0}'", seen.display());
    let run = place.run(&["work", "orders", "--drain", "--", "sh", "-c", &noting]).done();
    assert!(run.stderr.contains("4 done, 0 retried, 0 dead, 0 lost"), "{run:?}");
    let seen = fs::read_to_string(seen).expect("what was handled");
    let mut lines: Vec<_> = seen.lines().collect();
    let bulk: Vec<_> = lines.iter().filter(|line| !line.starts_with('{')).copied().collect();
    assert_eq!(bulk, ["one", "two", "three"], "messages of one key come in order");
    lines.retain(|line| line.starts_with('{'));
    assert_eq!(lines, [r#"{"item": "tea"}"#]);
    for folder in ["orders/incoming", "orders/processing", "orders/failed"] {
        assert_eq!(place.names(folder), Vec::<String>::new(), "{folder}");
    }
}

#[test]
fn a_waiting_receiver_hears_of_a_file_that_another_program_moves_in() {
    let place = Spool::new();
    place.run(&["queues", "create", "orders"]).done();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| place.row(&["receive", "orders", "--wait", "60s", "--ack"]));
        place.move_in("orders", "late.json", "[1, 2]");
        let row = waiting.join().expect("no panic");
        assert_eq!(row["body"], "[1, 2]");
    });
    assert_eq!(place.stats("orders"), [0, 0, 0, 0]);
}

#[test]
fn a_command_that_keeps_failing_is_retried_and_then_its_message_is_put_aside() {
    let place = Spool::new();
    let id = place.send(&["orders", "milk"]);
    let run = place.run(&[
        "work",
        "orders",
        "--drain",
        "--retry",
        "constant,delay=0s,attempts=3",
        "--",
        "sh",
        "-c",
        "echo sour >&2; exit 1",
    ]);
    let run = run.done();
    assert!(run.stderr.contains("0 done, 2 retried, 1 dead, 0 lost"), "{run:?}");
    let dead = place.dead("orders");
    assert_eq!((dead.len(), text(&dead[0]["id"])), (1, id));
    assert_eq!((&dead[0]["reason"], &dead[0]["body"]), (&json!("retries_exhausted"), &json!("milk")));
    assert!(text(&dead[0]["error"]).contains("sour"), "{dead:?}");
    assert!(!place.names("orders/failed").is_empty());
}

#[test]
fn dead_letters_are_listed_edited_redriven_and_purged() {
    let place = Spool::new();
    let first = place.bury("orders", "bad", "poison");
    place.bury("orders", "worse", "poison");
    let bodies = |rows: &[Value]| rows.iter().map(|row| text(&row["body"])).collect::<Vec<_>>();
    assert_eq!(bodies(&place.dead("orders")), ["bad", "worse"]);
    assert_eq!(place.row(&["dlq", "show", "orders", &first])["error"], "it broke");
    place.run(&["dlq", "edit", "orders", &first, "--body", "good", "--header", "mended=yes"]).done();
    assert_eq!(bodies(&place.dead("orders")), ["good", "worse"]);
    assert_eq!(place.row(&["dlq", "redrive", "orders", &first])["id"], json!(first));
    let row = place.row(&["receive", "orders", "--ack"]);
    assert_eq!((&row["body"], &row["receive_count"]), (&json!("good"), &json!(1)));
    assert_eq!(row["headers"]["mended"], "yes");
    place.run(&["dlq", "purge", "orders", "--all", "--yes"]).done();
    assert_eq!(place.dead("orders"), Vec::<Value>::new());
    assert_eq!(place.stats("orders"), [0, 0, 0, 0]);
}

#[test]
fn a_file_that_is_no_json_is_put_aside_with_its_bytes() {
    let place = Spool::new();
    place.run(&["queues", "create", "orders"]).done();
    place.move_in("orders", "broken.json", "{not json");
    assert_eq!(place.rows(&["receive", "orders"]), Vec::<Value>::new());
    let dead = place.dead("orders");
    assert_eq!((dead.len(), &dead[0]["reason"]), (1, &json!("undecodable")));
    assert_eq!(dead[0]["body"], "{not json");
}

#[test]
fn a_paused_queue_hands_out_nothing_until_it_is_resumed() {
    let place = Spool::new();
    place.send(&["orders", "1"]);
    place.run(&["pause", "orders"]).done();
    assert_eq!(place.row(&["stats", "orders"])["paused"], true);
    assert_eq!(place.rows(&["receive", "orders"]), Vec::<Value>::new());
    place.run(&["resume", "orders"]).done();
    assert_eq!(place.row(&["receive", "orders", "--ack"])["body"], "1");
}

#[test]
fn stats_and_peek_tell_what_is_there() {
    let place = Spool::new();
    place.bury("orders", "0", "poison");
    place.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    place.send(&["orders", "later", "--delay", "1h"]);
    place.receive(&["orders"]);
    assert_eq!(place.stats("orders"), [2, 1, 1, 1]);
    assert_eq!(place.row(&["peek", "orders", "--max", "1"])["body"], "1");
    place.run(&["purge", "orders", "--yes"]).done();
    assert_eq!(place.stats("orders"), [0, 1, 0, 1], "what is leased and what is dead stays");
}

#[test]
fn a_queue_whose_answers_nobody_has_fetched_is_not_deleted() {
    let place = Spool::new();
    place.send(&["orders", "1"]);
    let answer = place.folder("orders/outgoing/answer.json");
    fs::write(&answer, "{}").expect("a file");
    let run = place.run(&["queues", "delete", "orders", "--yes"]);
    assert!(run.code != 0 && run.stderr.contains("outgoing") && run.stderr.contains("1 file"), "{run:?}");
    assert_eq!(place.stats("orders"), [1, 0, 0, 0], "nothing of it is gone");
    fs::remove_file(answer).expect("it is fetched");
    place.run(&["queues", "delete", "orders", "--yes"]).done();
    assert_eq!(place.run(&["queues"]).done().stdout, "");
    assert!(!place.folder("orders").exists());
}

#[test]
fn there_is_nothing_to_migrate_and_a_look_makes_nothing() {
    let place = Spool::new();
    for args in [&["migrate"][..], &["migrate", "--dry-run"], &["migrate", "--print"]] {
        let run = place.run(args).done();
        assert!(run.stdout.is_empty() && run.stderr.contains("nothing is missing"), "{run:?}");
    }
    let run = place.run(&["doctor"]).failed(1);
    assert!(run.stdout.contains("does not exist"), "{run:?}");
    assert!(!place.file("mail").exists());

    place.send(&["orders", "1"]);
    let run = place.run(&["doctor"]).done();
    assert!(run.stdout.contains("1 queue; the oldest ready message"), "{run:?}");
}

#[test]
fn settings_of_a_folder_come_from_the_environment_too() {
    let place = Spool(Spool::new().0.with("POSTRIDER__COMMON__MESSAGING__SPOOL__FILES", "any"));
    let row = place.row(&["config", "common.messaging.spool.files"]);
    assert_eq!((&row["value"], &row["source"]), (&json!("any"), &json!("POSTRIDER__COMMON__MESSAGING__SPOOL__FILES")));
    place.run(&["queues", "create", "orders"]).done();
    place.move_in("orders", "note.txt", "plain");
    assert_eq!(place.row(&["receive", "orders", "--wait", "60s", "--ack"])["body"], "plain");
    let place = Spool(Spool::new().0.with("POSTRIDER__COMMON__MESSAGING__SPOOL__FILE", "any"));
    let run = place.run(&["queues"]).failed(2);
    assert!(run.stderr.contains("did you mean POSTRIDER__COMMON__MESSAGING__SPOOL__FILES?"), "{run:?}");
}

#[test]
fn the_law_is_verified_on_a_folder() {
    let place = Spool::new();
    place.send(&["orders", "stays"]);
    let rows = place.rows(&["verify", "--rules", "L2,L3,L10,L11,L14", "--messages", "200"]);
    for rule in ["L2", "L3", "L10", "L11", "L14"] {
        let row = rows.iter().find(|row| row["rule"] == rule).expect("the rule");
        assert_eq!(row["outcome"], "holds", "{row}");
    }
    assert_eq!(place.run(&["queues"]).done().stdout, "orders\n");
    assert_eq!(place.row(&["peek", "orders"])["body"], "stays");
}

#[test]
fn a_folder_is_measured_and_has_no_archive() {
    let place = Spool::new();
    let flags = ["--messages", "100", "--callers", "5", "--batch", "30", "--pace", "500"];
    let rows = place.rows(&[&["bench"], &flags[..]].concat());
    let names: Vec<_> = rows.iter().map(|row| text(&row["workload"])).collect();
    assert_eq!(names, ["send-one", "send-batch", "drain", "handle", "latency"]);
    assert_eq!(place.run(&["queues"]).done().stdout, "", "its queues are removed");
    let run = place.run(&["bench", "--archive", "none"]).failed(2);
    assert!(run.stderr.contains("has no archive; leave --archive out"), "{run:?}");
}
