//! A worker that stands still between the claim of tasks and the begin of their commands.

use rustix::process::Signal;

use super::home::{Home, MODES, eventually};
use crate::stderr;
use crate::work::place::stands_still;

#[test]
fn no_command_begins_for_tasks_whose_leases_ended_while_the_worker_stood_still() {
    let in_a_file = MODES.map(|mode| (mode, Home::sqlite().in_mode(mode)));
    for (mode, home) in in_a_file.into_iter().chain([("served", Home::served(MODES[0]))]) {
        let place = home.place;
        let ids: Vec<_> = (0..3).map(|_| place.create(&["a", "", "--retry", "constant,delay=0s"])).collect();
        // At the first of several tasks that were claimed together.
        let place = place.with("POSTRIDER_FAILPOINTS", "task.begin=stop");
        let args = ["--type", "a", "--workers", "3", "--lease", "2s"];
        let frozen = place.start(&args, "echo \"$POSTRIDER_TASK_ID\" >> begun");
        eventually("it stands still", || stands_still(frozen.process()).then_some(()));
        let place = place.with("POSTRIDER_FAILPOINTS", "");
        let other = place.start(&args, "true");
        for id in &ids {
            eventually("another has done it", || (place.state(id) == "SUCCEEDED").then_some(()));
        }
        assert!(other.stop().status.success());
        frozen.signal(Signal::CONT);
        // It goes on, with what is made now.
        let last = place.create(&["a", ""]);
        eventually("it goes on", || (place.state(&last) == "SUCCEEDED").then_some(()));
        let output = frozen.stop();
        assert!(output.status.success(), "{mode}: {}", stderr(&output));
        let begun = std::fs::read_to_string(place.file("begun")).unwrap();
        assert_eq!(begun, format!("{last}\n"), "{mode}: {}", stderr(&output));
    }
}
