//! Columns as values, both ways.

use std::borrow::Cow;

use bytes::Bytes;
use postrider_core::{ContentType, DeadLetter, Headers, Key, MessageId, Priority, QueueName, Timestamp};
use rusqlite::Row;
use rusqlite::types::ValueRef;
use uuid::Uuid;

use crate::PROVIDER;

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

pub(crate) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp::from_micros)
}

pub(crate) fn optional_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

/// A stored count. The column is wider than any count that we write.
pub(crate) fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u32> {
    Ok(u32::try_from(row.get::<_, i64>(column)?).unwrap_or(u32::MAX))
}

/// Bytes of a column, whatever it holds: another program may have written text.
pub(crate) fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(match row.get_ref(column)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Bytes::copy_from_slice(bytes),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => Bytes::new(),
    })
}

/// What of a message can be unreadable when another program has changed its row.
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
    pub(crate) fn read(row: &Row<'_>, columns: LabelColumns) -> Result<Self, String> {
        let [id, content_type, headers, key, priority] = columns;
        let text = |column: usize, what: &str| {
            row.get::<_, Option<String>>(column).map_err(|error| format!("{what} is unreadable: {error}"))
        };
        let id = row.get::<_, [u8; 16]>(id).map_err(|error| format!("message_id is unreadable: {error}"))?;
        let content_type = match text(content_type, "content_type")? {
            None => ContentType::OCTET_STREAM,
            Some(name) => ContentType::parse(&name).map_err(|error| error.to_string())?,
        };
        let headers = match row.get_ref(headers) {
            Ok(ValueRef::Text(b"{}")) => Headers::new(),
            Ok(ValueRef::Text(json)) => {
                serde_json::from_slice(json).map_err(|error| format!("headers are unreadable: {error}"))?
            }
            _ => return Err("headers are no text".to_owned()),
        };
        let ordering_key = match text(key, "ordering_key")? {
            None => None,
            Some(key) => Some(Key::new("ordering key", &key).map_err(|error| error.to_string())?),
        };
        let priority = row.get::<_, u8>(priority).map_err(|error| format!("priority is unreadable: {error}"))?;
        let priority = Priority::new(priority).map_err(|error| error.to_string())?;
        Ok(Self { id: MessageId::from_uuid(Uuid::from_bytes(id)), content_type, headers, ordering_key, priority })
    }

    /// Reads what can be read, for a message that is only looked at.
    pub(crate) fn read_leniently(row: &Row<'_>, columns: LabelColumns, queue: &QueueName, native: i64) -> Self {
        Self::read(row, columns).unwrap_or_else(|_| Self {
            id: row.get::<_, [u8; 16]>(columns[0]).map_or_else(
                |_| MessageId::derived(PROVIDER, queue.as_str(), &native.to_string()),
                |id| MessageId::from_uuid(Uuid::from_bytes(id)),
            ),
            content_type: ContentType::OCTET_STREAM,
            headers: Headers::new(),
            ordering_key: None,
            priority: Priority::default(),
        })
    }
}

/// A dead letter, and its place in the order of deaths.
pub(crate) fn dead_letter(row: &Row<'_>, origin: &QueueName) -> rusqlite::Result<(i64, i64, DeadLetter)> {
    let (death, id): (i64, i64) = (row.get(0)?, row.get(1)?);
    let label = Label::read_leniently(row, [12, 15, 16, 14, 13], origin, id);
    let dedup_key = row.get::<_, Option<String>>(10)?.and_then(|key| Key::new("dedup key", &key).ok());
    let letter = DeadLetter {
        id: label.id,
        origin: origin.clone(),
        body: bytes(row, 17)?,
        content_type: label.content_type,
        headers: label.headers,
        ordering_key: label.ordering_key,
        dedup_key,
        priority: label.priority,
        expires_at: optional_time(row, 18)?,
        reason: row.get::<_, String>(2)?.into(),
        error: row.get(3)?,
        deliveries_count: count(row, 4)?,
        attempts_count: count(row, 5)?,
        enqueued_at: time(row, 6)?,
        first_attempt_at: optional_time(row, 7)?,
        last_attempt_at: optional_time(row, 8)?,
        dead_at: time(row, 9)?,
        revision: count(row, 11)?,
    };
    Ok((death, id, letter))
}
