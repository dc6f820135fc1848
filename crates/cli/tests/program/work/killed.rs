//! The commands and messages of a worker that is killed at any moment.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use postrider::Message;
use rustix::process::{Pid, Signal};

use super::scratch::{Scratch, TIMEOUT, Worker, children_of, is_stopped, long, pids, runs};
use crate::broker::OnBroker;
use crate::scratch::PROGRAM;

#[test]
fn the_message_of_a_killed_worker_is_delivered_again() {
    let scratch = Scratch::new();
    let id = scratch.send(Message::new("a"));
    let worker = scratch.start(&["--visibility", "3s"], "echo $$ > pid; exec sleep 1000");
    let command = scratch.process("pid");
    worker.signal(Signal::KILL);
    worker.wait();
    let message = scratch.eventually("it comes back", || scratch.receive());
    assert_eq!((message.id(), message.receive_count()), (id, 2));
    assert!(!runs(command), "two are at one message");
}

#[test]
fn the_commands_of_a_killed_worker_die_with_everything_they_started() {
    for started in [
        "sleep 1000 & echo $! > pid; wait",
        // In another process group, like a command of `timeout`.
        "exec timeout 1000 sh -c 'echo $$ > pid; exec sleep 1000'",
        // In another session.
        "exec setsid --wait sh -c 'echo $$ > pid; exec sleep 1000'",
        // Forked twice, without a parent in the worker.
        "setsid sh -c 'sleep 1000 > /dev/null 2>&1 & echo $! > pid'; sleep 1000",
    ] {
        let scratch = Scratch::new();
        scratch.send(Message::new("a"));
        let worker = scratch.start(&[], started);
        let process = scratch.process("pid");
        worker.signal(Signal::KILL);
        worker.wait();
        scratch.eventually(started, || (!runs(process)).then_some(()));
    }
}

#[test]
fn a_command_is_guarded_from_its_start() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    // The worker stops after the start of the command and before it announces the group.
    let mut work = scratch.work(&["--json"], "echo $$ > pid; exec sleep 1000");
    let worker = scratch.spawn(work.env("POSTRIDER_FAILPOINTS", "work.started=stop"));
    let command = scratch.process("pid");
    scratch.eventually("the worker stands still", || is_stopped(worker.process()).then_some(()));
    worker.signal(Signal::KILL);
    worker.wait();
    scratch.eventually("the command is ended", || (!runs(command)).then_some(()));
}

#[test]
fn a_killed_guard_is_replaced() {
    let scratch = Scratch::new();
    let worker = scratch.start(&["--workers", "2"], "echo $$ > \"$POSTRIDER_HEADER_NAME\"; exec sleep 1000");
    let send = |name: &str| scratch.send(Message::new("a").header("name", name).unwrap());
    send("first");
    let first = scratch.process("first");
    let guard = scratch
        .eventually("there is a guard", || children_of(worker.process()).into_iter().find(|child| *child != first));
    rustix::process::kill_process(guard, Signal::KILL).unwrap();
    scratch.eventually("the guard is gone", || (!runs(guard)).then_some(()));
    send("second");
    let commands = [first, scratch.process("second")];
    worker.signal(Signal::KILL);
    worker.wait();
    for command in commands {
        scratch.eventually("the command is ended", || (!runs(command)).then_some(()));
    }
}

#[test]
fn a_guard_ends_with_its_worker() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let worker = scratch.start(&[], "echo $$ > pid; exec sleep 1000");
    let command = scratch.process("pid");
    let is_guard = |child: &Pid| *child != command;
    let guard = scratch.eventually("there is a guard", || children_of(worker.process()).into_iter().find(is_guard));
    rustix::process::kill_process(command, Signal::KILL).unwrap();
    scratch.eventually("it waits", || (scratch.counts()[2] == 1).then_some(()));
    assert!(worker.stop().status.success());
    scratch.eventually("the guard is gone", || (!runs(guard)).then_some(()));
}

#[test]
fn a_command_reads_its_whole_message_even_if_its_worker_is_killed() {
    let scratch = Scratch::new();
    scratch.send(Message::new(vec![b'x'; 1_000_000]));
    // In another session and without the name of its run, so that the guard does not find it.
    let script = "exec env -u POSTRIDER_RUN setsid --wait sh -c \
        'echo $$ > pid; until test -e go; do sleep 0.02; done; wc -c > read'";
    let worker = scratch.start(&[], script);
    scratch.process("pid");
    worker.signal(Signal::KILL);
    worker.wait();
    std::fs::write(scratch.file("go"), "").unwrap();
    let read = scratch.eventually("it has read", || Some(scratch.read("read")).filter(|read| read.ends_with('\n')));
    assert_eq!(read.trim(), "1000000");
}

