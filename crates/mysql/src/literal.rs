//! Values as literals of statements.
//!
//! Statements are sent as text and not prepared, so that all statements of a step of a transaction share one round
//! trip, with any number of rows. Texts and bytes are written in hexadecimal, so nothing has to be escaped, whatever
//! the server's mode.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use postrider_core::{DEAD_LETTER_SUFFIX, MessageId, Timestamp};

/// The server's latest time, in microseconds.
const LATEST: i64 = 253_402_300_799_999_999;

/// Returns bytes, or a name or key, which are compared as bytes.
pub(crate) fn bytes(value: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut literal = String::with_capacity(value.len() * 2 + 3);
    literal.push_str("x'");
    for byte in value {
        literal.push(char::from(DIGITS[usize::from(byte >> 4)]));
        literal.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    literal.push('\'');
    literal
}

/// Returns a text with a character set.
pub(crate) fn text(value: &str) -> String {
    format!("_utf8mb4 {}", bytes(value.as_bytes()))
}

/// Returns a value, or null.
pub(crate) fn optional<T>(value: Option<T>, literal: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "null".to_owned(), literal)
}

pub(crate) fn id(id: MessageId) -> String {
    bytes(id.as_uuid().as_bytes())
}

/// Returns a time, clamped to the server's range.
pub(crate) fn time(time: Timestamp) -> String {
    format!("('1970-01-01' + interval {} microsecond)", time.as_micros().clamp(0, LATEST))
}

/// Returns the values of `in (…)`. Without values it is null, which equals nothing.
pub(crate) fn list(values: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let mut list = String::new();
    for value in values {
        let separator = if list.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(list, "{separator}{value}");
    }
    if list.is_empty() { "null".to_owned() } else { list }
}

/// Returns a condition for rows by a list of ids. Without a condition on another column MariaDB removes rows by a full
/// table scan if the list names most of the table, whatever the index hint. Every queue has a name.
pub(crate) fn these(ids: &str) -> String {
    format!("id in ({ids}) and queue <> ''")
}

/// Returns a condition for failed attempts by the queues and the literal ids of their messages. Attempts of dead
/// letters have the queue in which they died.
pub(crate) fn attempts_of<'m>(messages: impl IntoIterator<Item = (&'m str, String)>) -> String {
    let mut by_queue = BTreeMap::<&str, Vec<String>>::new();
    for (queue, id) in messages {
        let origin = queue.strip_suffix(DEAD_LETTER_SUFFIX).unwrap_or(queue);
        by_queue.entry(origin).or_default().push(id);
    }
    let part = |(queue, ids): (&str, Vec<String>)| {
        format!("(a.queue = {} and a.message_id in ({}))", bytes(queue.as_bytes()), list(ids))
    };
    let parts: Vec<String> = by_queue.into_iter().map(part).collect();
    if parts.is_empty() { "a.queue is null".to_owned() } else { parts.join(" or ") }
}

/// Returns a value that depends on the row.
pub(crate) fn by_row(values: &[(i64, String)]) -> String {
    match values {
        [] => "null".to_owned(),
        [(_, first), rest @ ..] if rest.iter().all(|(_, value)| value == first) => first.clone(),
        values => {
            let branch = |(row, value): &(i64, String)| format!("when {row} then {value}");
            format!("case id {} end", values.iter().map(branch).collect::<Vec<_>>().join(" "))
        }
    }
}

/// Returns a duration in microseconds. Core refuses durations that do not fit.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// Returns a statement whose `:names` are replaced by literals. Inserted literals are not scanned again.
pub(crate) fn fill(statement: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(statement.len());
    let mut rest = statement;
    while let Some(at) = rest.find(':') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        filled.push_str(before);
        let end = after.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(after.len());
        match values.iter().find(|(name, _)| *name == &after[..end]) {
            Some((_, value)) => filled.push_str(value),
            None => filled.push_str(&rest[at..at + 1 + end]),
        }
        rest = &after[end..];
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_once_and_whole() {
        let filled = fill("a = :id and b = :ids or c = '00:00' :id", &[("id", ":ids"), ("ids", "7, 8")]);
        assert_eq!(filled, "a = :ids and b = 7, 8 or c = '00:00' :ids");
    }

    #[test]
    fn values_are_written_without_anything_to_escape() {
        assert_eq!(bytes(b"a'\\\0"), "x'61275c00'");
        assert_eq!(text(""), "_utf8mb4 x''");
        assert_eq!(list(Vec::<i64>::new()), "null");
        assert_eq!(list([1, 2]), "1, 2");
        assert_eq!(time(Timestamp::MAX), format!("('1970-01-01' + interval {LATEST} microsecond)"));
        assert_eq!(by_row(&[(1, "x".into()), (2, "y".into())]), "case id when 1 then x when 2 then y end");
        assert_eq!(by_row(&[(1, "x".into()), (2, "x".into())]), "x");
        let messages = [("b", "1"), ("a_dlq", "2"), ("b", "3")].map(|(queue, id)| (queue, id.to_owned()));
        let attempts = "(a.queue = x'61' and a.message_id in (2)) or (a.queue = x'62' and a.message_id in (1, 3))";
        assert_eq!(attempts_of(messages), attempts);
    }
}
