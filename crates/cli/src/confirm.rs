//! The question before something cannot be undone.

use std::io::{BufRead, IsTerminal};

use crate::failure::Failure;

/// Whether there is somebody to ask: stdin is a terminal, and `--yes` was not said.
pub(crate) fn asks(yes: bool) -> bool {
    !yes && std::io::stdin().is_terminal()
}

/// Asks, when there is somebody to ask.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if !asks(yes) {
        return Ok(());
    }
    eprint!("{question} [y/N] ");
    ask(&mut std::io::stdin().lock())
}

fn ask(answers: &mut impl BufRead) -> Result<(), Failure> {
    let mut answer = String::new();
    // An answer that cannot be read is none.
    let _ = answers.read_line(&mut answer);
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::failed("nothing was done; answer 'y', or say --yes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for (answer, goes_on) in [("y\n", true), (" YES\n", true), ("n\n", false), ("\n", false), ("", false)] {
            assert_eq!(ask(&mut answer.as_bytes()).is_ok(), goes_on, "{answer:?}");
        }
    }
}
