//! The kind of an error: its text without the parts that differ between messages.
//!
//! An error text names the order, the host, the time. Grouped by text, twenty thousand errors of three kinds are
//! thousands of groups. The fingerprint keeps the words and replaces the rest: a number, id, hash, date or time by `#`,
//! a quoted value by `<value>`, a path by `<path>`. It is readable text and not a hash, so that two kinds never
//! collide.

/// Upper bound of the examined part of an error line, in bytes.
const MAX_READ: usize = 1000;

/// Upper bound of a fingerprint, in bytes.
const MAX_WRITTEN: usize = 200;

/// The fingerprint of a dead letter without an error text.
pub const NO_ERROR_TEXT: &str = "(no error text)";

const NUMBER: &str = "#";
const VALUE: &str = "<value>";
const PATH: &str = "<path>";

/// The ending of a command and the most informative line of its error, for lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorSummary<'a> {
    /// The ending of a command, like `exit code 65`; `None` if the error is not from a command.
    pub ending: Option<&'a str>,
    /// The last line of a command's stderr; of other errors the first line.
    pub line: &'a str,
}

impl<'a> ErrorSummary<'a> {
    /// Summarizes an error text.
    pub fn of(error: &'a str) -> Self {
        let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        let last = lines.next_back();
        match command_ending(first) {
            Some(ending) => Self { ending: Some(ending), line: last.unwrap_or_default() },
            // Python prints the error on the last line.
            None if first.starts_with("Traceback (most recent call last)") => {
                Self { ending: None, line: last.unwrap_or(first) }
            }
            None => Self { ending: None, line: first },
        }
    }
}

