//! The shell of `docs/server.md`, typed in as it stands there.

use crate::place::{PROGRAM, Place, Run};

const PAGE: &str = include_str!("../../../../docs/server.md");

#[test]
fn the_shell_of_the_page_does_what_the_page_says() {
    let script = PAGE.split("```sh server\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a part");
    let place = Place::bare();
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(env!("PATH")))).expect("a path");
    let command = format!("cd \"$1\"\n{script}");
    // Any command that fails ends it.
    let output = place.command("sh").env("PATH", path).args(["-euc", &command, "sh"]).arg(place.file("")).output();
    let run = Run::of(output.expect("a shell"), place.file("").as_path()).done();
    let has = |text: &str| assert!(run.stdout.contains(text), "{text}: {run:?}");
    has("\"queue\":\"orders\"");
    has("\"outcome\":\"done\"");
    has("acked: exit code 0");
    has("READY");
}
