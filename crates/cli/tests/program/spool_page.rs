//! The shell of `docs/spool.md`, typed in as it stands there.

use crate::place::{PROGRAM, Place, Run};

const PAGE: &str = include_str!("../../../../docs/spool.md");

#[test]
fn the_shell_of_the_page_does_what_the_page_says() {
    let parts: Vec<&str> = PAGE.split("```sh spool\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(parts.len(), 5, "the page has other parts");
    let place = Place::bare();
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(env!("PATH")))).expect("a path");
    // Any command that fails ends it. What each part prints is told apart by its number.
    let script: String =
        parts.iter().enumerate().map(|(number, part)| format!("{part}\necho '== {number}'\n")).collect();
    let output = place.command("sh").env("PATH", path).args(["-euc", &script]).output().expect("a shell");
    let run = Run::of(output, place.file("").as_path()).done();
    let printed: Vec<&str> = run.stdout.split("== ").collect();
    // Inspect: the files by the names that they came with, and the body of what was sent.
    assert!(printed[1].contains("tea.json\n") && printed[1].contains("milk.json\n"), "{run:?}");
    assert!(printed[1].contains("{\"item\": \"coffee\"}"), "{run:?}");
    // Consume: an answer for each that could be handled.
    for item in ["tea", "coffee"] {
        assert!(printed[2].contains(&format!("done: {{\"item\": \"{item}\"}}")), "{run:?}");
    }
    assert!(!printed[2].contains("done: {\"item\": \"milk\""), "{run:?}");
    // Look: the dead letter keeps its name, and the record says why.
    assert!(printed[3].contains("~milk.json\n") && printed[3].contains("\"reason\": \"rejected\""), "{run:?}");
    assert!(printed[3].contains("litres is no number"), "{run:?}");
    // Replay: handled now, and nothing is left anywhere.
    let answers: Vec<String> = std::fs::read_dir(place.file("mail/orders/outgoing"))
        .expect("the answers")
        .map(|answer| std::fs::read_to_string(answer.expect("a file").path()).expect("an answer"))
        .collect();
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert!(answers.contains(&"done: {\"item\": \"milk\", \"liters\": 2}\n".to_owned()), "{answers:?}");
    for folder in ["incoming", "processing", "failed", "records", "tmp"] {
        let left = std::fs::read_dir(place.file("mail/orders").join(folder)).expect("a folder").count();
        assert_eq!(left, 0, "{folder}: {run:?}");
    }
}

#[test]
fn every_part_of_a_name_is_on_the_page_as_the_code_has_it() {
    let source = include_str!("../../../spool/src/name.rs");
    let written = |text: &str| {
        let lines = text.lines().map(|line| line.trim_start_matches("//! "));
        let table =
            lines.skip_while(|line| !line.starts_with("until-2026")).take_while(|line| !line.starts_with("```"));
        table.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(written(PAGE), written(source));
    assert_eq!(written(PAGE).len(), 12);
}
