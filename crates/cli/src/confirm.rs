//! Confirmation of a command that cannot be undone.

use std::io::{BufRead, IsTerminal};

use crate::failure::Failure;

/// Whether to ask: stdin is a terminal, and `--yes` was not given.
pub(crate) fn should_ask(yes: bool) -> bool {
    !yes && std::io::stdin().is_terminal()
}

/// Asks the question if stdin is a terminal, and fails unless the answer is yes.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if !should_ask(yes) {
        return Ok(());
    }
    eprint!("{question} [y/N] ");
    ask(&mut std::io::stdin().lock())
}

fn ask(answers: &mut impl BufRead) -> Result<(), Failure> {
    let mut answer = String::new();
    // An answer that cannot be read counts as no.
    let _ = answers.read_line(&mut answer);
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::failed("nothing was done; answer 'y', or pass --yes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_y_and_yes_confirm() {
        for (answer, goes_on) in [("y\n", true), (" YES\n", true), ("n\n", false), ("\n", false), ("", false)] {
            assert_eq!(ask(&mut answer.as_bytes()).is_ok(), goes_on, "{answer:?}");
        }
    }
}
