//! A store that does not answer for a while.

use std::time::Duration;

use postrider::Message;
use postrider_sqlite::rusqlite::Connection;

use super::place::{Place, Worker};

#[test]
fn a_worker_waits_for_a_store_that_does_not_answer() {
    let place = Place::new();
    place.send(Message::new("a"));
    let log = std::fs::File::create(place.file("log")).unwrap();
    let mut work = place.work(&["--workers", "2"], "touch begun; until test -e go; do sleep 0.02; done");
    work.env("POSTRIDER__COMMON__MESSAGING__SQLITE__LOCK_TIMEOUT_SECONDS", "1")
        .stdout(std::process::Stdio::null())
        .stderr(log);
    let _worker = Worker::start(&mut work);
    place.eventually("the first has begun", || (place.files("begun") == 1).then_some(()));
    place.send(Message::new("b").delay(Duration::from_secs(1)));
    // As another program would that writes to the file and takes its time.
    let other = Connection::open(place.file("queue.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::fs::write(place.file("go"), "").unwrap();
    let told = |what: &str| place.read("log").contains(what).then_some(());
    place.eventually("it cannot settle", || told("cannot settle message"));
    place.eventually("it cannot receive", || told("cannot receive; trying again"));
    other.execute_batch("ROLLBACK").unwrap();
    place.eventually("both are done", || (place.counts() == [0, 0, 0, 0]).then_some(()));
    place.eventually("the end of it is told", || told("the store answers again"));
}
