//! Text of messages and configurations, made safe for a terminal.

use std::time::Duration;

use data_encoding::BASE64;
use postrider::{Bytes, duration_text};
use serde::Serialize;

/// A body in JSON: text if it is UTF-8, otherwise base64.
#[derive(Debug, Serialize)]
pub(crate) enum Body<'a> {
    #[serde(rename = "body")]
    Text(&'a str),
    #[serde(rename = "body_base64")]
    Base64(String),
}

impl<'a> Body<'a> {
    pub(crate) fn of(bytes: &'a Bytes) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(_) => Self::Base64(BASE64.encode(bytes)),
        }
    }
}

/// The text on one line, with control characters escaped.
pub(crate) fn one_line(text: &str) -> String {
    escaped(text, |_| false)
}

/// The text with its lines and tabs; other control characters are escaped.
pub(crate) fn lines(text: &str) -> String {
    escaped(text, |c| c == '\n' || c == '\t')
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_kept(c) {
            shown.push(c);
        } else if c.is_control() {
            shown.extend(c.escape_debug());
        } else if changes_direction(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Whether the character changes the direction of its line, or ends the line.
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text on one line of at most `width` characters.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    // A long text is cut before it is escaped.
    let start: String = text.chars().take(width + 1).collect();
    let shown = one_line(&start);
    if shown.chars().count() <= width {
        return shown;
    }
    shown.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The whole body as text.
pub(crate) fn body(bytes: &Bytes) -> String {
    match Body::of(bytes) {
        Body::Text(text) => lines(text),
        Body::Base64(text) => format!("base64:{text}"),
    }
}

/// The body as a table cell.
pub(crate) fn body_cell(bytes: &Bytes, width: usize) -> String {
    match std::str::from_utf8(bytes) {
        Ok("") => "(empty)".into(),
        Ok(text) => shortened(text, width),
        Err(_) => format!("({} bytes of binary data)", bytes.len()),
    }
}

/// A field of a record: its name, and its value with aligned lines.
pub(crate) fn field(name: &str, value: &str) -> String {
    let indent = format!("\n{:<16} ", "");
    format!("{name:<16} {}\n", lines(value.trim_end()).replace('\n', &indent))
}

/// The text in lines of at most `width` characters, broken between words.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// An age in its largest unit.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0 => format!("{}ms", age.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A wait in its two largest units: `45s`, `2m5s`, `2h59m`, `3d1h`.
pub(crate) fn until(wait: Duration) -> String {
    let round = |step: u64| (wait.as_millis() as u64 + step * 500) / (step * 1000) * step;
    let two = |count: u64, unit: u64, name: &str, rest: &str, rest_unit: u64| match count % unit / rest_unit {
        0 => format!("{}{name}", count / unit),
        part => format!("{}{name}{part}{rest}", count / unit),
    };
    match wait.as_millis() {
        0..1_000 => format!("{}ms", wait.as_millis()),
        _ if round(1) < 60 => format!("{}s", round(1)),
        _ if round(1) < 3600 => two(round(1), 60, "m", "s", 1),
        _ if round(60) < 86_400 => two(round(60), 3600, "h", "m", 60),
        _ => two(round(3600), 86_400, "d", "h", 3600),
    }
}

/// A delay rounded up: to milliseconds, from one second on to tenths of a second.
pub(crate) fn delay(delay: Duration) -> String {
    duration_text::show(rounded(delay))
}

fn rounded(delay: Duration) -> Duration {
    let step = if delay < Duration::from_secs(1) { 1 } else { 100 };
    let steps = delay.as_nanos().div_ceil(step * 1_000_000);
    Duration::from_millis(u64::try_from(steps * step).unwrap_or(u64::MAX))
}

/// A number with its noun.
pub(crate) fn counted(count: u64, one: &str, several: &str) -> String {
    let noun = if count == 1 { one } else { several };
    format!("{count} {noun}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(one_line("a\x1b[31mred\r\n\u{202e}b"), "a\\u{1b}[31mred\\r\\n\\u{202e}b");
        assert_eq!(lines("a\n\tb\x07\u{9b}"), "a\n\tb\\u{7}\\u{9b}");
        assert_eq!(one_line("\"Grüße\" \\n"), "\"Grüße\" \\n");
    }

    #[test]
    fn long_texts_are_cut_by_characters() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äö…");
        assert_eq!(shortened(&"\n".repeat(1000), 5), "\\n\\n…");
    }

    #[test]
    fn ages_have_one_unit() {
        let shown = |millis| age(Duration::from_millis(millis));
        assert_eq!([shown(0), shown(999), shown(1_000), shown(59_999)], ["0ms", "999ms", "1s", "59s"]);
        assert_eq!([shown(60_000), shown(3_600_000), shown(86_400_000)], ["1m", "1h", "1d"]);
    }

    #[test]
    fn waits_are_rounded_to_the_nearest_step() {
        let shown = |millis| until(Duration::from_millis(millis));
        assert_eq!([shown(7), shown(1_400), shown(1_600), shown(59_600)], ["7ms", "1s", "2s", "1m"]);
        assert_eq!([shown(125_000), shown(3_599_400), shown(3_599_600)], ["2m5s", "59m59s", "1h"]);
        // Slightly less than three hours.
        let (minute, hour) = (60_000, 3_600_000);
        assert_eq!([shown(3 * hour - 40), shown(3 * hour - minute), shown(hour + 20_000)], ["3h", "2h59m", "1h"]);
        assert_eq!([shown(24 * hour - 1), shown(73 * hour), shown(240 * hour)], ["1d", "3d1h", "10d"]);
    }

    #[test]
    fn lines_of_a_value_are_aligned_and_long_lines_are_wrapped() {
        let shown = field("error", "exit code 4\nline\x1b[2J 1\n");
        let blank = " ".repeat(17);
        assert_eq!(shown, format!("error            exit code 4\n{blank}line\\u{{1b}}[2J 1\n"));
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("incomprehensible", 7), ["incomprehensible"]);
    }

    #[test]
    fn a_delay_is_rounded_up() {
        let shown = |micros| rounded(Duration::from_micros(micros)).as_millis();
        assert_eq!([0, 1, 7_000, 7_001, 999_900, 1_000_001].map(shown), [0, 1, 7, 8, 1000, 1100]);
    }
}
