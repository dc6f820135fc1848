//! Files that cannot be used or become unusable: reported, nothing lost, nothing half done.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use postrider_sqlite::rusqlite::Connection;

use crate::scratch::{PROGRAM, Run, Scratch, text};

const LOCK_TIMEOUT: &str = "POSTRIDER__COMMON__MESSAGING__SQLITE__LOCK_TIMEOUT_SECONDS";

/// One command of every kind; all report a bad file alike.
const COMMANDS: [&[&str]; 5] = [
    &["send", "orders", "x"],
    &["receive", "orders"],
    &["stats"],
    &["dlq", "redrive", "orders", "--all"],
    &["migrate"],
];

fn all_fail(scratch: &Scratch, expected: &str) {
    for args in COMMANDS {
        let run = scratch.run(args).failed(1);
        assert_eq!(run.stdout, "", "{args:?}");
        assert!(run.stderr.contains(expected), "{args:?}: {}", run.stderr);
    }
}

fn at_file(name: &str, contents: &[u8]) -> Scratch {
    let scratch = Scratch::bare();
    fs::write(scratch.file(name), contents).expect("a file");
    let url = format!("sqlite:{}", scratch.file(name).display());
    scratch.at(url)
}

#[test]
fn a_file_of_another_kind_is_left_alone() {
    let text = "these are my notes, and no program may change them\n".repeat(100);
    let scratch = at_file("notes.txt", text.as_bytes());
    all_fail(&scratch, "is no SQLite database; name another file");
    insta::assert_snapshot!("file_of_text", scratch.run(&["send", "orders", "x"]).seen());
    assert_eq!(fs::read_to_string(scratch.file("notes.txt")).unwrap(), text);
    assert_eq!(fs::read_dir(scratch.file("")).unwrap().count(), 1);
}

#[test]
fn a_database_of_another_program_is_left_alone() {
    let scratch = Scratch::new();
    let other = Connection::open(scratch.file("queues.db")).unwrap();
    other.execute_batch("create table customer (name text); insert into customer values ('ann')").unwrap();
    drop(other);
    let before = fs::read(scratch.file("queues.db")).unwrap();
    all_fail(&scratch, "belongs to another program; name another file");
    insta::assert_snapshot!("file_of_another_program", scratch.run(&["send", "orders", "x"]).seen());
    assert_eq!(fs::read(scratch.file("queues.db")).unwrap(), before);
}

#[test]
fn a_file_at_an_impossible_path_is_reported() {
    let scratch = Scratch::bare();
    fs::create_dir(scratch.file("folder")).unwrap();
    for (name, path) in [
        ("folder", scratch.file("folder")),
        ("no_folder", scratch.file("missing/queues.db")),
        ("not_writable", Path::new("/proc/queues.db").to_owned()),
        ("no_regular_file", Path::new("/dev/null").to_owned()),
    ] {
        let run = scratch.run(&["--url", &format!("sqlite:{}", path.display()), "send", "orders", "x"]).failed(1);
        insta::assert_snapshot!(format!("file_{name}"), run.seen());
    }
    assert_eq!(fs::read_dir(scratch.file("folder")).unwrap().count(), 0);
}

#[test]
fn an_unreadable_configuration_is_reported() {
    let scratch = Scratch::bare();
    fs::create_dir(scratch.file("folder")).unwrap();
    for (name, file) in [("missing", "nowhere.toml"), ("folder", "folder")] {
        let run = scratch.run(&["--config", file, "queues"]).failed(2);
        insta::assert_snapshot!(format!("configuration_{name}"), run.seen());
    }
}

#[test]
fn a_locked_file_is_reported_and_nothing_is_half_done() {
    let scratch = Scratch::new().with(LOCK_TIMEOUT, "0.2");
    scratch.send(&["orders", "1"]);
    let receipt = scratch.receive(&["orders"]);
    let id = scratch.dead_letter("mail", "2", "poison");

    let other = Connection::open(scratch.file("queues.db")).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let run = scratch.run(&["send", "orders", "x"]).failed(1);
    insta::assert_snapshot!("file_locked", without_waiting_time(&run));
    for args in [
        &["receive", "mail"][..],
        &["purge", "orders"],
        &["pause", "orders"],
        &["dlq", "redrive", "mail", "--all"],
        &["dlq", "purge", "mail", "--all"],
        &["dlq", "edit", "mail", &id, "--body", "x"],
    ] {
        let run = scratch.run(args).failed(1);
        assert!(run.stderr.contains("has been locked by another process"), "{args:?}: {}", run.stderr);
        assert_eq!(run.stdout, "", "{args:?}");
    }
    let run = scratch.run(&["--json", "ack", &receipt]).failed(1);
    assert_eq!(run.outcomes(), ["failed"]);
    let run = scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").failed(1);
    assert!(run.stderr.contains("has been locked by another process"), "{}", run.stderr);
    // A read needs no lock.
    assert_eq!(scratch.row(&["stats", "mail"])["dead"], 1);

    other.execute_batch("rollback").unwrap();
    assert_eq!(scratch.row(&["dlq", "show", "mail", &id])["revision"], 0);
    let stats = scratch.row(&["stats", "orders"]);
    assert_eq!((&stats["ready"], &stats["in_flight"]), (&0.into(), &1.into()));
    scratch.run(&["ack", &receipt]).done();
}

