//! How a worker ends, and what becomes of what it was doing.

use std::process::Stdio;

use postrider::Message;
use rustix::process::Signal;

use super::place::{Place, Worker, rows, runs, stands_still};
use crate::stderr;

#[test]
fn a_worker_that_waits_stops_at_once() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let place = Place::new();
        let worker = place.start(&[], "true");
        place.send(Message::new("a"));
        place.eventually("it works", || (place.counts() == [0, 0, 0, 0]).then_some(()));
        worker.signal(signal);
        assert!(worker.wait().status.success());
    }
}

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let place = Place::new();
    let plain = place.work(&["--json"], "true");
    // As nohup does, and a shell that runs it in the background.
    let mut work = std::process::Command::new("env");
    work.arg("--ignore-signal=HUP,INT").args(plain.get_args().skip(1)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let worker = Worker::start(&mut work);
    let handled = || (place.counts() == [0, 0, 0, 0]).then_some(());
    place.send(Message::new("a"));
    place.eventually("it works", handled);
    worker.signal(Signal::HUP);
    worker.signal(Signal::INT);
    place.send(Message::new("b"));
    place.eventually("it works on", handled);
    let output = worker.stop();
    assert_eq!((output.status.success(), rows(&output).len()), (true, 2), "{}", stderr(&output));
}

#[test]
fn what_runs_may_finish_and_nothing_new_is_begun() {
    let place = Place::new();
    place.send(Message::new("a"));
    place.send(Message::new("b"));
    let worker = place.start(&["--visibility", "6s"], "echo $$ > pid; until test -e go; do sleep 0.02; done");
    place.process("pid");
    worker.signal(Signal::TERM);
    place.eventually_renewed("while the worker waits for its command", || {
        assert_eq!(place.counts(), [1, 1, 0, 0]);
    });
    std::fs::write(place.file("go"), "").unwrap();
    let output = worker.wait();
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = rows(&output);
    assert_eq!((rows.len(), &rows[0]["outcome"]), (1, &"acked".into()));
    let left = place.peek();
    assert_eq!((left.len(), left[0].deliveries_count), (1, 0));
}

#[test]
fn what_does_not_finish_in_time_is_ended_with_its_children_and_comes_back() {
    let place = Place::new();
    place.send(Message::new("a"));
    // The grandchild does not listen to SIGTERM nor holds a pipe, and the command says that all is well.
    let script = r#"trap 'exit 0' TERM; (trap '' TERM; exec sleep 1000 > /dev/null 2>&1) & echo $! > pid; wait"#;
    let worker = place.start(&["--graceful-timeout", "100ms", "--retry", "none"], script);
    let grandchild = place.process("pid");
    let output = worker.stop();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(rows(&output)[0]["outcome"], "retried");
    assert!(!runs(grandchild));
    let left = place.peek();
    assert_eq!((left[0].deliveries_count, left[0].attempts_count), (1, 1));
    assert_eq!(left[0].last_error.as_deref(), Some("stopped with the worker"));
}

#[test]
fn the_second_signal_ends_everything_at_once() {
    let place = Place::new();
    place.send(Message::new("a"));
    let script = "trap '' TERM; sleep 1000 & echo $! > pid; wait; sleep 1000";
    let worker = place.start(&["--graceful-timeout", "1h"], script);
    let grandchild = place.process("pid");
    worker.signal(Signal::INT);
    // Signals that are sent together may arrive as one.
    place.eventually("it has ended", || {
        worker.signal(Signal::INT);
        (!runs(grandchild)).then_some(())
    });
    let output = worker.wait();
    assert!(output.status.success(), "{}", stderr(&output));
    let row = &rows(&output)[0];
    assert_eq!((&row["outcome"], row["signal"].as_i64()), (&"retried".into(), Some(9)));
    assert_eq!(place.counts()[2], 1);
}

#[test]
fn a_command_whose_lease_is_lost_is_stopped_and_its_outcome_is_not_used() {
    let place = Place::new();
    place.send(Message::new("a"));
    let worker = place.start(&["--visibility", "3s"], "echo $$ > pid; sleep 1000; exit 65");
    let command = place.process("pid");
    place.delete_queue();
    place.eventually("the command is stopped", || (!runs(command)).then_some(()));
    let output = worker.stop();
    assert!(output.status.success());
    assert!(stderr(&output).contains("was stopped: the lease on message"), "{}", stderr(&output));
    assert_eq!(rows(&output)[0]["outcome"], "lost");
    assert_eq!(place.counts(), [0, 0, 0, 0]);
}

#[test]
fn a_worker_that_slept_too_long_cannot_settle_what_another_has_by_now() {
    let place = Place::new();
    let id = place.send(Message::new("a"));
    let worker = place.start(&["--visibility", "3s"], "echo $$ > pid; until test -e go; do sleep 0.02; done");
    let command = place.process("pid");
    // Not while it renews the lease: with the file's lock, or in line for it, nobody else could write either.
    place.eventually("it stands still without the lock", || {
        worker.signal(Signal::STOP);
        place.eventually("it stands still", || stands_still(worker.process()).then_some(()));
        let is_free = place.can_write();
        if !is_free {
            worker.signal(Signal::CONT);
        }
        is_free.then_some(())
    });
    let message = place.eventually("another gets it", || place.receive());
    assert_eq!((message.id(), message.receive_count()), (id, 2));
    std::fs::write(place.file("go"), "").unwrap();
    place.eventually("the command has ended", || (!runs(command)).then_some(()));
    worker.signal(Signal::CONT);
    let output = worker.stop();
    let row = &rows(&output)[0];
    assert_eq!((&row["outcome"], row["exit_code"].as_i64()), (&"lost".into(), Some(0)), "{}", stderr(&output));
    place.ack(message);
    assert_eq!(place.counts(), [0, 0, 0, 0]);
}
