//! Runs the tour of the README.

use crate::scratch::{PROGRAM, Run, Scratch};

#[test]
fn the_tour_of_the_readme_works() {
    let readme = include_str!("../../../../README.md");
    let tour = readme.split("```sh tour\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a tour");
    let scratch = Scratch::bare();
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(env!("PATH")))).expect("a path");
    // Ends at the first command that fails, unless the tour expects the failure.
    let output = scratch.command("sh").env("PATH", path).args(["-euc", tour]).output().expect("a shell");
    let run = Run::of(output, scratch.file("").as_path()).done();
    for noted in ["extended", "refused, as it must be", "dead-lettered: rejected", "1 dead letter redriven", "3 hold"] {
        assert!(run.stdout.contains(noted), "{noted:?} is not in {run:?}");
    }
    for handled in ["one", "two", "three", "milk"] {
        assert!(run.stderr.contains(handled), "{handled:?} is not in {run:?}");
    }
    let stats = scratch.row(&["--url", &format!("sqlite:{}", scratch.file("shop.db").display()), "stats", "orders"]);
    let count = |name: &str| stats[name].as_u64();
    assert_eq!(["ready", "in_flight", "delayed", "dead"].map(count), [Some(0), Some(0), Some(1), Some(0)], "{stats}");
}