/// The ending of a command, if the line is one; a remark in parentheses may follow it.
fn command_ending(line: &str) -> Option<&str> {
    let ending = match line.split_once(" (") {
        Some((ending, remark)) if remark.ends_with(')') => ending,
        _ => line,
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_ending = ending.strip_prefix("exit code ").is_some_and(is_number)
        || ending.strip_prefix("ended by signal ").is_some_and(is_number)
        || (ending.starts_with("stopped after ") && ending.ends_with(", its --timeout"))
        || ending == "stopped with the worker";
    is_ending.then_some(ending)
}

/// The kind of an error: equal for texts that differ only in numbers, ids, quoted values, paths and times.
pub fn error_fingerprint(error: Option<&str>) -> String {
    let summary = ErrorSummary::of(error.unwrap_or_default());
    let mut kind = match summary.ending {
        // The meaning of an exit code depends on the command, so each code is a kind.
        Some(ending) if ending.starts_with("stopped after ") => "stopped after its --timeout".to_owned(),
        Some(ending) => ending.to_owned(),
        None => String::new(),
    };
    if !summary.line.is_empty() {
        if !kind.is_empty() {
            kind.push_str(": ");
        }
        kind.push_str(&without_details(prefix(summary.line, MAX_READ)));
    }
    if kind.is_empty() {
        return NO_ERROR_TEXT.to_owned();
    }
    kind.truncate(prefix(&kind, MAX_WRITTEN).trim_end().len());
    kind
}

fn prefix(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Replaces the parts of a line that differ between errors of a kind.
fn without_details(line: &str) -> String {
    let mut kind = Fingerprint { written: String::with_capacity(line.len()) };
    let mut rest = line;
    let mut before = None;
    while let Some(c) = rest.chars().next() {
        let is_word_begin = !before.is_some_and(is_word);
        let length = if let Some(length) = quoted(rest).filter(|_| is_word_begin) {
            kind.replace(VALUE);
            length
        } else if let Some(address) = rest.strip_prefix("://") {
            let host = chunk(address).split('/').next().unwrap_or_default();
            kind.written.push_str("://");
            kind.written.push_str(&without_details(host));
            "://".len() + host.len()
        } else if let Some(length) = number(rest).filter(|_| is_word_begin) {
            kind.replace(NUMBER);
            length
        } else if let Some(length) = url_path(rest, before).or_else(|| path(rest).filter(|_| is_word_begin)) {
            kind.replace(PATH);
            length
        } else if is_word(c) {
            let word = word_of(rest);
            match word.find(|c: char| c.is_ascii_digit()) {
                // The letters of words like E1234 or order_17 name the kind.
                Some(digits) => {
                    kind.written.push_str(&word[..digits]);
                    kind.replace(NUMBER);
                }
                None => kind.written.push_str(word),
            }
            word.len()
        } else {
            kind.written.push(if c.is_whitespace() { ' ' } else { c });
            c.len_utf8()
        };
        before = rest[..length].chars().next_back();
        rest = &rest[length..];
    }
    kind.written
}

struct Fingerprint {
    written: String,
}

impl Fingerprint {
    /// Writes a placeholder. Adjacent equal placeholders, as in a list or a date, become one.
    fn replace(&mut self, placeholder: &str) {
        let words = self.written.trim_end_matches([' ', ',']);
        if words.ends_with(placeholder) {
            let length = words.len();
            self.written.truncate(length);
        } else {
            self.written.push_str(placeholder);
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn word_of(text: &str) -> &str {
    text.split(|c| !is_word(c)).next().unwrap_or_default()
}

/// Length of a quoted value at the start of the text.
fn quoted(text: &str) -> Option<usize> {
    const QUOTES: [(char, char); 6] = [('"', '"'), ('\'', '\''), ('`', '`'), ('“', '”'), ('‘', '’'), ('«', '»')];
    let open = text.chars().next()?;
    let (_, close) = QUOTES.into_iter().find(|(own, _)| *own == open)?;
    let inside = &text[open.len_utf8()..];
    let mut is_escaped = false;
    for (at, c) in inside.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == close {
            let after = at + c.len_utf8();
            // An apostrophe inside a word does not close a quote.
            if c != '\'' || !inside[after..].starts_with(is_word) {
                return Some(open.len_utf8() + after);
            }
        }
    }
    None
}

/// Text up to the next space or closing character, without trailing punctuation.
fn chunk(text: &str) -> &str {
    let end = text.find(|c: char| c.is_whitespace() || "\"'`“”‘’«»()[]{}<>,;|".contains(c)).unwrap_or(text.len());
    text[..end].trim_end_matches(['.', ':', '!', '?'])
}

/// Length of the path of a URL, after its host.
fn url_path(text: &str, before: Option<char>) -> Option<usize> {
    let path = chunk(text);
    let is_path = path.strip_prefix('/').is_some_and(|rest| rest.starts_with(|c| is_word(c) || "~%?.-".contains(c)))
        && before.is_some_and(|c| is_word(c) || c == ']');
    (is_path && is_path_like(path)).then_some(path.len())
}

/// Whether a path is more than an alternative like "read/write".
fn is_path_like(text: &str) -> bool {
    text.matches('/').count() > 1 || text.contains(|c: char| c.is_ascii_digit() || ".?=%".contains(c))
}

/// Length of a path at the start of the text: absolute, or relative with a file extension or several folders.
fn path(text: &str) -> Option<usize> {
    let own = chunk(text);
    let is_absolute = ["/", "./", "../", "~/"].iter().any(|start| {
        own.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| is_word(c) || "._-~".contains(c)))
    });
    let mut start = own.bytes();
    let has_drive = start.next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && start.next() == Some(b':')
        && matches!(start.next(), Some(b'\\' | b'/'))
        && !own.contains("://");
    let is_relative = own.starts_with(is_word)
        && !own.contains("://")
        && own.contains('/')
        && own.split('/').all(|step| !step.is_empty())
        && (own.matches('/').count() > 1 || own.rsplit('/').next().is_some_and(|file| file.contains('.')));
    (is_absolute || has_drive || is_relative).then_some(own.len())
}

/// Length of a number, id, hash, date, time or address at the start of the text.
fn number(text: &str) -> Option<usize> {
    let signed = text.strip_prefix(['-', '+']).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let unsigned = signed.unwrap_or(text);
    let sign = text.len() - unsigned.len();
    if let Some(length) = uuid(unsigned) {
        return Some(sign + length);
    }
    let first = word_of(unsigned);
    if !is_number_or_id(first) {
        return None;
    }
    let mut length = first.len();
    // 1,234.5 and 2026-11-19T10:00:00.123+01:00 and 10.0.0.1:5432 each count as one.
    loop {
        let rest = &unsigned[length..];
        let Some(next) = rest.strip_prefix(['.', ',', ':', '-', '+', '/']) else { break };
        if !next.starts_with(|c: char| c.is_ascii_digit()) {
            break;
        }
        length += 1 + word_of(next).len();
    }
    if unsigned[length..].starts_with('%') {
        length += 1;
    }
    Some(sign + length)
}

fn uuid(text: &str) -> Option<usize> {
    const LENGTH: usize = 36;
    let bytes = text.as_bytes().get(..LENGTH)?;
    let is_uuid = bytes.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    (is_uuid && !text[LENGTH..].starts_with(is_word)).then_some(LENGTH)
}

/// Whether a word is a number with or without a unit, a hash, or an id of mixed letters and digits.
fn is_number_or_id(word: &str) -> bool {
    let Some(first) = word.bytes().next() else { return false };
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
    // A name like order_17 or E1234 ends with its digits; an id like k7Qx9 does not.
    let is_mixed = || {
        let digits = word.find(|c: char| c.is_ascii_digit()).unwrap_or(word.len());
        word[digits..].contains(|c: char| !c.is_ascii_digit())
    };
    first.is_ascii_digit()
        || (is_hex && (word.len() >= 8 || (has_digit && word.len() >= 6)))
        || (has_digit && (word.len() >= 16 || is_mixed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(error: &str) -> String {
        error_fingerprint(Some(error))
    }

    #[test]
    fn parts_that_differ_between_messages_are_replaced() {
        for (error, wanted) in [
            ("timeout after 30s", "timeout after #"),
            ("order 17 has -3 litres, 12.5 % of 1,234.50", "order # has # litres, # % of #"),
            ("order-1234 and order_99 and E1234", "order-# and order_# and E#"),
            ("order 01900000-0000-7000-8000-0123456789ab is gone", "order # is gone"),
            ("object 5f2a9c and deadbeefcafe and 0x7ffe", "object # and # and #"),
            ("pod k7Qx9 on worker-7d4b9c6f8-x2x9k", "pod # on worker-#-#"),
            ("no column 'anna'", "no column <value>"),
            ("got \"a \\\" b\" and `x` and “y”", "got <value> and <value> and <value>"),
            ("can't read it, won't try", "can't read it, won't try"),
            ("open /var/lib/app/42.db: denied", "open <path>: denied"),
            ("panicked at src/main.rs:5:17", "panicked at <path>"),
            ("POST https://bank.example/charge/77: 503", "POST https://bank.example<path>: #"),
            ("read/write of application/json", "read/write of application/json"),
            ("connection to 10.0.0.1:5432 lost", "connection to # lost"),
            ("at 2026-11-19T10:00:00.123Z and 2026-11-19 10:00:00+01:00", "at # and #"),
            ("one of [1, 2, 3] and ['a', 'b']", "one of [#] and [<value>]"),
            ("C:\\jobs\\7.txt is no file", "<path> is no file"),
            ("x\u{a0}ü 7", "x ü #"),
        ] {
            assert_eq!(kind(error), wanted, "{error}");
        }
    }

    #[test]
    fn the_fingerprint_of_a_fingerprint_is_itself() {
        let long = "x 7 ".repeat(500);
        for error in ["order 17 at /a/b.c:1 said 'no'", "https://a.example:80/b/c?d=1: 503", long.as_str()] {
            let once = kind(error);
            assert_eq!(kind(&once), once, "{error}");
        }
    }

    #[test]
    fn the_kind_of_a_command_error_is_its_ending_and_last_line() {
        let trace = "exit code 1\nTraceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'tea'\n";
        assert_eq!(ErrorSummary::of(trace), ErrorSummary { ending: Some("exit code 1"), line: "KeyError: 'tea'" });
        assert_eq!(kind(trace), "exit code 1: KeyError: <value>");
        assert_eq!(kind("exit code 65 (refuses the message)\nno litres in 17"), "exit code 65: no litres in #");
        assert_ne!(kind("exit code 1\nno"), kind("exit code 2\nno"));
        assert_eq!(kind("exit code 1"), "exit code 1");
        assert_eq!(kind("stopped after 1s500ms, its --timeout\nwaiting"), "stopped after its --timeout: waiting");
        let summary = ErrorSummary::of("connection refused (os error 111)\ncaused by: x");
        assert_eq!(summary, ErrorSummary { ending: None, line: "connection refused (os error 111)" });
        assert_eq!(error_fingerprint(None), NO_ERROR_TEXT);
        assert_eq!(kind(" \n "), NO_ERROR_TEXT);
    }

    #[test]
    fn long_and_unusual_texts_are_handled() {
        assert_eq!(kind(&"ä".repeat(10_000)).len(), MAX_WRITTEN);
        for odd in ["'", "''", "\"", "/", "//", "-", "+", "http://", "#", "7", "\\", "…/…", "'\\", "\u{202e}'x", "a/"]
        {
            let once = kind(odd);
            assert!(!once.is_empty() && kind(&once) == once, "{odd}");
        }
    }

    #[test]
    fn twenty_thousand_errors_of_three_kinds_are_three() {
        let kinds: std::collections::BTreeSet<_> = (0..20_000_u64)
            .map(|number| {
                let id =
                    uuid::Uuid::from_u128(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834));
                match number % 3 {
                    0 => kind(&format!("exit code 65 (refuses the message)\nlitres is -{number}.5 in order {id}")),
                    1 => kind(&format!("POST https://pay.example/charge/{id}?n={number}: 503 after {number}ms")),
                    _ => {
                        kind(&format!("row {:x} of '/data/{number}.csv' is no number: 'x{number}'", id.as_u128() >> 64))
                    }
                }
            })
            .collect();
        assert_eq!(kinds.len(), 3, "{kinds:?}");
    }
}
