//! A folder as a store, used by commands and by other programs that move files.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::scratch::{Scratch, text};

/// A scratch folder with a spool as its store.
struct Spool(Scratch);

impl std::ops::Deref for Spool {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl Spool {
    fn new() -> Self {
        let scratch = Scratch::bare();
        let url = format!("spool:{}", scratch.file("mail").display());
        Self(scratch.at(url))
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.file("mail").join(name)
    }

    /// The visible names in a folder.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.folder(folder)).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
        names.filter(|name| !name.starts_with('.')).collect()
    }

    /// Moves a file into a queue as a shell script does: written elsewhere on the same disk, and renamed later. Its time is
    /// set back, because a file that was just written may still be incomplete to a process that did not see the rename.
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

    /// The dead letters.
    fn dead(&self, queue: &str) -> Vec<Value> {
        self.rows(&["dlq", "list", queue])
    }
}

#[test]
fn a_receipt_is_valid_once_in_another_process() {
    let scratch = Spool::new();
    let sent = scratch.run(&["--json", "send", "orders", "hello", "--header", "kind=greeting"]).done();
    assert!(sent.stderr.contains(&format!("created {}", scratch.file("mail").display())), "{sent:?}");
    let row = scratch.row(&["receive", "orders", "--visibility", "1m"]);
    assert_eq!((&row["body"], &row["receive_count"]), (&json!("hello"), &json!(1)));
    assert_eq!(row["headers"]["kind"], "greeting");
    assert_eq!(scratch.stats("orders"), [0, 1, 0, 0]);
    assert_eq!(scratch.rows(&["receive", "orders"]), Vec::<Value>::new(), "it is leased");
    let receipt = text(&row["receipt"]);
    assert_eq!(scratch.row(&["extend", &receipt, "2m"])["outcome"], "extended");
    assert_eq!(scratch.row(&["ack", &receipt])["outcome"], "acked");
    assert_eq!(scratch.run(&["--json", "ack", &receipt]).failed(1).outcomes(), ["expired"]);
    assert_eq!(scratch.stats("orders"), [0, 0, 0, 0]);
    assert_eq!(scratch.run(&["queues"]).done().stdout, "orders\n");
}

#[test]
fn an_expired_lease_settles_nothing() {
    let scratch = Spool::new();
    scratch.send(&["orders", "1"]);
    let late = scratch.receive(&["orders", "--visibility", "1ms"]);
    let next = scratch.receive(&["orders", "--wait", "60s"]);
    assert_eq!(scratch.run(&["--json", "ack", &late]).failed(1).outcomes(), ["expired"]);
    assert_eq!(scratch.run(&["--json", "release", &next]).done().outcomes(), ["released"]);
    assert_eq!(scratch.stats("orders"), [1, 0, 0, 0]);
}

#[test]
fn work_drains_sent_messages_and_moved_files() {
    let scratch = Spool::new();
    scratch.run_with(&["send", "orders", "--lines", "--key", "bulk"], b"one\ntwo\nthree\n").done();
    scratch.move_in("orders", "from-a-script.json", r#"{"item": "tea"}"#);
    let seen = scratch.file("seen");
    let noting = format!("cat >> '{0}'; echo >> '{0}'", seen.display());
    let run = scratch.run(&["work", "orders", "--drain", "--", "sh", "-c", &noting]).done();
    assert!(run.stderr.contains("4 done, 0 retried, 0 dead, 0 lost"), "{run:?}");
    let seen = fs::read_to_string(seen).expect("what was handled");
    let mut lines: Vec<_> = seen.lines().collect();
    let bulk: Vec<_> = lines.iter().filter(|line| !line.starts_with('{')).copied().collect();
    assert_eq!(bulk, ["one", "two", "three"], "messages of one key come in order");
    lines.retain(|line| line.starts_with('{'));
    assert_eq!(lines, [r#"{"item": "tea"}"#]);
    for folder in ["orders/incoming", "orders/processing", "orders/failed"] {
        assert_eq!(scratch.names(folder), Vec::<String>::new(), "{folder}");
    }
}

#[test]
fn a_waiting_receiver_gets_a_file_that_another_program_moves_in() {
    let scratch = Spool::new();
    scratch.run(&["queues", "create", "orders"]).done();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| scratch.row(&["receive", "orders", "--wait", "60s", "--ack"]));
        scratch.move_in("orders", "late.json", "[1, 2]");
        let row = waiting.join().expect("no panic");
        assert_eq!(row["body"], "[1, 2]");
    });
    assert_eq!(scratch.stats("orders"), [0, 0, 0, 0]);
}

