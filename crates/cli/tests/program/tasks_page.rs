//! The shell of `docs/tasks.md`, typed in as it stands there.

use crate::place::{PROGRAM, Place, Run};

const PAGE: &str = include_str!("../../../../docs/tasks.md");

#[test]
fn the_shell_of_the_page_does_what_the_page_says() {
    let script = PAGE.split("```sh tasks\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a part");
    let place = Place::bare();
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(env!("PATH")))).expect("a path");
    // Any command that fails ends it.
    let output = place.command("sh").env("PATH", path).args(["-euc", script]).output().expect("a shell");
    let run = Run::of(output, place.file("").as_path()).done();
    let lines: Vec<&str> = run.stdout.lines().collect();
    // The same idempotency key is one task.
    assert_eq!(lines[0], lines[1], "{run:?}");
    assert_ne!(lines[0], lines[2], "{run:?}");
    let has = |text: &str| assert!(run.stdout.contains(text), "{text}: {run:?}");
    has("SUCCEEDED");
    has("PENDING");
    has("order is no number");
    // The mended payload is what the last worker answered.
    has("{\"order\": 9}");
    has("reminders");
}
