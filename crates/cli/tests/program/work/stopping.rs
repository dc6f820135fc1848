//! The stop of a worker and the outcome of its running messages.

use std::process::Stdio;

use postrider::Message;
use rustix::process::Signal;

use super::scratch::{Scratch, Worker, is_stopped, rows, runs};
use crate::stderr;

#[test]
fn a_waiting_worker_stops_at_once() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let scratch = Scratch::new();
        let worker = scratch.start(&[], "true");
        scratch.send(Message::new("a"));
        scratch.eventually("it works", || (scratch.counts() == [0, 0, 0, 0]).then_some(()));
        worker.signal(signal);
        assert!(worker.wait().status.success());
    }
}

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let scratch = Scratch::new();
    let plain = scratch.work(&["--json"], "true");
    // Like nohup, and like a shell for background jobs.
    let mut work = std::process::Command::new("env");
    work.arg("--ignore-signal=HUP,INT").args(plain.get_args().skip(1)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let worker = Worker::start(&mut work);
    let handled = || (scratch.counts() == [0, 0, 0, 0]).then_some(());
    scratch.send(Message::new("a"));
    scratch.eventually("it works", handled);
    worker.signal(Signal::HUP);
    worker.signal(Signal::INT);
    scratch.send(Message::new("b"));
    scratch.eventually("it works on", handled);
    let output = worker.stop();
    assert_eq!((output.status.success(), rows(&output).len()), (true, 2), "{}", stderr(&output));
}

#[test]
fn running_commands_may_finish_and_no_new_one_starts() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    scratch.send(Message::new("b"));
    let worker = scratch.start(&["--visibility", "6s"], "echo $$ > pid; until test -e go; do sleep 0.02; done");
    scratch.process("pid");
    worker.signal(Signal::TERM);
    scratch.eventually_renewed("while the worker waits for its command", || {
        assert_eq!(scratch.counts(), [1, 1, 0, 0]);
    });
    std::fs::write(scratch.file("go"), "").unwrap();
    let output = worker.wait();
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = rows(&output);
    assert_eq!((rows.len(), &rows[0]["outcome"]), (1, &"acked".into()));
    let left = scratch.peek();
    assert_eq!((left.len(), left[0].deliveries_count), (1, 0));
}

#[test]
fn a_command_that_does_not_finish_in_time_is_killed_with_its_children_and_retried() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    // The grandchild ignores SIGTERM and holds no pipe, and the command exits with 0.
    let script = r#"trap 'exit 0' TERM; (trap '' TERM; exec sleep 1000 > /dev/null 2>&1) & echo $! > pid; wait"#;
    let worker = scratch.start(&["--graceful-timeout", "100ms", "--retry", "none"], script);
    let grandchild = scratch.process("pid");
    let output = worker.stop();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(rows(&output)[0]["outcome"], "retried");
    assert!(!runs(grandchild));
    let left = scratch.peek();
    assert_eq!((left[0].deliveries_count, left[0].attempts_count), (1, 1));
    assert_eq!(left[0].last_error.as_deref(), Some("stopped with the worker"));
}

#[test]
fn the_second_signal_kills_running_commands() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let script = "trap '' TERM; sleep 1000 & echo $! > pid; wait; sleep 1000";
    let worker = scratch.start(&["--graceful-timeout", "1h"], script);
    let grandchild = scratch.process("pid");
    worker.signal(Signal::INT);
    // Signals that are sent together may arrive as one.
    scratch.eventually("it has ended", || {
        worker.signal(Signal::INT);
        (!runs(grandchild)).then_some(())
    });
    let output = worker.wait();
    assert!(output.status.success(), "{}", stderr(&output));
    let row = &rows(&output)[0];
    assert_eq!((&row["outcome"], row["signal"].as_i64()), (&"retried".into(), Some(9)));
    assert_eq!(scratch.counts()[2], 1);
}

#[test]
fn a_command_whose_lease_is_lost_is_stopped_and_its_outcome_ignored() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let worker = scratch.start(&["--visibility", "3s"], "echo $$ > pid; sleep 1000; exit 65");
    let command = scratch.process("pid");
    scratch.delete_queue();
    scratch.eventually("the command is stopped", || (!runs(command)).then_some(()));
    let output = worker.stop();
    assert!(output.status.success());
    assert!(stderr(&output).contains("was stopped: the lease on message"), "{}", stderr(&output));
    assert_eq!(rows(&output)[0]["outcome"], "lost");
    assert_eq!(scratch.counts(), [0, 0, 0, 0]);
}

#[test]
fn a_worker_that_was_stopped_too_long_cannot_settle_a_message_leased_by_another() {
    let scratch = Scratch::new();
    let id = scratch.send(Message::new("a"));
    let worker = scratch.start(&["--visibility", "3s"], "echo $$ > pid; until test -e go; do sleep 0.02; done");
    let command = scratch.process("pid");
    // Not while the worker renews the lease: it would hold or wait for the file's lock and block other writers.
    scratch.eventually("it stands still without the lock", || {
        worker.signal(Signal::STOP);
        scratch.eventually("it stands still", || is_stopped(worker.process()).then_some(()));
        let is_free = scratch.can_write();
        if !is_free {
            worker.signal(Signal::CONT);
        }
        is_free.then_some(())
    });
    let message = scratch.eventually("another gets it", || scratch.receive());
    assert_eq!((message.id(), message.receive_count()), (id, 2));
    std::fs::write(scratch.file("go"), "").unwrap();
    scratch.eventually("the command has ended", || (!runs(command)).then_some(()));
    worker.signal(Signal::CONT);
    let output = worker.stop();
    let row = &rows(&output)[0];
    assert_eq!((&row["outcome"], row["exit_code"].as_i64()), (&"lost".into(), Some(0)), "{}", stderr(&output));
    scratch.ack(message);
    assert_eq!(scratch.counts(), [0, 0, 0, 0]);
}
