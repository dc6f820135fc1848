//! A store that does not answer for a while.

use std::time::Duration;

use postrider::Message;
use postrider_sqlite::rusqlite::Connection;

use super::scratch::{Scratch, Worker};

#[test]
fn a_worker_waits_for_a_store_that_does_not_answer() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let log = std::fs::File::create(scratch.file("log")).unwrap();
    let mut work = scratch.work(&["--workers", "2"], "touch begun; until test -e go; do sleep 0.02; done");
    work.env("POSTRIDER__COMMON__MESSAGING__SQLITE__LOCK_TIMEOUT_SECONDS", "1")
        .stdout(std::process::Stdio::null())
        .stderr(log);
    let _worker = Worker::start(&mut work);
    scratch.eventually("the first has begun", || (scratch.files("begun") == 1).then_some(()));
    scratch.send(Message::new("b").delay(Duration::from_secs(1)));
    // Like another program with a long write transaction.
    let other = Connection::open(scratch.file("queue.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::fs::write(scratch.file("go"), "").unwrap();
    let noted = |what: &str| scratch.read("log").contains(what).then_some(());
    scratch.eventually("it cannot settle", || noted("cannot settle message"));
    scratch.eventually("it cannot receive", || noted("cannot receive; trying again"));
    other.execute_batch("ROLLBACK").unwrap();
    scratch.eventually("both are done", || (scratch.counts() == [0, 0, 0, 0]).then_some(()));
    scratch.eventually("the store is back", || noted("the store answers again"));
}
