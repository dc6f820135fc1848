//! Converts columns to values and values to columns.

use std::borrow::Cow;

use bytes::Bytes;
use postrider_core::{ContentType, DeadLetter, Headers, Key, MessageId, Priority, QueueName, Timestamp};
use rusqlite::types::ValueRef;
use rusqlite::{Row, RowIndex, Statement};
use uuid::Uuid;

use crate::PROVIDER;

/// The positions of a statement's columns, looked up by name once and not once a row.
pub(crate) trait Columns: Copy {
    fn of(statement: &Statement<'_>) -> rusqlite::Result<Self>;
}

/// Defines a struct of column positions whose fields are the names of the columns.
macro_rules! columns {
    ($(#[$doc:meta])* $name:ident { $($column:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $column: usize,)*
        }

        impl $crate::rows::Columns for $name {
            fn of(statement: &rusqlite::Statement<'_>) -> rusqlite::Result<Self> {
                Ok(Self { $($column: statement.column_index(stringify!($column))?,)* })
            }
        }
    };
}

pub(crate) use columns;

pub(crate) fn headers_column(headers: &Headers) -> Cow<'static, str> {
    if headers.is_empty() {
        return Cow::Borrowed("{}");
    }
    // A map of strings always has a JSON form.
    Cow::Owned(serde_json::to_string(headers).unwrap_or_else(|_| "{}".to_owned()))
}

/// The column of a content type; null for plain bytes, which are the most common.
pub(crate) fn content_type_column(content_type: &ContentType) -> Option<&str> {
    (*content_type != ContentType::OCTET_STREAM).then(|| content_type.as_str())
}

pub(crate) fn time(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp::from_micros)
}

pub(crate) fn optional_time(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

/// A stored count. The column holds larger numbers than we write.
pub(crate) fn count(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<u32> {
    Ok(u32::try_from(row.get::<_, i64>(column)?).unwrap_or(u32::MAX))
}

/// A message id. An unreadable one is replaced by an id derived from the row number, always the same.
pub(crate) fn message_id(row: &Row<'_>, column: impl RowIndex, native: i64) -> MessageId {
    row.get::<_, [u8; 16]>(column).map_or_else(
        |_| MessageId::derived(PROVIDER, "row", &native.to_string()),
        |bytes| MessageId::from_uuid(Uuid::from_bytes(bytes)),
    )
}

/// A key; `None` if there is none or it is invalid.
pub(crate) fn key(row: &Row<'_>, column: impl RowIndex, what: &'static str) -> Option<Key> {
    row.get::<_, Option<String>>(column).ok().flatten().and_then(|key| Key::new(what, &key).ok())
}

/// The bytes of a column of any type: another program may have written text.
pub(crate) fn bytes(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Bytes> {
    Ok(match row.get_ref(column)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Bytes::copy_from_slice(bytes),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => Bytes::new(),
    })
}

/// The columns of a message that describe it. Each can be unreadable when another program has changed the row.
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) id: MessageId,
    pub(crate) content_type: ContentType,
    pub(crate) headers: Headers,
    pub(crate) ordering_key: Option<Key>,
    pub(crate) priority: Priority,
}

columns! {
    /// Where the columns of [`Metadata`] are.
    MetadataColumns { message_id, content_type, headers, ordering_key, priority }
}

impl Metadata {
    /// Reads the columns; the error names the unreadable one.
    pub(crate) fn read(row: &Row<'_>, columns: MetadataColumns) -> Result<Self, String> {
        let MetadataColumns { message_id: id, content_type, headers, ordering_key: key, priority } = columns;
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
            _ => return Err("headers are not text".to_owned()),
        };
        let ordering_key = match text(key, "ordering_key")? {
            None => None,
            Some(key) => Some(Key::new("ordering key", &key).map_err(|error| error.to_string())?),
        };
        let priority = row.get::<_, u8>(priority).map_err(|error| format!("priority is unreadable: {error}"))?;
        let priority = Priority::new(priority).map_err(|error| error.to_string())?;
        Ok(Self { id: MessageId::from_uuid(Uuid::from_bytes(id)), content_type, headers, ordering_key, priority })
    }

    /// Reads the columns, with defaults if one is unreadable.
    pub(crate) fn read_leniently(row: &Row<'_>, columns: MetadataColumns, native: i64) -> Self {
        Self::read(row, columns).unwrap_or_else(|_| Self {
            id: message_id(row, columns.message_id, native),
            content_type: ContentType::OCTET_STREAM,
            headers: Headers::new(),
            ordering_key: None,
            priority: Priority::default(),
        })
    }
}

