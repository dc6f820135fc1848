//! The tour of the README, typed in as it stands there.

use crate::place::{PROGRAM, Place, Run};

#[test]
fn the_tour_goes_as_the_readme_says() {
    let readme = include_str!("../../../../README.md");
    let tour = readme.split("```sh tour\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a tour");
    let place = Place::bare();
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(env!("PATH")))).expect("a path");
    // Any command that fails where the tour does not say so ends it.
    let output = place.command("sh").env("PATH", path).args(["-euc", tour]).output().expect("a shell");
    let run = Run::of(output, place.file("").as_path()).done();
    for told in ["extended", "refused, as it must be", "dead-lettered: rejected", "1 dead letter went back", "3 hold"] {
        assert!(run.stdout.contains(told), "{told:?} is not in {run:?}");
    }
    for handled in ["one", "two", "three", "milk"] {
        assert!(run.stderr.contains(handled), "{handled:?} is not in {run:?}");
    }
    let stats = place.row(&["--url", &format!("sqlite:{}", place.file("shop.db").display()), "stats", "orders"]);
    let count = |name: &str| stats[name].as_u64();
    assert_eq!(["ready", "in_flight", "delayed", "dead"].map(count), [Some(0), Some(0), Some(1), Some(0)], "{stats}");
}
