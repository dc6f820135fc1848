//! Columns as values, both ways. The server answers in texts.

use std::borrow::Cow;

use bytes::Bytes;
use mysql_async::{Row, Value};
use postrider_core::{ContentType, DeadLetter, Headers, Key, MessageId, Priority, QueueName, Timestamp};
use uuid::Uuid;

/// The bytes of a column; none where it is null.
pub(crate) fn optional_bytes(row: &Row, column: usize) -> Option<&[u8]> {
    match row.as_ref(column) {
        Some(Value::Bytes(bytes)) => Some(bytes),
        _ => None,
    }
}

/// The bytes of a column that is never null.
pub(crate) fn bytes(row: &Row, column: usize) -> &[u8] {
    optional_bytes(row, column).unwrap_or_default()
}

pub(crate) fn optional_text(row: &Row, column: usize) -> Option<String> {
    optional_bytes(row, column).map(|text| String::from_utf8_lossy(text).into_owned())
}

pub(crate) fn text(row: &Row, column: usize) -> String {
    optional_text(row, column).unwrap_or_default()
}

pub(crate) fn optional_number(row: &Row, column: usize) -> Option<i64> {
    optional_bytes(row, column).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
}

/// A number of a column that is never null.
pub(crate) fn number(row: &Row, column: usize) -> i64 {
    optional_number(row, column).unwrap_or_default()
}

pub(crate) fn flag(row: &Row, column: usize) -> bool {
    number(row, column) != 0
}

pub(crate) fn headers_column(headers: &Headers) -> Cow<'static, str> {
    if headers.is_empty() {
        return Cow::Borrowed("{}");
    }
    // A map of texts always has a JSON form.
    Cow::Owned(serde_json::to_string(headers).unwrap_or_else(|_| "{}".to_owned()))
}

/// Null for plain bytes: the commonest type is the longest text of a small row.
pub(crate) fn content_type_column(content_type: &ContentType) -> Option<&str> {
    (*content_type != ContentType::OCTET_STREAM).then(|| content_type.as_str())
}

pub(crate) fn time(row: &Row, column: usize) -> Timestamp {
    Timestamp::from_micros(number(row, column))
}

pub(crate) fn optional_time(row: &Row, column: usize) -> Option<Timestamp> {
    optional_number(row, column).map(Timestamp::from_micros)
}

/// A stored count. The column is wider than any count that we write.
pub(crate) fn count(row: &Row, column: usize) -> u32 {
    u32::try_from(number(row, column).max(0)).unwrap_or(u32::MAX)
}

pub(crate) fn message_id(row: &Row, column: usize) -> MessageId {
    MessageId::from_uuid(Uuid::from_slice(bytes(row, column)).unwrap_or_default())
}

pub(crate) fn body(row: &Row, column: usize) -> Bytes {
    Bytes::copy_from_slice(bytes(row, column))
}

/// A key, if it is one.
pub(crate) fn key(row: &Row, column: usize, what: &'static str) -> Option<Key> {
    optional_text(row, column).and_then(|key| Key::new(what, &key).ok())
}

/// What of a message can be unreadable when another program has written its row.
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) id: MessageId,
    pub(crate) content_type: ContentType,
    pub(crate) headers: Headers,
    pub(crate) ordering_key: Option<Key>,
    pub(crate) priority: Priority,
}

/// Where a label's columns are: message_id, content_type, headers, ordering_key, priority.
pub(crate) type LabelColumns = [usize; 5];

impl Label {
    /// Reads a label; the text says what is unreadable.
    pub(crate) fn read(row: &Row, columns: LabelColumns) -> Result<Self, String> {
        let [id, content_type, headers, key, priority] = columns;
        let content_type = match optional_text(row, content_type) {
            None => ContentType::OCTET_STREAM,
            Some(name) => ContentType::parse(&name).map_err(|error| error.to_string())?,
        };
        let headers = match bytes(row, headers) {
            b"{}" => Headers::new(),
            json => serde_json::from_slice(json).map_err(|error| format!("headers are unreadable: {error}"))?,
        };
        let ordering_key = match optional_bytes(row, key) {
            None => None,
            Some(key) => Some(read_key(key)?),
        };
        let priority = u8::try_from(number(row, priority)).map_err(|error| error.to_string())?;
        let priority = Priority::new(priority).map_err(|error| error.to_string())?;
        Ok(Self { id: message_id(row, id), content_type, headers, ordering_key, priority })
    }

    /// Reads what can be read, for a message that is only looked at.
    pub(crate) fn read_leniently(row: &Row, columns: LabelColumns) -> Self {
        Self::read(row, columns).unwrap_or_else(|_| Self {
            id: message_id(row, columns[0]),
            content_type: ContentType::OCTET_STREAM,
            headers: Headers::new(),
            ordering_key: None,
            priority: Priority::default(),
        })
    }
}

fn read_key(key: &[u8]) -> Result<Key, String> {
    let key = std::str::from_utf8(key).map_err(|error| format!("the ordering key is unreadable: {error}"))?;
    Key::new("ordering key", key).map_err(|error| error.to_string())
}

/// A dead letter, and its place in the order of deaths.
pub(crate) fn dead_letter(row: &Row, origin: &QueueName) -> (i64, DeadLetter) {
    let label = Label::read_leniently(row, [12, 15, 16, 14, 13]);
    let letter = DeadLetter {
        id: label.id,
        origin: origin.clone(),
        body: body(row, 17),
        content_type: label.content_type,
        headers: label.headers,
        ordering_key: label.ordering_key,
        dedup_key: key(row, 10, "dedup key"),
        priority: label.priority,
        expires_at: optional_time(row, 18),
        reason: text(row, 2).into(),
        error: optional_text(row, 3),
        deliveries_count: count(row, 4),
        attempts_count: count(row, 5),
        enqueued_at: time(row, 6),
        first_attempt_at: optional_time(row, 7),
        last_attempt_at: optional_time(row, 8),
        dead_at: time(row, 9),
        revision: count(row, 11),
    };
    (number(row, 0), letter)
}
