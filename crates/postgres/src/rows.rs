//! Columns as values, both ways.

use std::borrow::Cow;

use postrider_core::{ContentType, DeadLetter, Headers, Key, MessageId, Priority, QueueName};
pub(crate) use postrider_pg::columns::{Time, body, count, key, message_id, micros, optional_time, time};
use tokio_postgres::Row;

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
        let content_type = match row.get::<_, Option<&str>>(content_type) {
            None => ContentType::OCTET_STREAM,
            Some(name) => ContentType::parse(name).map_err(|error| error.to_string())?,
        };
        let headers = match row.get::<_, &str>(headers) {
            "{}" => Headers::new(),
            json => serde_json::from_str(json).map_err(|error| format!("headers are unreadable: {error}"))?,
        };
        let ordering_key = match row.get::<_, Option<&str>>(key) {
            None => None,
            Some(key) => Some(Key::new("ordering key", key).map_err(|error| error.to_string())?),
        };
        let priority = u8::try_from(row.get::<_, i16>(priority)).map_err(|error| error.to_string())?;
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
        reason: row.get::<_, String>(2).into(),
        error: row.get(3),
        deliveries_count: count(row, 4),
        attempts_count: count(row, 5),
        enqueued_at: time(row, 6),
        first_attempt_at: optional_time(row, 7),
        last_attempt_at: optional_time(row, 8),
        dead_at: time(row, 9),
        revision: count(row, 11),
    };
    (row.get(0), letter)
}