#[test]
fn a_failing_command_is_retried_and_then_its_message_is_dead_lettered() {
    let scratch = Spool::new();
    let id = scratch.send(&["orders", "milk"]);
    let run = scratch.run(&[
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
    let dead = scratch.dead("orders");
    assert_eq!((dead.len(), text(&dead[0]["id"])), (1, id));
    assert_eq!((&dead[0]["reason"], &dead[0]["body"]), (&json!("retries_exhausted"), &json!("milk")));
    assert!(text(&dead[0]["error"]).contains("sour"), "{dead:?}");
    assert!(!scratch.names("orders/failed").is_empty());
}

#[test]
fn dead_letters_are_listed_edited_redriven_and_purged() {
    let scratch = Spool::new();
    let first = scratch.dead_letter("orders", "bad", "poison");
    scratch.dead_letter("orders", "worse", "poison");
    let bodies = |rows: &[Value]| rows.iter().map(|row| text(&row["body"])).collect::<Vec<_>>();
    assert_eq!(bodies(&scratch.dead("orders")), ["bad", "worse"]);
    assert_eq!(scratch.row(&["dlq", "show", "orders", &first])["error"], "it broke");
    scratch.run(&["dlq", "edit", "orders", &first, "--body", "good", "--header", "mended=yes"]).done();
    assert_eq!(bodies(&scratch.dead("orders")), ["good", "worse"]);
    assert_eq!(scratch.row(&["dlq", "redrive", "orders", &first])["id"], json!(first));
    let row = scratch.row(&["receive", "orders", "--ack"]);
    assert_eq!((&row["body"], &row["receive_count"]), (&json!("good"), &json!(1)));
    assert_eq!(row["headers"]["mended"], "yes");
    scratch.run(&["dlq", "purge", "orders", "--all", "--yes"]).done();
    assert_eq!(scratch.dead("orders"), Vec::<Value>::new());
    assert_eq!(scratch.stats("orders"), [0, 0, 0, 0]);
}

#[test]
fn a_file_that_is_not_json_is_dead_lettered_with_its_bytes() {
    let scratch = Spool::new();
    scratch.run(&["queues", "create", "orders"]).done();
    scratch.move_in("orders", "broken.json", "{not json");
    assert_eq!(scratch.rows(&["receive", "orders"]), Vec::<Value>::new());
    let dead = scratch.dead("orders");
    assert_eq!((dead.len(), &dead[0]["reason"]), (1, &json!("undecodable")));
    assert_eq!(dead[0]["body"], "{not json");
}

#[test]
fn a_paused_folder_delivers_nothing_until_it_is_resumed() {
    let scratch = Spool::new();
    scratch.send(&["orders", "1"]);
    scratch.run(&["pause", "orders"]).done();
    assert_eq!(scratch.row(&["stats", "orders"])["paused"], true);
    assert_eq!(scratch.rows(&["receive", "orders"]), Vec::<Value>::new());
    scratch.run(&["resume", "orders"]).done();
    assert_eq!(scratch.row(&["receive", "orders", "--ack"])["body"], "1");
}

#[test]
fn stats_and_peek_show_the_messages() {
    let scratch = Spool::new();
    scratch.dead_letter("orders", "0", "poison");
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
    scratch.send(&["orders", "later", "--delay", "1h"]);
    scratch.receive(&["orders"]);
    assert_eq!(scratch.stats("orders"), [2, 1, 1, 1]);
    assert_eq!(scratch.row(&["peek", "orders", "--max", "1"])["body"], "1");
    scratch.run(&["purge", "orders", "--yes"]).done();
    assert_eq!(scratch.stats("orders"), [0, 1, 0, 1], "what is leased and what is dead stays");
}

#[test]
fn a_queue_with_files_in_outgoing_is_not_deleted() {
    let scratch = Spool::new();
    scratch.send(&["orders", "1"]);
    let answer = scratch.folder("orders/outgoing/answer.json");
    fs::write(&answer, "{}").expect("a file");
    let run = scratch.run(&["queues", "delete", "orders", "--yes"]);
    assert!(run.code != 0 && run.stderr.contains("outgoing") && run.stderr.contains("1 file"), "{run:?}");
    assert_eq!(scratch.stats("orders"), [1, 0, 0, 0], "nothing of it is gone");
    fs::remove_file(answer).expect("it is fetched");
    scratch.run(&["queues", "delete", "orders", "--yes"]).done();
    assert_eq!(scratch.run(&["queues"]).done().stdout, "");
    assert!(!scratch.folder("orders").exists());
}

#[test]
fn a_folder_has_no_migrations_and_an_examination_creates_nothing() {
    let scratch = Spool::new();
    for args in [&["migrate"][..], &["migrate", "--dry-run"], &["migrate", "--print"]] {
        let run = scratch.run(args).done();
        assert!(run.stdout.is_empty() && run.stderr.contains("no migration is missing"), "{run:?}");
    }
    let run = scratch.run(&["doctor"]).failed(1);
    assert!(run.stdout.contains("does not exist"), "{run:?}");
    assert!(!scratch.file("mail").exists());

    scratch.send(&["orders", "1"]);
    let run = scratch.run(&["doctor"]).done();
    assert!(run.stdout.contains("1 queue; the oldest ready message"), "{run:?}");
}

#[test]
fn settings_of_a_folder_come_from_the_environment_too() {
    let scratch = Spool(Spool::new().0.with("POSTRIDER__COMMON__MESSAGING__SPOOL__FILES", "any"));
    let row = scratch.row(&["config", "common.messaging.spool.files"]);
    assert_eq!((&row["value"], &row["source"]), (&json!("any"), &json!("POSTRIDER__COMMON__MESSAGING__SPOOL__FILES")));
    scratch.run(&["queues", "create", "orders"]).done();
    scratch.move_in("orders", "note.txt", "plain");
    assert_eq!(scratch.row(&["receive", "orders", "--wait", "60s", "--ack"])["body"], "plain");
    let scratch = Spool(Spool::new().0.with("POSTRIDER__COMMON__MESSAGING__SPOOL__FILE", "any"));
    let run = scratch.run(&["queues"]).failed(2);
    assert!(run.stderr.contains("did you mean POSTRIDER__COMMON__MESSAGING__SPOOL__FILES?"), "{run:?}");
}

#[test]
fn the_law_is_verified_on_a_folder() {
    let scratch = Spool::new();
    scratch.send(&["orders", "stays"]);
    let rows = scratch.rows(&["verify", "--rules", "L2,L3,L10,L11,L14", "--messages", "200"]);
    for rule in ["L2", "L3", "L10", "L11", "L14"] {
        let row = rows.iter().find(|row| row["rule"] == rule).expect("the rule");
        assert_eq!(row["outcome"], "holds", "{row}");
    }
    assert_eq!(scratch.run(&["queues"]).done().stdout, "orders\n");
    assert_eq!(scratch.row(&["peek", "orders"])["body"], "stays");
}

#[test]
fn a_folder_is_measured_and_has_no_archive() {
    let scratch = Spool::new();
    let flags = ["--messages", "100", "--callers", "5", "--batch", "30", "--pace", "500"];
    let rows = scratch.rows(&[&["bench"], &flags[..]].concat());
    let names: Vec<_> = rows.iter().map(|row| text(&row["workload"])).collect();
    assert_eq!(names, ["send-one", "send-batch", "drain", "handle", "latency"]);
    assert_eq!(scratch.run(&["queues"]).done().stdout, "", "its queues are removed");
    let run = scratch.run(&["bench", "--archive", "none"]).failed(2);
    assert!(run.stderr.contains("has no archive; omit --archive"), "{run:?}");
}
