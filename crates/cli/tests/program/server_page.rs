//! Runs the shell commands of `docs/server.md`.

use crate::scratch::{PROGRAM, Run, Scratch};

const PAGE: &str = include_str!("../../../../docs/server.md");

#[test]
fn the_shell_commands_of_the_page_work() {
    let script = PAGE.split("```sh server\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a part");
    let scratch = Scratch::bare();
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(env!("PATH")))).expect("a path");
    let command = format!("cd \"$1\"\n{script}");
    // Ends at the first command that fails.
    let output = scratch.command("sh").env("PATH", path).args(["-euc", &command, "sh"]).arg(scratch.file("")).output();
    let run = Run::of(output.expect("a shell"), scratch.file("").as_path()).done();
    let has = |text: &str| assert!(run.stdout.contains(text), "{text}: {run:?}");
    has("\"queue\":\"orders\"");
    has("\"outcome\":\"done\"");
    has("acked: exit code 0");
    has("READY");
}
