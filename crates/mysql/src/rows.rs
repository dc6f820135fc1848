//! Conversion between columns and values. The server returns texts.
//!
//! Columns are read by name. A lookup by name is a linear search, so where a result has many rows, [`columns!`] and
//! [`positions`] resolve the names once per result.

use std::borrow::Cow;

use bytes::Bytes;
use mysql_async::prelude::ColumnIndex;
use mysql_async::{Row, Value};
use postrider_core::{ContentType, DeadLetter, Headers, Key, MessageId, Priority, QueueName, Timestamp};
use uuid::Uuid;

/// Returns the positions of columns in a result; zeros if it has no rows.
pub(crate) fn positions<const N: usize>(rows: &[Row], names: [&str; N]) -> [usize; N] {
    rows.first().map_or([0; N], |row| names.map(|name| position(row, name)))
}

/// Returns the position of a column.
fn position(row: &Row, name: &str) -> usize {
    let position = name.idx(row.columns_ref());
    // A wrong name must not read as null: limits and fences would be off.
    assert!(position.is_some(), "no column '{name}'");
    position.unwrap_or(usize::MAX)
}

/// Defines a struct of the positions of columns, found by their names.
macro_rules! columns {
    ($(#[$doc:meta])* $type:ident { $($name:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $type { $(pub(crate) $name: usize,)+ }

        impl $type {
            /// Finds the columns of a result; zeros if it has no rows.
            pub(crate) fn of(rows: &[mysql_async::Row]) -> Self {
                let [$($name),+] = $crate::rows::positions(rows, [$(stringify!($name)),+]);
                Self { $($name),+ }
            }
        }
    };
}

pub(crate) use columns;

/// Reads bytes; `None` if the column is null.
pub(crate) fn optional_bytes(row: &Row, column: impl ColumnIndex) -> Option<&[u8]> {
    let position = column.idx(row.columns_ref());
    assert!(position.is_some(), "an unknown column");
    match row.as_ref(position?) {
        Some(Value::Bytes(bytes)) => Some(bytes),
        _ => None,
    }
}

/// Reads bytes that are never null.
pub(crate) fn bytes(row: &Row, column: impl ColumnIndex) -> &[u8] {
    optional_bytes(row, column).unwrap_or_default()
}

pub(crate) fn optional_text(row: &Row, column: impl ColumnIndex) -> Option<String> {
    optional_bytes(row, column).map(|text| String::from_utf8_lossy(text).into_owned())
}

pub(crate) fn text(row: &Row, column: impl ColumnIndex) -> String {
    optional_text(row, column).unwrap_or_default()
}

pub(crate) fn optional_number(row: &Row, column: impl ColumnIndex) -> Option<i64> {
    optional_bytes(row, column).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
}

/// Reads a number that is never null.
pub(crate) fn number(row: &Row, column: impl ColumnIndex) -> i64 {
    optional_number(row, column).unwrap_or_default()
}

pub(crate) fn flag(row: &Row, column: impl ColumnIndex) -> bool {
    number(row, column) != 0
}

pub(crate) fn headers_column(headers: &Headers) -> Cow<'static, str> {
    if headers.is_empty() {
        return Cow::Borrowed("{}");
    }
    // A map of strings always serializes.
    Cow::Owned(serde_json::to_string(headers).unwrap_or_else(|_| "{}".to_owned()))
}

/// Null for plain bytes, the most common type: its name would be the longest column of a small row.
pub(crate) fn content_type_column(content_type: &ContentType) -> Option<&str> {
    (*content_type != ContentType::OCTET_STREAM).then(|| content_type.as_str())
}

pub(crate) fn time(row: &Row, column: impl ColumnIndex) -> Timestamp {
    Timestamp::from_micros(number(row, column))
}

pub(crate) fn optional_time(row: &Row, column: impl ColumnIndex) -> Option<Timestamp> {
    optional_number(row, column).map(Timestamp::from_micros)
}

/// Reads a count. The column is wider than any count of this program.
pub(crate) fn count(row: &Row, column: impl ColumnIndex) -> u32 {
    u32::try_from(number(row, column).max(0)).unwrap_or(u32::MAX)
}

