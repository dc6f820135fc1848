//! Progress lines on a command's stderr.

use postrider::tasks::TaskContext;

use crate::command::{Echo, Sieve};

const MARK: &str = "postrider:progress ";

/// Upper bound of the text, in bytes.
const MAX_TEXT: usize = 1024;

/// Takes the progress lines out and sends them to the store.
pub(super) fn sieve(task: TaskContext, echo: Echo) -> Sieve {
    let mut has_warned = false;
    Sieve::new(MARK, move |line| {
        let is_read = read(line).is_some_and(|(fraction, text)| task.progress(fraction, text).is_ok());
        if !is_read && !std::mem::replace(&mut has_warned, true) {
            let id = task.id();
            echo.warn(format_args!(
                "the progress of task {id} cannot be read; write it like '{MARK}0.5 half of the pages'"
            ));
        }
        is_read
    })
}

/// Parses a fraction and an optional text.
fn read(line: &str) -> Option<(f64, String)> {
    let (number, text) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let fraction: f64 = number.parse().ok()?;
    let text = text.trim();
    // Not every store can hold a NUL.
    let text = text[..text.floor_char_boundary(MAX_TEXT)].replace('\0', "\u{fffd}");
    let text = text[..text.floor_char_boundary(MAX_TEXT)].to_owned();
    (0.0..=1.0).contains(&fraction).then_some((fraction, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_fraction_and_a_text() {
        assert_eq!(read("0.4 two of five"), Some((0.4, "two of five".into())));
        assert_eq!((read("1"), read("0\t")), (Some((1.0, String::new())), Some((0.0, String::new()))));
        for wrong in ["", "two of five", "1.1", "-0.1", "NaN", "inf", "40%"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let (_, text) = read(&format!("0.5 {}\0", "ä".repeat(600))).unwrap();
        assert_eq!(text, "ä".repeat(512));
        assert_eq!(read("0.5 a\0b").unwrap().1, "a\u{fffd}b");
    }
}