fn without_waiting_time(run: &Run) -> String {
    let seen = run.seen();
    match seen.split_once("process for ").and_then(|(before, rest)| Some((before, rest.split_once(':')?.1))) {
        Some((before, after)) => format!("{before}process for TIME:{after}"),
        None => seen,
    }
}

fn filled() -> Scratch {
    let scratch = Scratch::new();
    let lines: String = (0..2000).map(|number| format!("message number {number}\n")).collect();
    scratch.run_with(&["send", "orders", "--lines"], lines.as_bytes()).done();
    scratch
}

#[test]
fn a_file_with_an_overwritten_header_is_reported() {
    let scratch = filled();
    let mut file = OpenOptions::new().write(true).open(scratch.file("queues.db")).unwrap();
    file.write_all(&[b'x'; 200]).unwrap();
    drop(file);
    all_fail(&scratch, "is no SQLite database; name another file, or restore it from a backup");
}

#[test]
fn a_file_with_an_overwritten_middle_is_reported() {
    let scratch = filled();
    let length = fs::metadata(scratch.file("queues.db")).unwrap().len();
    let mut file = OpenOptions::new().write(true).open(scratch.file("queues.db")).unwrap();
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&vec![b'x'; usize::try_from(length).unwrap() - 4096]).unwrap();
    drop(file);
    for args in [&["send", "orders", "x"][..], &["receive", "orders"], &["stats", "orders"]] {
        let run = scratch.run(args).failed(1);
        assert!(run.stderr.contains("damaged") && run.stderr.contains("restore it from a backup"), "{}", run.stderr);
        assert_eq!(run.stdout, "", "{args:?}");
    }
}

#[test]
fn a_truncated_file_is_reported() {
    let scratch = filled();
    let file = OpenOptions::new().write(true).open(scratch.file("queues.db")).unwrap();
    file.set_len(20_000).unwrap();
    drop(file);
    let run = scratch.run(&["peek", "orders", "--max", "5000"]).failed(1);
    assert!(run.stderr.contains("restore it from a backup"), "{}", run.stderr);
    let run = scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").failed(1);
    assert!(run.stderr.contains("restore it from a backup"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
}

/// A shell command that sends twenty long lines.
fn send_much() -> String {
    let line = "x".repeat(60_000);
    let lines = format!("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo {line}; done");
    format!("({lines}) | {PROGRAM} send orders --lines")
}

#[test]
fn a_file_that_cannot_grow_loses_no_durable_message() {
    let scratch = Scratch::new();
    let first = scratch.send(&["orders", "first"]);
    // The limit's signal is ignored, so that writing fails.
    let script = format!("trap '' XFSZ; ulimit -f 1000; {}", send_much());
    let run = Run::of(scratch.command("sh").args(["-c", &script]).output().unwrap(), &scratch.file("")).failed(1);
    for noted in ["may or may not have been sent, as message", "check its free space, its limits", "Stopped a"] {
        assert!(run.stderr.contains(noted), "{noted}: {}", run.stderr);
    }
    let kept: Vec<_> = scratch.rows(&["peek", "orders", "--max", "30"]).iter().map(|row| text(&row["id"])).collect();
    let answered: Vec<_> = [first.as_str()].into_iter().chain(run.stdout.lines()).collect();
    assert!(answered.len() < 20);
    assert_eq!(kept[..answered.len()], answered);
    // Every stored message was reported.
    assert!(kept[answered.len()..].iter().all(|id| run.stderr.contains(id)), "{}", run.stderr);
    scratch.send(&["orders", "next"]);
}

#[test]
fn a_disk_without_space_for_the_file_is_reported() {
    let scratch = Scratch::new();
    for command in ["send orders x", "migrate"] {
        let script = format!("trap '' XFSZ; ulimit -f 10; {PROGRAM} {command}");
        let run = Run::of(scratch.command("sh").args(["-c", &script]).output().unwrap(), &scratch.file("")).failed(1);
        assert!(
            run.stderr.contains("the disk or its file system failed (disk I/O error); check its free"),
            "{}",
            run.stderr
        );
    }
    // The rest of the file does no harm.
    scratch.send(&["orders", "x"]);
}

#[test]
fn a_full_disk_stores_no_partial_message() {
    let scratch = Scratch::bare();
    let disk = scratch.file("disk");
    fs::create_dir(&disk).unwrap();
    let inside = format!("mount -t tmpfs -o size=700k tmpfs {}", disk.display());
    let may_mount = scratch.command("unshare").args(["-rm", "sh", "-c", &inside]).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this host does not allow a test to mount a small disk");
        return;
    }
    let scratch = scratch.at(format!("sqlite:{}/queues.db", disk.display()));
    let count = format!("{PROGRAM} --json peek orders --max 30 >&2");
    let script = format!("{inside} && {}; code=$?; {count}; exit $code", send_much());
    let output = scratch.command("unshare").args(["-rm", "sh", "-c", &script]).output().unwrap();
    let run = Run::of(output, &scratch.file("")).failed(1);
    assert!(run.stderr.contains("the disk is full, but for a reserve for receives and acks"), "{}", run.stderr);
    assert!(run.stderr.contains("Continue from there once the cause is fixed"), "{}", run.stderr);
    let answered = run.stdout.lines().count();
    assert!((1..20).contains(&answered), "{answered}");
    assert_eq!(run.stderr.lines().filter(|line| line.starts_with('{')).count(), answered, "{}", run.stderr);
}
