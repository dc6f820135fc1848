//! Explains why a body could not be read as JSON of the expected shape.
//!
//! The field is found by reading the body again up to the position of the error, which happens only for invalid bodies. The
//! kind of the error and the found value are in serde_json's text only; that text is reworded here, and decides nothing
//! else.

use std::fmt::Write;

use postrider_wire::Object;
use serde::de::DeserializeOwned;
use serde_json::error::{Category, Error};
use serde_path_to_error::Segment;

/// Upper bound of the characters that are quoted from the body.
const MAX_QUOTED: usize = 80;

/// Upper bound of the characters of a text that is not reworded.
const MAX_TEXT: usize = 400;

/// Returns why these bytes are not a `T`, with field, line and column.
pub(super) fn explain<T: DeserializeOwned>(bytes: &[u8], error: &Error) -> String {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    let position = format!("line {line}, column {column}");
    match error.classify() {
        Category::Data => {}
        Category::Eof => {
            let text = text.replace("EOF while parsing", "it ends inside");
            return format!("invalid JSON: {text} at {position}");
        }
        Category::Syntax | Category::Io => return format!("invalid JSON: {} at {position}", quoted(text)),
    }
    match field_at::<T>(&bytes[..offset(bytes, line, column)]) {
        field if field.is_empty() => format!("{} ({position})", plain(text)),
        field => format!("{field}: {} ({position})", plain(text)),
    }
}

fn quoted(text: &str) -> String {
    text.replace('`', "'")
}

/// Rewords serde_json's text without the names of Rust types.
fn plain(text: &str) -> String {
    let mismatch = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    match mismatch.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => format!("expected {}, found {}", wanted(found, expected), shown(found)),
        None => shortened(&quoted(text), MAX_TEXT),
    }
}

fn shown(found: &str) -> String {
    match found.split_once(' ') {
        Some(("string", text)) => shortened(text, MAX_QUOTED),
        Some(("integer" | "boolean", value)) => value.trim_matches('`').to_owned(),
        _ => match found {
            "map" => "an object".to_owned(),
            "sequence" => "an array".to_owned(),
            _ => found.strip_prefix("floating point ").unwrap_or(found).trim_matches('`').to_owned(),
        },
    }
}

fn wanted<'e>(found: &str, expected: &'e str) -> &'e str {
    match expected {
        "a nonzero u32" if found == "integer `0`" => "1 or more",
        "u8" | "u16" | "u32" | "u64" | "usize" | "a nonzero u32" => match found {
            _ if found.starts_with("integer `-") => "a number that is not negative",
            _ if found.starts_with("integer") => "a smaller number",
            _ => "a whole number",
        },
        "f64" => "a number",
        "a boolean" => "true or false",
        "a map" => "an object",
        "a sequence" => "an array",
        "a string" => "text",
        "a formatted UUID string" => "a UUID",
        other if other.starts_with("struct ") || other.starts_with("internally tagged enum ") => "an object",
        other => other,
    }
}

fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the path of the field at which the first `read` bytes of a body stop being readable, like `messages[2].priority`;
/// empty for the whole body.
fn field_at<T: DeserializeOwned>(read: &[u8]) -> String {
    let error = serde_path_to_error::deserialize::<_, Object<T>>(&mut serde_json::Deserializer::from_slice(read));
    let mut path = String::new();
    let Err(error) = error else { return path };
    for segment in error.path() {
        let _ = match segment {
            Segment::Seq { index } => write!(path, "[{index}]"),
            Segment::Map { key: name } | Segment::Enum { variant: name } => {
                let dot = if path.is_empty() { "" } else { "." };
                write!(path, "{dot}{}", shortened(name, MAX_QUOTED))
            }
            Segment::Unknown => Ok(()),
        };
    }
    path
}

/// Returns the number of bytes up to a line and column, which both count from 1.
fn offset(bytes: &[u8], line: usize, column: usize) -> usize {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1));
    bytes.len().min(lines.map(<[u8]>::len).sum::<usize>() + column)
}

#[cfg(test)]
mod tests {
    use postrider_wire::message::{NewMessage, SendBatchRequest};
    use postrider_wire::read_request;
    use postrider_wire::task::NewTask;

    use super::*;

    fn explained<T: DeserializeOwned>(text: &str) -> String {
        let error = read_request::<T>(text.as_bytes()).err().expect(text);
        explain::<T>(text.as_bytes(), &error)
    }

    #[test]
    fn an_error_names_field_and_position_and_no_rust_types() {
        for (text, expected) in [
            (r#"{"content_type":5}"#, "content_type: expected text, found 5 (line 1, column 17)"),
            (r#"{"body":"a","priority":"high"}"#, "priority: expected a whole number, found \"high\""),
            (r#"{"priority":1.5}"#, "priority: expected a whole number, found 1.5"),
            (r#"{"priority":300}"#, "priority: expected a smaller number, found 300"),
            (r#"{"priority":-1}"#, "priority: expected a number that is not negative, found -1"),
            (r#"{"delay":5}"#, "delay: expected a duration as text, like 500ms, 5s, 2m, 1h30m or 3d, found 5"),
            (r#"{"headers":[]}"#, "headers: expected an object, found an array"),
            (r#"{"headers":{"a\"b":{}}}"#, "headers.a\"b: expected text, found an object"),
            (r#"{"id":"x"}"#, "id: UUID parsing failed"),
            ("{\n \"id\": 5}", "id: expected a UUID, found 5 (line 2, column 8)"),
            (r#"{"dedup":"x"}"#, "dedup: unknown field 'dedup', expected one of 'id', 'body'"),
            (r#"{"body":"a","body":"b"}"#, "duplicate field 'body'"),
            (r#""x""#, "expected an object, found \"x\" (line 1, column 3)"),
            ("{", "invalid JSON: it ends inside an object at line 1, column 1"),
            ("{]", "invalid JSON: key must be a string"),
        ] {
            let explained = explained::<NewMessage>(text);
            assert!(explained.starts_with(expected), "{text}: {explained}");
        }
    }

    #[test]
    fn rows_are_counted_and_long_texts_are_cut() {
        let row =
            explained::<SendBatchRequest>(r#"{"messages":[{"body":"a, b"},{"headers":{"x":"y"},"dedup_key":true}]}"#);
        assert!(row.starts_with("messages[1].dedup_key: expected text, found true"), "{row}");
        let doubled = explained::<SendBatchRequest>(r#"{"messages":[{"body":"a"},{"body":"a","body":"b"}]}"#);
        assert!(doubled.starts_with("messages[1]: duplicate field 'body'"), "{doubled}");
        assert_eq!(explained::<SendBatchRequest>("{}"), "missing field 'messages' (line 1, column 2)");
        let long = explained::<SendBatchRequest>(&format!(r#"{{"messages":"{}"}}"#, "x".repeat(10_000)));
        assert!(long.len() < 200 && long.contains("expected an array, found \"xxx"), "{long}");
        let task = |rest: &str| explained::<NewTask>(&format!(r#"{{"type":"a","payload":"x",{rest}}}"#));
        assert!(task(r#""max_attempts":0"#).contains("expected 1 or more, found 0"));
        assert!(task(r#""retry_strategy":"linear""#).contains("expected an object, found"));
        assert!(task(r#""retry_strategy":{"strategy":"x"}"#).contains("'x', expected one of 'no_retry'"));
    }
}
