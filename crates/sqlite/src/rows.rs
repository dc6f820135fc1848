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

/// A message's id. One that is unreadable gets the same new one wherever it is met.
pub(crate) fn message_id(row: &Row<'_>, column: usize, native: i64) -> MessageId {
    row.get::<_, [u8; 16]>(column).map_or_else(
        |_| MessageId::derived(PROVIDER, "row", &native.to_string()),
        |bytes| MessageId::from_uuid(Uuid::from_bytes(bytes)),
    )
}

/// A key, if it is one.
pub(crate) fn key(row: &Row<'_>, column: usize, what: &'static str) -> Option<Key> {
    row.get::<_, Option<String>>(column).ok().flatten().and_then(|key| Key::new(what, &key).ok())
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
    pub(crate) fn read_leniently(row: &Row<'_>, columns: LabelColumns, native: i64) -> Self {
        Self::read(row, columns).unwrap_or_else(|_| Self {
            id: message_id(row, columns[0], native),
            content_type: ContentType::OCTET_STREAM,
            headers: Headers::new(),
            ordering_key: None,
            priority: Priority::default(),
        })
    }
}

/// What else of a message can be unreadable: its counts and times.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) deliveries_count: u32,
    pub(crate) attempts_count: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) first_attempt_at: Option<Timestamp>,
    pub(crate) expires_at: Option<Timestamp>,
}

/// Where a life's columns are, in the order of [`Life`].
pub(crate) type LifeColumns = [usize; 5];

impl Life {
    /// Reads a life; the text says what is unreadable.
    pub(crate) fn read(row: &Row<'_>, columns: LifeColumns) -> Result<Self, String> {
        let [deliveries, attempts, created, first, expires] = columns;
        let told = |what: &'static str| move |error: rusqlite::Error| format!("{what} is unreadable: {error}");
        Ok(Self {
            deliveries_count: count(row, deliveries).map_err(told("deliveries_count"))?,
            attempts_count: count(row, attempts).map_err(told("attempts_count"))?,
            created_at: time(row, created).map_err(told("created_at"))?,
            first_attempt_at: optional_time(row, first).map_err(told("first_attempt_at"))?,
            expires_at: optional_time(row, expires).map_err(told("expires_at"))?,
        })
    }

    /// Reads what can be read, for a message that is only looked at.
    pub(crate) fn read_leniently(row: &Row<'_>, columns: LifeColumns) -> Self {
        let [deliveries, attempts, created, first, expires] = columns;
        Self {
            deliveries_count: count(row, deliveries).unwrap_or_default(),
            attempts_count: count(row, attempts).unwrap_or_default(),
            created_at: time(row, created).unwrap_or(Timestamp::from_micros(0)),
            first_attempt_at: optional_time(row, first).unwrap_or_default(),
            expires_at: optional_time(row, expires).unwrap_or_default(),
        }
    }
}

/// A dead letter, and its place in the order of deaths.
pub(crate) fn dead_letter(row: &Row<'_>, origin: &QueueName) -> rusqlite::Result<(i64, i64, DeadLetter)> {
    let (death, id): (i64, i64) = (row.get(0)?, row.get(1)?);
    let label = Label::read_leniently(row, [12, 15, 16, 14, 13], id);
    let life = Life::read_leniently(row, [4, 5, 6, 7, 18]);
    let letter = DeadLetter {
        id: label.id,
        origin: origin.clone(),
        body: bytes(row, 17)?,
        content_type: label.content_type,
        headers: label.headers,
        ordering_key: label.ordering_key,
        dedup_key: key(row, 10, "dedup key"),
        priority: label.priority,
        expires_at: life.expires_at,
        reason: row.get::<_, String>(2)?.into(),
        error: row.get(3).unwrap_or_default(),
        deliveries_count: life.deliveries_count,
        attempts_count: life.attempts_count,
        enqueued_at: life.created_at,
        first_attempt_at: life.first_attempt_at,
        last_attempt_at: optional_time(row, 8).unwrap_or_default(),
        dead_at: time(row, 9)?,
        revision: count(row, 11)?,
    };
    Ok((death, id, letter))
}
