//! What is wrong with a body that should have been JSON of some shape, in words for people who did not write this server.
//!
//! What the reader below says names types of Rust and no field. The field is found again by the place of the mistake, and
//! only then: what is right is read once.

use std::fmt::Write;

use serde_json::error::{Category, Error};

/// The longest text of the sender's that is repeated.
const MOST_SHOWN: usize = 80;

/// What is wrong with these bytes, for whoever sent them.
pub(super) fn explain(bytes: &[u8], error: &Error) -> String {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    let place = format!("line {line}, column {column}");
    if error.classify() != Category::Data {
        return format!(
            "it is no JSON: {} at {place}",
            text.replace("EOF while parsing", "it ends inside").replace('`', "'")
        );
    }
    match field_at(bytes, line, column) {
        field if field.is_empty() => format!("{} ({place})", plain(text)),
        field => format!("{field}: {} ({place})", plain(text)),
    }
}

/// The same without the words of the reader.
fn plain(text: &str) -> String {
    let quoted = |text: &str| text.replace('`', "'");
    if let Some(rest) = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "))
        && let Some((found, expected)) = rest.rsplit_once(", expected ")
    {
        return format!("{} where {} is wanted", shown(found), wanted(found, expected));
    }
    if let Some(name) = text.strip_prefix("missing field ") {
        return format!("the field {} is missing", quoted(name));
    }
    if let Some(name) = text.strip_prefix("duplicate field ") {
        return format!("the field {} is there more than once", quoted(name));
    }
    for (kind, what) in [("unknown field ", "the field "), ("unknown variant ", "")] {
        if let Some((name, known)) = text.strip_prefix(kind).and_then(|rest| rest.split_once(", ")) {
            let known = known.strip_prefix("expected ").unwrap_or(known);
            return format!("{what}{} is not known; use {}", shortened(&quoted(name)), quoted(known));
        }
    }
    if text.starts_with("UUID parsing failed") {
        return "this is no UUID".to_owned();
    }
    quoted(text)
}

fn shown(found: &str) -> String {
    match found.split_once(' ') {
        Some(("string", text)) => format!("the text {}", shortened(text)),
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
        "u8" | "u16" | "u32" | "u64" | "usize" | "a nonzero u32" if found.starts_with("integer `-") => {
            "a number that is not negative"
        }
        "a nonzero u32" if found == "integer `0`" => "1 or more",
        "u8" | "u16" | "u32" | "u64" | "usize" | "a nonzero u32" if found.starts_with("integer") => "a smaller number",
        "u8" | "u16" | "u32" | "u64" | "usize" | "a nonzero u32" => "a whole number",
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

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Where in an object or an array something stands.
enum Step {
    Field { name: String, is_named: bool },
    Row(usize),
}

/// The name of the field at a place, like `messages[2].priority`; nothing for the whole.
fn field_at(bytes: &[u8], line: usize, column: usize) -> String {
    let before: usize =
        bytes.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    let read = &bytes[..bytes.len().min(before + column)];
    let (mut steps, mut at) = (Vec::new(), 0);
    while let Some(byte) = read.get(at) {
        at += 1;
        match byte {
            b'{' => steps.push(Step::Field { name: String::new(), is_named: false }),
            b'[' => steps.push(Step::Row(0)),
            b'}' | b']' => drop(steps.pop()),
            b',' => match steps.last_mut() {
                Some(Step::Field { is_named, .. }) => *is_named = false,
                Some(Step::Row(row)) => *row += 1,
                None => {}
            },
            b'"' => {
                let end = string_end(read, at);
                if let Some(Step::Field { name, is_named: is_named @ false }) = steps.last_mut() {
                    *name = String::from_utf8_lossy(&read[at..end]).into_owned();
                    *is_named = true;
                }
                at = end + 1;
            }
            _ => {}
        }
    }
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Field { name, .. } if path.is_empty() => path = shortened(&name),
            Step::Field { name, .. } => path = format!("{path}.{}", shortened(&name)),
            Step::Row(row) => {
                let _ = write!(path, "[{row}]");
            }
        }
    }
    path
}

/// Where the text ends that begins at a place: at its quote, or with everything.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

#[cfg(test)]
mod tests {
    use postrider_wire::message::{NewMessage, SendBatchRequest};
    use postrider_wire::task::NewTask;
    use serde::de::DeserializeOwned;

    use super::*;

    fn said<T: DeserializeOwned>(text: &str) -> String {
        let error = serde_json::from_str::<T>(text).err().expect(text);
        explain(text.as_bytes(), &error)
    }

    #[test]
    fn what_is_wrong_is_told_with_its_field_and_without_words_of_rust() {
        for (text, told) in [
            (r#"{"content_type":5}"#, "content_type: 5 where text is wanted (line 1, column 17)"),
            (r#"{"body":"a","priority":"high"}"#, "priority: the text \"high\" where a whole number is wanted"),
            (r#"{"priority":1.5}"#, "priority: 1.5 where a whole number is wanted"),
            (r#"{"priority":300}"#, "priority: 300 where a smaller number is wanted"),
            (r#"{"priority":-1}"#, "priority: -1 where a number that is not negative is wanted"),
            (r#"{"delay":5}"#, "delay: 5 where a duration as text, like 500ms, 5s, 2m, 1h30m or 3d is wanted"),
            (r#"{"headers":[]}"#, "headers: an array where an object is wanted"),
            (r#"{"headers":{"a\"b":{}}}"#, "headers.a\\\"b: an object where text is wanted"),
            (r#"{"id":"x"}"#, "id: this is no UUID"),
            ("{\n \"id\": 5}", "id: 5 where a UUID is wanted (line 2, column 8)"),
            (r#"{"dedup":"x"}"#, "dedup: the field 'dedup' is not known; use one of 'id', 'body'"),
            (r#"{"body":"a","body":"b"}"#, "body: the field 'body' is there more than once"),
            (r#""x""#, "the text \"x\" where an object is wanted (line 1, column 3)"),
            ("{", "it is no JSON: it ends inside an object at line 1, column 1"),
            ("{]", "it is no JSON: key must be a string"),
        ] {
            let said = said::<NewMessage>(text);
            assert!(said.starts_with(told), "{text}: {said}");
        }
    }

    #[test]
    fn rows_are_counted_and_long_texts_are_cut() {
        let said_of =
            said::<SendBatchRequest>(r#"{"messages":[{"body":"a, b"},{"headers":{"x":"y"},"dedup_key":true}]}"#);
        assert!(said_of.starts_with("messages[1].dedup_key: true where text is wanted"), "{said_of}");
        assert_eq!(said::<SendBatchRequest>("{}"), "the field 'messages' is missing (line 1, column 2)");
        let long = said::<SendBatchRequest>(&format!(r#"{{"messages":"{}"}}"#, "x".repeat(10_000)));
        assert!(long.len() < 200 && long.contains("x… where an array is wanted"), "{long}");
        let task = |rest: &str| said::<NewTask>(&format!(r#"{{"type":"a","payload":"x",{rest}}}"#));
        assert!(task(r#""max_attempts":0"#).contains("0 where 1 or more is wanted"));
        assert!(task(r#""retry_strategy":"linear""#).contains("where an object is wanted"));
        assert!(task(r#""retry_strategy":{"strategy":"x"}"#).contains("'x' is not known; use one of 'no_retry'"));
    }
}
