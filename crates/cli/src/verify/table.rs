//! The report as a text table.

use std::fmt::Write;

use postrider_conformance::{Outcome, Report};

/// Width of the notes, for a terminal of 100 columns.
const NOTE_WIDTH: usize = 46;

pub(super) fn render(url: &str, report: &Report) -> String {
    let mut text = format!("{url} (provider {}, seed {})\n\n", report.provider, report.seed);
    push_row(&mut text, ["RULE", "NAME", "OUTCOME", "HOW"], "NOTE");
    for rule in &report.rules {
        let outcome = rule.outcome.as_str().replace('_', " ");
        let number = rule.rule.to_string();
        let cells = [number.as_str(), rule.rule.title(), &outcome, rule.how().unwrap_or("-")];
        push_row(&mut text, cells, &rule.reason().unwrap_or_default());
    }
    let count = |wanted: &str| report.rules.iter().filter(|rule| rule.outcome.as_str() == wanted).count();
    let _ = writeln!(
        text,
        "\n{} rules: {} hold, {} refused, {} not exercised, {} broken",
        report.rules.len(),
        count(Outcome::Holds.as_str()),
        count("refused"),
        count("not_exercised"),
        count("broken"),
    );
    text
}

fn push_row(text: &mut String, [rule, name, outcome, how]: [&str; 4], note: &str) {
    let mut lines = fold(note).into_iter();
    let first = lines.next().unwrap_or_default();
    let line = format!("{rule:<5} {name:<20} {outcome:<14} {how:<9} {first}");
    let _ = writeln!(text, "{}", line.trim_end());
    for line in lines {
        let _ = writeln!(text, "{:52}{line}", "");
    }
}

fn fold(note: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in note.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= NOTE_WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_folded_at_words() {
        let note = "word ".repeat(30);
        assert!(fold(&note).iter().all(|line| line.len() <= NOTE_WIDTH));
        assert_eq!(fold(&note).join(" "), note.trim_end());
        assert_eq!(fold("").join("|"), "");
    }
}