/// The counts and times of a message. Each can be unreadable when another program has changed the row.
#[derive(Debug)]
pub(crate) struct DeliveryRecord {
    pub(crate) deliveries_count: u32,
    pub(crate) attempts_count: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) first_attempt_at: Option<Timestamp>,
    pub(crate) expires_at: Option<Timestamp>,
}

columns! {
    /// Where the columns of [`DeliveryRecord`] are.
    DeliveryRecordColumns { deliveries_count, attempts_count, created_at, first_attempt_at, expires_at }
}

impl DeliveryRecord {
    /// Reads the columns; the error names the unreadable one.
    pub(crate) fn read(row: &Row<'_>, columns: DeliveryRecordColumns) -> Result<Self, String> {
        let unreadable = |what: &'static str| move |error: rusqlite::Error| format!("{what} is unreadable: {error}");
        Ok(Self {
            deliveries_count: count(row, columns.deliveries_count).map_err(unreadable("deliveries_count"))?,
            attempts_count: count(row, columns.attempts_count).map_err(unreadable("attempts_count"))?,
            created_at: time(row, columns.created_at).map_err(unreadable("created_at"))?,
            first_attempt_at: optional_time(row, columns.first_attempt_at).map_err(unreadable("first_attempt_at"))?,
            expires_at: optional_time(row, columns.expires_at).map_err(unreadable("expires_at"))?,
        })
    }

    /// Reads the columns, with defaults for the unreadable ones.
    pub(crate) fn read_leniently(row: &Row<'_>, columns: DeliveryRecordColumns) -> Self {
        Self {
            deliveries_count: count(row, columns.deliveries_count).unwrap_or_default(),
            attempts_count: count(row, columns.attempts_count).unwrap_or_default(),
            created_at: time(row, columns.created_at).unwrap_or(Timestamp::from_micros(0)),
            first_attempt_at: optional_time(row, columns.first_attempt_at).unwrap_or_default(),
            expires_at: optional_time(row, columns.expires_at).unwrap_or_default(),
        }
    }
}

/// Where the columns of a due message are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadDueColumns {
    pub(crate) metadata: MetadataColumns,
    pub(crate) record: DeliveryRecordColumns,
    pub(crate) dedup_key: usize,
    pub(crate) payload: usize,
}

impl Columns for ReadDueColumns {
    fn of(statement: &Statement<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            metadata: MetadataColumns::of(statement)?,
            record: DeliveryRecordColumns::of(statement)?,
            dedup_key: statement.column_index("dedup_key")?,
            payload: statement.column_index("payload")?,
        })
    }
}

/// Where the columns are that a dead letter shares with a living message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeadLetterColumns {
    metadata: MetadataColumns,
    record: DeliveryRecordColumns,
}

impl Columns for DeadLetterColumns {
    fn of(statement: &Statement<'_>) -> rusqlite::Result<Self> {
        Ok(Self { metadata: MetadataColumns::of(statement)?, record: DeliveryRecordColumns::of(statement)? })
    }
}

/// Reads a dead letter: its number in the order of deaths, its row number and the letter.
pub(crate) fn dead_letter(
    row: &Row<'_>,
    origin: &QueueName,
    columns: DeadLetterColumns,
) -> rusqlite::Result<(i64, i64, DeadLetter)> {
    let (death, id): (i64, i64) = (row.get("death")?, row.get("id")?);
    let metadata = Metadata::read_leniently(row, columns.metadata, id);
    let record = DeliveryRecord::read_leniently(row, columns.record);
    let letter = DeadLetter {
        id: metadata.id,
        origin: origin.clone(),
        body: bytes(row, "payload")?,
        content_type: metadata.content_type,
        headers: metadata.headers,
        ordering_key: metadata.ordering_key,
        dedup_key: key(row, "dedup_key", "dedup key"),
        priority: metadata.priority,
        expires_at: record.expires_at,
        reason: row.get::<_, String>("reason")?.into(),
        error: row.get("error").unwrap_or_default(),
        deliveries_count: record.deliveries_count,
        attempts_count: record.attempts_count,
        enqueued_at: record.created_at,
        first_attempt_at: record.first_attempt_at,
        last_attempt_at: optional_time(row, "last_attempt_at").unwrap_or_default(),
        dead_at: time(row, "dead_at")?,
        revision: count(row, "revision")?,
    };
    Ok((death, id, letter))
}
