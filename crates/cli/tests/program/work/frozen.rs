//! A worker that is stopped between the claim of messages and the start of their commands.

use postrider::Message;
use rustix::process::Signal;

use super::scratch::{Scratch, is_stopped, rows};
use crate::stderr;

#[test]
fn no_command_starts_for_messages_whose_leases_ended_while_the_worker_was_stopped() {
    // Stops at the first of several messages that were claimed together, and at a later one.
    for at in ["work.begin=stop", "work.begin=stop@2"] {
        let scratch = Scratch::new();
        for _ in 0..3 {
            scratch.send(Message::new("a"));
        }
        let mut work = scratch.work(
            &["--json", "--workers", "3", "--visibility", "3s"],
            "echo \"$POSTRIDER_MESSAGE_ID $POSTRIDER_RECEIVE_COUNT\" >> begun; until test -e go; do sleep 0.02; done",
        );
        let worker = scratch.spawn(work.env("POSTRIDER_FAILPOINTS", at));
        scratch.eventually("it stands still", || is_stopped(worker.process()).then_some(()));
        // A command that started before ends now, and its message is settled too late.
        std::fs::write(scratch.file("go"), "").unwrap();
        let others: Vec<_> = (0..3).map(|_| scratch.eventually("another gets it", || scratch.receive())).collect();
        worker.signal(Signal::CONT);
        // The resumed worker handles new messages.
        let last = scratch.send(Message::new("b"));
        scratch.eventually("it goes on", || scratch.read("begun").contains(&last.to_string()).then_some(()));
        let output = worker.stop();
        assert!(output.status.success(), "{}", stderr(&output));
        let begun = scratch.read("begun");
        let late: Vec<_> = begun.lines().filter(|line| !line.starts_with(&last.to_string())).collect();
        let before = usize::from(at.ends_with("@2"));
        assert_eq!(late.len(), before, "{at}: {begun}");
        assert!(rows(&output).iter().filter(|row| row["outcome"] == "acked").count() == 1, "{at}");
        for message in others {
            assert_eq!(message.receive_count(), 2);
            scratch.ack(message);
        }
    }
}
