//! Conversion between columns and values.

use std::borrow::Cow;

use postrider_core::{ContentType, DeadLetter, Headers, Key, MessageId, Priority, QueueName};
pub(crate) use postrider_pg::columns::{Time, body, count, key, message_id, micros, optional_time, positions, time};
use tokio_postgres::Row;

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

/// The columns that cannot be parsed if another program wrote the row.
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) id: MessageId,
    pub(crate) content_type: ContentType,
    pub(crate) headers: Headers,
    pub(crate) ordering_key: Option<Key>,
    pub(crate) priority: Priority,
}

postrider_pg::columns! {
    /// The columns of a label.
    LabelColumns { message_id, content_type, headers, ordering_key, priority }
}

impl Label {
    /// Reads a label; the error says what cannot be parsed.
    pub(crate) fn read(row: &Row, columns: LabelColumns) -> Result<Self, String> {
        let content_type = match row.get::<_, Option<&str>>(columns.content_type) {
            None => ContentType::OCTET_STREAM,
            Some(name) => ContentType::parse(name).map_err(|error| error.to_string())?,
        };
        let headers = match row.get::<_, &str>(columns.headers) {
            "{}" => Headers::new(),
            json => serde_json::from_str(json).map_err(|error| format!("the headers cannot be parsed: {error}"))?,
        };
        let ordering_key = match row.get::<_, Option<&str>>(columns.ordering_key) {
            None => None,
            Some(key) => Some(Key::new("ordering key", key).map_err(|error| error.to_string())?),
        };
        let priority = u8::try_from(row.get::<_, i16>(columns.priority)).map_err(|error| error.to_string())?;
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

postrider_pg::columns! {
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
        reason: row.get::<_, String>(columns.reason).into(),
        error: row.get(columns.error),
        deliveries_count: count(row, columns.deliveries_count),
        attempts_count: count(row, columns.attempts_count),
        enqueued_at: time(row, columns.created_at),
        first_attempt_at: optional_time(row, columns.first_attempt_at),
        last_attempt_at: optional_time(row, columns.last_attempt_at),
        dead_at: time(row, columns.dead_at),
        revision: count(row, columns.revision),
    };
    (row.get(columns.death), letter)
}