/// With `POSTRIDER_LONG` ten times as many rounds.
#[test]
fn a_storm_of_kills_leaves_no_command_running_and_no_message_read_in_part() {
    const LENGTH: usize = 1_000_000;
    let scratch = Scratch::new();
    for _ in 0..4 {
        scratch.send(Message::new(vec![b'x'; LENGTH]));
    }
    // The sleep lets many commands be killed before they read.
    let script = "echo $$ >> begun; sleep 0.03; wc -c >> read; exit 75";
    let args = ["--workers", "4", "--visibility", "1s", "--retry", "constant,delay=0s,attempts=forever"];
    let begun = || pids(&scratch.read("begun"));
    for round in 0..long(12, 120) {
        let before = begun().len();
        let worker = scratch.start(&args, script);
        scratch.eventually("commands have begun", || (begun().len() > before).then_some(()));
        // A different moment in each round.
        std::thread::sleep(Duration::from_millis(round * 7 % 60));
        worker.signal(Signal::KILL);
        worker.wait();
        scratch.eventually("its commands have ended", || (!begun().into_iter().skip(before).any(runs)).then_some(()));
    }
    let read = scratch.read("read");
    let lengths: Vec<_> = read.lines().map(|line| line.trim().parse::<usize>().unwrap()).collect();
    assert!(lengths.iter().all(|length| *length == LENGTH), "{lengths:?}");
}

/// A broker delivers a message to the next worker as soon as the connection of its worker closes, so only the guard
/// prevents two commands for one message. With `POSTRIDER_LONG` ten times as many rounds.
#[test]
fn a_storm_of_kills_on_a_broker_leaves_no_command_running_and_keeps_the_order_of_a_key() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let OnBroker { scratch, .. } = &OnBroker::new();
    let (rounds, each) = (long(6, 60), long(20, 200) as usize);
    // In every round, the command of this message ends only with its worker.
    scratch.send(&["orders", "held 0", "--key", "held"]);
    for key in KEYS {
        let bodies: String = (0..each).map(|number| format!("{key} {number}\n")).collect();
        scratch.run_with(&["send", "orders", "--lines", "--key", key], bodies.as_bytes()).done();
    }
    let script = "read -r key number; echo \"$key $number begin $$\" >> log; \
        case $key in held) until test -e go; do sleep 0.02; done;; *) sleep 0.02;; esac; \
        echo \"$key $number end $$\" >> log";
    let options = ["--workers", "4", "--retry", "constant,delay=0s,attempts=forever"];
    let work = |more: &[&str]| {
        let mut work = scratch.command(PROGRAM);
        work.args(["work", "orders"]).args(options).args(more).args(["--", "/bin/sh", "-c", script]);
        Worker::start(&mut work)
    };
    let log = || -> Vec<(String, usize, bool, Pid)> {
        let text = std::fs::read_to_string(scratch.file("log")).unwrap_or_default();
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
            assert!(begun.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let mut killed = HashSet::new();
    for round in 0..rounds {
        let worker = work(&[]);
        // The held message is delivered again, although it was not settled.
        let is_held = || log().iter().any(|(key, _, _, process)| key == "held" && !killed.contains(process));
        eventually("the held message is begun", &is_held);
        eventually("the commands of the worker before have ended", &|| !killed.iter().copied().any(runs));
        // A different moment in each round.
        std::thread::sleep(Duration::from_millis(round * 37 % 150));
        worker.signal(Signal::KILL);
        worker.wait();
        killed.extend(log().into_iter().map(|(.., process)| process));
    }
    eventually("the last commands have ended", &|| !killed.iter().copied().any(runs));
    assert!(!log().iter().any(|(key, _, is_begin, _)| key == "held" && !is_begin), "it ended by itself");
    std::fs::write(scratch.file("go"), "").unwrap();
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
fn the_guard_ignores_sigterm() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let worker = scratch.start(&["--visibility", "6s"], "echo $$ > pid; until test -e go; do sleep 0.02; done");
    let command = scratch.process("pid");
    let guard = scratch
        .eventually("there is a guard", || children_of(worker.process()).into_iter().find(|child| *child != command));
    let is_ready = |guard: Pid| {
        // The mask of caught signals has SIGTERM when the guard listens.
        let status = std::fs::read_to_string(format!("/proc/{}/status", guard.as_raw_nonzero())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default().trim().to_owned();
        u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask & (1 << 14) != 0)
    };
    scratch.eventually("the guard listens", || is_ready(guard).then_some(()));
    rustix::process::kill_process(guard, Signal::TERM).unwrap();
    worker.signal(Signal::TERM);
    scratch.eventually_renewed("while the worker waits for its command", || assert!(runs(guard) && runs(command)));
    std::fs::write(scratch.file("go"), "").unwrap();
    assert!(worker.wait().status.success());
}
