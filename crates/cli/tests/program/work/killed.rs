//! A worker that is killed, at any moment: what becomes of its commands and of its message.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use postrider::Message;
use rustix::process::{Pid, Signal};

use super::place::{PATIENCE, Place, Worker, children_of, long, pids, runs, stands_still};
use crate::broker::OnBroker;
use crate::place::PROGRAM;

#[test]
fn the_message_of_a_worker_that_was_killed_comes_back() {
    let place = Place::new();
    let id = place.send(Message::new("a"));
    let worker = place.start(&["--visibility", "3s"], "echo $$ > pid; exec sleep 1000");
    let command = place.process("pid");
    worker.signal(Signal::KILL);
    worker.wait();
    let message = place.eventually("it comes back", || place.receive());
    assert_eq!((message.id(), message.receive_count()), (id, 2));
    assert!(!runs(command), "two are at one message");
}

#[test]
fn a_worker_that_is_killed_takes_all_with_it_that_its_command_started() {
    for started in [
        "sleep 1000 & echo $! > pid; wait",
        // In a group of its own, as `timeout` does it.
        "exec timeout 1000 sh -c 'echo $$ > pid; exec sleep 1000'",
        // In a session of its own.
        "exec setsid --wait sh -c 'echo $$ > pid; exec sleep 1000'",
        // Forked twice: it has no parent here any more.
        "setsid sh -c 'sleep 1000 > /dev/null 2>&1 & echo $! > pid'; sleep 1000",
    ] {
        let place = Place::new();
        place.send(Message::new("a"));
        let worker = place.start(&[], started);
        let process = place.process("pid");
        worker.signal(Signal::KILL);
        worker.wait();
        place.eventually(started, || (!runs(process)).then_some(()));
    }
}

#[test]
fn a_command_is_guarded_from_its_first_moment() {
    let place = Place::new();
    place.send(Message::new("a"));
    // The worker stands still when the command has started and its group is known to nobody else.
    let mut work = place.work(&["--json"], "echo $$ > pid; exec sleep 1000");
    let worker = place.spawn(work.env("POSTRIDER_FAILPOINTS", "work.started=stop"));
    let command = place.process("pid");
    place.eventually("the worker stands still", || stands_still(worker.process()).then_some(()));
    worker.signal(Signal::KILL);
    worker.wait();
    place.eventually("the command is ended", || (!runs(command)).then_some(()));
}

#[test]
fn another_takes_the_place_of_a_guard_that_is_gone() {
    let place = Place::new();
    let worker = place.start(&["--workers", "2"], "echo $$ > \"$POSTRIDER_HEADER_NAME\"; exec sleep 1000");
    let send = |name: &str| place.send(Message::new("a").header("name", name).unwrap());
    send("first");
    let first = place.process("first");
    let guard = place
        .eventually("there is a guard", || children_of(worker.process()).into_iter().find(|child| *child != first));
    rustix::process::kill_process(guard, Signal::KILL).unwrap();
    place.eventually("the guard is gone", || (!runs(guard)).then_some(()));
    send("second");
    let commands = [first, place.process("second")];
    worker.signal(Signal::KILL);
    worker.wait();
    for command in commands {
        place.eventually("the command is ended", || (!runs(command)).then_some(()));
    }
}

#[test]
fn a_guard_goes_with_its_worker() {
    let place = Place::new();
    place.send(Message::new("a"));
    let worker = place.start(&[], "echo $$ > pid; exec sleep 1000");
    let command = place.process("pid");
    let is_guard = |child: &Pid| *child != command;
    let guard = place.eventually("there is a guard", || children_of(worker.process()).into_iter().find(is_guard));
    rustix::process::kill_process(command, Signal::KILL).unwrap();
    place.eventually("it waits", || (place.counts()[2] == 1).then_some(()));
    assert!(worker.stop().status.success());
    place.eventually("the guard is gone", || (!runs(guard)).then_some(()));
}

#[test]
fn a_command_reads_its_whole_message_whatever_becomes_of_its_worker() {
    let place = Place::new();
    place.send(Message::new(vec![b'x'; 1_000_000]));
    // In a session of its own and without the name of its run, so that the guard does not find it.
    let script = "exec env -u POSTRIDER_RUN setsid --wait sh -c \
        'echo $$ > pid; until test -e go; do sleep 0.02; done; wc -c > read'";
    let worker = place.start(&[], script);
    place.process("pid");
    worker.signal(Signal::KILL);
    worker.wait();
    std::fs::write(place.file("go"), "").unwrap();
    let read = place.eventually("it has read", || Some(place.read("read")).filter(|read| read.ends_with('\n')));
    assert_eq!(read.trim(), "1000000");
}

/// With `POSTRIDER_LONG` ten times as many rounds.
#[test]
fn a_storm_of_kills_leaves_no_command_running_and_none_that_saw_a_part_of_its_message() {
    const LENGTH: usize = 1_000_000;
    let place = Place::new();
    for _ in 0..4 {
        place.send(Message::new(vec![b'x'; LENGTH]));
    }
    // It waits before it reads, so that many are killed at that point.
    let script = "echo $$ >> begun; sleep 0.03; wc -c >> read; exit 75";
    let args = ["--workers", "4", "--visibility", "1s", "--retry", "constant,delay=0s,attempts=forever"];
    let begun = || pids(&place.read("begun"));
    for round in 0..long(12, 120) {
        let before = begun().len();
        let worker = place.start(&args, script);
        place.eventually("commands have begun", || (begun().len() > before).then_some(()));
        // Another moment each time.
        std::thread::sleep(Duration::from_millis(round * 7 % 60));
        worker.signal(Signal::KILL);
        worker.wait();
        place.eventually("its commands have ended", || (!begun().into_iter().skip(before).any(runs)).then_some(()));
    }
    let read = place.read("read");
    let lengths: Vec<_> = read.lines().map(|line| line.trim().parse::<usize>().unwrap()).collect();
    assert!(lengths.iter().all(|length| *length == LENGTH), "{lengths:?}");
}

