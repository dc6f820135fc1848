//! A worker that is stopped between the claim of tasks and the start of their commands.

use rustix::process::Signal;

use super::home::{Home, MODES, eventually};
use crate::stderr;
use crate::work::scratch::is_stopped;

#[test]
fn no_command_starts_for_tasks_whose_leases_ended_while_the_worker_was_stopped() {
    let in_a_file = MODES.map(|mode| (mode, Home::sqlite().in_mode(mode)));
    for (mode, home) in in_a_file.into_iter().chain([("served", Home::served(MODES[0]))]) {
        let scratch = home.scratch;
        let ids: Vec<_> = (0..3).map(|_| scratch.create(&["a", "", "--retry", "constant,delay=0s"])).collect();
        // Stops at the first of several tasks that were claimed together.
        let scratch = scratch.with("POSTRIDER_FAILPOINTS", "task.begin=stop");
        let args = ["--type", "a", "--workers", "3", "--lease", "2s"];
        let frozen = scratch.start(&args, "echo \"$POSTRIDER_TASK_ID\" >> begun");
        eventually("it stands still", || is_stopped(frozen.process()).then_some(()));
        let scratch = scratch.with("POSTRIDER_FAILPOINTS", "");
        let other = scratch.start(&args, "true");
        for id in &ids {
            eventually("another has done it", || (scratch.state(id) == "SUCCEEDED").then_some(()));
        }
        assert!(other.stop().status.success());
        frozen.signal(Signal::CONT);
        // The resumed worker handles new tasks.
        let last = scratch.create(&["a", ""]);
        eventually("it goes on", || (scratch.state(&last) == "SUCCEEDED").then_some(()));
        let output = frozen.stop();
        assert!(output.status.success(), "{mode}: {}", stderr(&output));
        let begun = std::fs::read_to_string(scratch.file("begun")).unwrap();
        assert_eq!(begun, format!("{last}\n"), "{mode}: {}", stderr(&output));
    }
}
