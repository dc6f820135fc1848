//! Runs the shell commands of `docs/tasks.md`.

use crate::scratch::{PROGRAM, Run, Scratch};

const PAGE: &str = include_str!("../../../../docs/tasks.md");

#[test]
fn the_shell_commands_of_the_page_work() {
    let script = PAGE.split("```sh tasks\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a part");
    let scratch = Scratch::bare();
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(env!("PATH")))).expect("a path");
    // Ends at the first command that fails.
    let output = scratch.command("sh").env("PATH", path).args(["-euc", script]).output().expect("a shell");
    let run = Run::of(output, scratch.file("").as_path()).done();
    let lines: Vec<&str> = run.stdout.lines().collect();
    // The same idempotency key gives one task.
    assert_eq!(lines[0], lines[1], "{run:?}");
    assert_ne!(lines[0], lines[2], "{run:?}");
    let has = |text: &str| assert!(run.stdout.contains(text), "{text}: {run:?}");
    has("SUCCEEDED");
    has("PENDING");
    has("order is no number");
    // The last worker returned the edited payload.
    has("{\"order\": 9}");
    has("reminders");
}
