//! A worker that stands still between the claim of messages and the begin of their commands.

use postrider::Message;
use rustix::process::Signal;

use super::place::{Place, rows, stands_still};
use crate::stderr;

#[test]
fn no_command_begins_for_messages_whose_leases_ended_while_the_worker_stood_still() {
    // At the first of several messages that were claimed together, and at a later one.
    for at in ["work.begin=stop", "work.begin=stop@2"] {
        let place = Place::new();
        for _ in 0..3 {
            place.send(Message::new("a"));
        }
        let mut work = place.work(
            &["--json", "--workers", "3", "--visibility", "3s"],
            "echo \"$POSTRIDER_MESSAGE_ID $POSTRIDER_RECEIVE_COUNT\" >> begun; until test -e go; do sleep 0.02; done",
        );
        let worker = place.spawn(work.env("POSTRIDER_FAILPOINTS", at));
        place.eventually("it stands still", || stands_still(worker.process()).then_some(()));
        // What had begun before that ends, and is settled too late.
        std::fs::write(place.file("go"), "").unwrap();
        let others: Vec<_> = (0..3).map(|_| place.eventually("another gets it", || place.receive())).collect();
        worker.signal(Signal::CONT);
        // It goes on, with what is sent now.
        let last = place.send(Message::new("b"));
        place.eventually("it goes on", || place.read("begun").contains(&last.to_string()).then_some(()));
        let output = worker.stop();
        assert!(output.status.success(), "{}", stderr(&output));
        let begun = place.read("begun");
        let late: Vec<_> = begun.lines().filter(|line| !line.starts_with(&last.to_string())).collect();
        let before = usize::from(at.ends_with("@2"));
        assert_eq!(late.len(), before, "{at}: {begun}");
        assert!(rows(&output).iter().filter(|row| row["outcome"] == "acked").count() == 1, "{at}");
        for message in others {
            assert_eq!(message.receive_count(), 2);
            place.ack(message);
        }
    }
}
