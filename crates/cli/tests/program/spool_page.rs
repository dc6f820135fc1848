//! Runs the shell commands of `docs/spool.md`.

use crate::scratch::{PROGRAM, Run, Scratch};

const PAGE: &str = include_str!("../../../../docs/spool.md");

#[test]
fn the_shell_commands_of_the_page_work() {
    let parts: Vec<&str> = PAGE.split("```sh spool\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(parts.len(), 5, "the page has other parts");
    let scratch = Scratch::bare();
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder").to_owned();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(env!("PATH")))).expect("a path");
    // Ends at the first command that fails. A numbered line separates the output of the parts.
    let script: String =
        parts.iter().enumerate().map(|(number, part)| format!("{part}\necho '== {number}'\n")).collect();
    let output = scratch.command("sh").env("PATH", path).args(["-euc", &script]).output().expect("a shell");
    let run = Run::of(output, scratch.file("").as_path()).done();
    let printed: Vec<&str> = run.stdout.split("== ").collect();
    // Inspect: the files with their original names, and the body of the sent message.
    assert!(printed[1].contains("tea.json\n") && printed[1].contains("milk.json\n"), "{run:?}");
    assert!(printed[1].contains("{\"item\": \"coffee\"}"), "{run:?}");
    // Consume: an answer for each handled message.
    for item in ["tea", "coffee"] {
        assert!(printed[2].contains(&format!("done: {{\"item\": \"{item}\"}}")), "{run:?}");
    }
    assert!(!printed[2].contains("done: {\"item\": \"milk\""), "{run:?}");
    // Look: the dead letter keeps its name, and its record has the reason.
    assert!(printed[3].contains("~milk.json\n") && printed[3].contains("\"reason\": \"rejected\""), "{run:?}");
    assert!(printed[3].contains("litres is no number"), "{run:?}");
    // Replay: the message is handled, and no file is left.
    let answers: Vec<String> = std::fs::read_dir(scratch.file("mail/orders/outgoing"))
        .expect("the answers")
        .map(|answer| std::fs::read_to_string(answer.expect("a file").path()).expect("an answer"))
        .collect();
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert!(answers.contains(&"done: {\"item\": \"milk\", \"liters\": 2}\n".to_owned()), "{answers:?}");
    for folder in ["incoming", "processing", "failed", "records", "tmp"] {
        let left = std::fs::read_dir(scratch.file("mail/orders").join(folder)).expect("a folder").count();
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