/// A broker gives a message to the next worker as soon as the connection of its worker ends, so the guard alone keeps two
/// commands from one message. With `POSTRIDER_LONG` ten times as many rounds.
#[test]
fn a_storm_of_kills_on_a_broker_leaves_no_command_running_and_keeps_the_order_of_a_key() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let OnBroker { place, .. } = &OnBroker::new();
    let (rounds, each) = (long(6, 60), long(20, 200) as usize);
    // One command that ends only with its worker, in every round.
    place.send(&["orders", "held 0", "--key", "held"]);
    for key in KEYS {
        let bodies: String = (0..each).map(|number| format!("{key} {number}\n")).collect();
        place.run_with(&["send", "orders", "--lines", "--key", key], bodies.as_bytes()).done();
    }
    let script = "read -r key number; echo \"$key $number begin $$\" >> log; \
        case $key in held) until test -e go; do sleep 0.02; done;; *) sleep 0.02;; esac; \
        echo \"$key $number end $$\" >> log";
    let options = ["--workers", "4", "--retry", "constant,delay=0s,attempts=forever"];
    let work = |more: &[&str]| {
        let mut work = place.command(PROGRAM);
        work.args(["work", "orders"]).args(options).args(more).args(["--", "/bin/sh", "-c", script]);
        Worker::start(&mut work)
    };
    let log = || -> Vec<(String, usize, bool, Pid)> {
        let text = std::fs::read_to_string(place.file("log")).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let line = |line: &str| {
            let [key, number, step, process] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let process = Pid::from_raw(process.parse().unwrap()).unwrap();
            (key.to_owned(), number.parse().unwrap(), step == "begin", process)
        };
        whole.lines().map(line).collect()
    };
    let eventually = |what: &str, is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let mut killed = HashSet::new();
    for round in 0..rounds {
        let worker = work(&[]);
        // The held message has come back, although nobody settled it.
        let is_held = || log().iter().any(|(key, _, _, process)| key == "held" && !killed.contains(process));
        eventually("the held message is begun", &is_held);
        eventually("the commands of the worker before have ended", &|| !killed.iter().copied().any(runs));
        // Another moment each time.
        std::thread::sleep(Duration::from_millis(round * 37 % 150));
        worker.signal(Signal::KILL);
        worker.wait();
        killed.extend(log().into_iter().map(|(.., process)| process));
    }
    eventually("the last commands have ended", &|| !killed.iter().copied().any(runs));
    assert!(!log().iter().any(|(key, _, is_begin, _)| key == "held" && !is_begin), "it ended by itself");
    std::fs::write(place.file("go"), "").unwrap();
    let output = work(&["--drain"]).wait();
    assert!(output.status.success(), "{output:?}");

    let mut keys: BTreeMap<String, Vec<(usize, bool)>> = BTreeMap::new();
    for (key, number, is_begin, _) in log() {
        keys.entry(key).or_default().push((number, is_begin));
    }
    for key in KEYS {
        let steps = &keys[key];
        let at = |number: usize, is_begin: bool| steps.iter().position(|step| *step == (number, is_begin));
        let begins: Vec<_> = steps.iter().filter(|(_, is_begin)| *is_begin).map(|(number, _)| *number).collect();
        assert!(begins.is_sorted(), "a message of '{key}' began after a later one: {begins:?}");
        for number in 0..each {
            let end = at(number, false).unwrap_or_else(|| panic!("{key} {number} never ended: {steps:?}"));
            assert!(at(number + 1, true).is_none_or(|next| next > end), "{key} {number} was passed: {steps:?}");
        }
    }
}

#[test]
fn the_guard_of_a_worker_catches_what_a_service_manager_sends_to_all() {
    let place = Place::new();
    place.send(Message::new("a"));
    let worker = place.start(&["--visibility", "6s"], "echo $$ > pid; until test -e go; do sleep 0.02; done");
    let command = place.process("pid");
    let guard = place
        .eventually("there is a guard", || children_of(worker.process()).into_iter().find(|child| *child != command));
    let is_ready = |guard: Pid| {
        // The mask of caught signals has SIGTERM when the guard listens.
        let status = std::fs::read_to_string(format!("/proc/{}/status", guard.as_raw_nonzero())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default().trim().to_owned();
        u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask & (1 << 14) != 0)
    };
    place.eventually("the guard listens", || is_ready(guard).then_some(()));
    rustix::process::kill_process(guard, Signal::TERM).unwrap();
    worker.signal(Signal::TERM);
    place.eventually_renewed("while the worker waits for its command", || assert!(runs(guard) && runs(command)));
    std::fs::write(place.file("go"), "").unwrap();
    assert!(worker.wait().status.success());
}
