//! Runs every example and checks its output.

#![cfg(unix)]
// Helpers of tests may panic like tests.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use postrider::{Deadline, MessagingService, QueueAdmin, QueueName, ReceiveOptions};
use rustix::process::{Pid, Signal, kill_process};

/// Upper bound of a run; an example takes about two seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A running example, killed after the time-out.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    _ended: mpsc::Sender<()>,
}

impl Running {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(built(name)).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = Pid::from_child(&child);
        let (ended, has_ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if has_ended.recv_timeout(TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        Self { child, lines, _ended: ended }
    }

    /// Reads lines up to and including this one.
    fn wait_for(&mut self, line: &str) -> Vec<String> {
        let mut read = Vec::new();
        for printed in self.lines.by_ref().map(Result::unwrap) {
            let is_last = printed == line;
            read.push(printed);
            if is_last {
                return read;
            }
        }
        panic!("it never printed {line:?}, but {read:?}");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(mut self) -> (Vec<String>, ExitStatus) {
        let lines = self.lines.map(Result::unwrap).collect();
        (lines, self.child.wait().unwrap())
    }
}

/// The program of the example. Cargo builds examples with the tests, but not if only this test is selected.
fn built(name: &str) -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    while !folder.ends_with("deps") {
        assert!(folder.pop(), "tests are in a folder 'deps'");
    }
    let program = folder.with_file_name("examples").join(name);
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    assert!(
        changed(&program) >= changed(&source(name)),
        "{} is missing or older than its source; build it with 'cargo build -p postrider-examples --examples'",
        program.display()
    );
    program
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).with_extension("rs")
}

/// The output of an example.
fn output(name: &str, arguments: &[&str]) -> Vec<String> {
    let (lines, status) = Running::start(name, arguments).end();
    assert!(status.success(), "{status}: {lines:?}");
    lines
}

/// The lines about one thing, without its name.
fn of<'a>(lines: &'a [String], thing: &str) -> Vec<&'a str> {
    lines.iter().filter_map(|line| line.strip_prefix(thing)?.strip_prefix(": ")).collect()
}

#[test]
fn the_worker_packs_an_order_in_twenty_lines() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    for arguments in [&[][..], &[&*url]] {
        assert_eq!(output("worker", arguments), ["packed tea"]);
    }
    let source = std::fs::read_to_string(source("worker")).unwrap();
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    assert!(source.lines().filter(is_code).count() <= 20);
}

#[test]
fn failing_orders_are_retried_and_dead_lettered() {
    let lines = output("retries_and_dead_letters", &[]);
    assert_eq!(of(&lines, "tea"), ["attempt 1", "charged for 1"]);
    assert_eq!(of(&lines, "coffee"), ["attempt 1", "attempt 2", "charged for 2"]);
    assert_eq!(of(&lines, "milk"), ["attempt 1"]);
    assert_eq!(of(&lines, "juice"), ["attempt 1", "attempt 2", "attempt 3", "attempt 1", "charged for 3"]);
    assert_eq!(
        of(&lines, "dead"),
        [
            r#"{"item":"milk","litres":"two"}: rejected on delivery 1: invalid digit found in string"#,
            r#"{"item":"juice","litres":"3"}: retries_exhausted on delivery 3: the card was refused"#,
        ]
    );
    assert_eq!(of(&lines, "redriven"), ["1"]);
    let sums: Vec<_> = lines.iter().filter(|line| line.contains(" done, ")).collect();
    assert_eq!(sums, ["2 done, 3 retries, 2 dead", "1 done, 0 retries, 0 dead"]);
}

#[test]
fn entries_of_an_account_are_booked_in_order() {
    let lines = output("ordered", &[]);
    assert_eq!(of(&lines, "anna"), ["entry 1", "entry 2 failed", "entry 2", "entry 3"]);
    assert_eq!(of(&lines, "ben"), ["entry 1", "entry 2", "entry 3"]);
    assert_eq!(lines.last().unwrap(), "6 booked");
}

#[test]
fn invoices_are_sent_retried_edited_and_replayed() {
    assert_eq!(
        output("tasks", &[]),
        [
            "7: order 7 was sent by attempt 1",
            "8: order 8 was sent by attempt 2",
            "nine: DEAD, invalid digit found in string",
            "nine: order 9 was sent by attempt 1",
            "3 succeeded, 1 to be tried again, 1 dead, 0 lost",
        ]
    );
}

#[test]
fn an_order_that_is_delivered_again_is_booked_once() {
    let lines = output("idempotent", &[]);
    assert_eq!(of(&lines, "tea"), ["booking, attempt 1", "booked 1×"]);
    assert_eq!(of(&lines, "coffee"), ["booking, attempt 1", "booked 1×"]);
    assert!(lines.contains(&"3 messages acknowledged".to_owned()), "{lines:?}");
}

#[tokio::test]
async fn a_signal_lets_running_orders_finish_and_releases_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let mut running = Running::start("graceful_shutdown", &[&url, "500"]);
    let mut lines = running.wait_for("order 1: begun");
    running.signal(Signal::TERM);
    let (rest, status) = running.end();
    lines.extend(rest);
    assert!(status.success(), "{status}: {lines:?}");
    let count = |what: &str| lines.iter().filter(|line| line.ends_with(what)).count();
    let packed = count(": packed");
    assert!((1..20).contains(&packed), "{lines:?}");
    assert_eq!(count(": begun"), packed, "every started order is packed");
    assert!(lines.contains(&format!("{packed} of 20 packed, Stopped")), "{lines:?}");
    let provider = postrider::connect(&url).await.unwrap();
    let options = ReceiveOptions::batch(100);
    let left = provider.receive_messages(&orders(), &options, Deadline::default()).await.unwrap();
    assert_eq!(left.len(), 20 - packed);
    assert!(left.iter().all(|message| message.receive_count() == 1), "a released delivery is not counted");
}

#[tokio::test]
async fn a_second_signal_stops_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let an_hour = "3600000";
    let mut running = Running::start("graceful_shutdown", &[&url, an_hour]);
    running.wait_for("order 2: begun");
    running.signal(Signal::INT);
    running.wait_for("stopping; a second signal stops at once");
    running.signal(Signal::TERM);
    let (lines, status) = running.end();
    assert_eq!(status.code(), Some(1), "{lines:?}");
    assert!(lines.contains(&"0 of 20 packed, Stopped".to_owned()), "{lines:?}");
    let provider = postrider::connect(&url).await.unwrap();
    let stats = provider.queue_stats(&orders(), Deadline::default()).await.unwrap();
    let there =
        [stats.ready, stats.in_flight, stats.delayed].into_iter().filter_map(|count| count.value()).sum::<u64>();
    assert_eq!(there, 20, "nothing is lost: {stats:?}");
}

fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}