pub(crate) fn message_id(row: &Row, column: impl ColumnIndex) -> MessageId {
    MessageId::from_uuid(Uuid::from_slice(bytes(row, column)).unwrap_or_default())
}

pub(crate) fn body(row: &Row, column: impl ColumnIndex) -> Bytes {
    Bytes::copy_from_slice(bytes(row, column))
}

/// Reads a key; `None` if it is null or invalid.
pub(crate) fn key(row: &Row, column: impl ColumnIndex, what: &'static str) -> Option<Key> {
    optional_text(row, column).and_then(|key| Key::new(what, &key).ok())
}

/// The columns that cannot be parsed if another program wrote the row.
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) id: MessageId,
    pub(crate) content_type: ContentType,
    pub(crate) headers: Headers,
    pub(crate) ordering_key: Option<Key>,
    pub(crate) priority: Priority,
}

columns! {
    /// The columns of a label.
    LabelColumns { message_id, content_type, headers, ordering_key, priority }
}

impl Label {
    /// Reads a label; the error says what cannot be parsed.
    pub(crate) fn read(row: &Row, columns: LabelColumns) -> Result<Self, String> {
        let content_type = match optional_text(row, columns.content_type) {
            None => ContentType::OCTET_STREAM,
            Some(name) => ContentType::parse(&name).map_err(|error| error.to_string())?,
        };
        let headers = match bytes(row, columns.headers) {
            b"{}" => Headers::new(),
            json => serde_json::from_slice(json).map_err(|error| format!("the headers cannot be parsed: {error}"))?,
        };
        let ordering_key = match optional_bytes(row, columns.ordering_key) {
            None => None,
            Some(key) => Some(read_key(key)?),
        };
        let priority = u8::try_from(number(row, columns.priority)).map_err(|error| error.to_string())?;
        let priority = Priority::new(priority).map_err(|error| error.to_string())?;
        Ok(Self { id: message_id(row, columns.message_id), content_type, headers, ordering_key, priority })
    }

    /// Reads a label, with defaults for what cannot be parsed.
    pub(crate) fn read_leniently(row: &Row, columns: LabelColumns) -> Self {
        Self::read(row, columns).unwrap_or_else(|_| Self {
            id: message_id(row, columns.message_id),
            content_type: ContentType::OCTET_STREAM,
            headers: Headers::new(),
            ordering_key: None,
            priority: Priority::default(),
        })
    }
}

fn read_key(key: &[u8]) -> Result<Key, String> {
    let key = std::str::from_utf8(key).map_err(|error| format!("the ordering key cannot be parsed: {error}"))?;
    Key::new("ordering key", key).map_err(|error| error.to_string())
}

columns! {
    /// The columns of `list_dead_letters.sql` and `get_dead_letters.sql`, but for the label's.
    DeadLetterColumns {
        death, reason, error, deliveries_count, attempts_count, created_at, first_attempt_at, last_attempt_at, dead_at,
        dedup_key, revision, payload, expires_at,
    }
}

/// Reads a dead letter and its position in the order of deaths.
pub(crate) fn dead_letter(
    row: &Row,
    origin: &QueueName,
    label: LabelColumns,
    columns: DeadLetterColumns,
) -> (i64, DeadLetter) {
    let label = Label::read_leniently(row, label);
    let letter = DeadLetter {
        id: label.id,
        origin: origin.clone(),
        body: body(row, columns.payload),
        content_type: label.content_type,
        headers: label.headers,
        ordering_key: label.ordering_key,
        dedup_key: key(row, columns.dedup_key, "dedup key"),
        priority: label.priority,
        expires_at: optional_time(row, columns.expires_at),
        reason: text(row, columns.reason).into(),
        error: optional_text(row, columns.error),
        deliveries_count: count(row, columns.deliveries_count),
        attempts_count: count(row, columns.attempts_count),
        enqueued_at: time(row, columns.created_at),
        first_attempt_at: optional_time(row, columns.first_attempt_at),
        last_attempt_at: optional_time(row, columns.last_attempt_at),
        dead_at: time(row, columns.dead_at),
        revision: count(row, columns.revision),
    };
    (number(row, columns.death), letter)
}
