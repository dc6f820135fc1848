//! Columns as values, both ways.

use std::borrow::Cow;
use std::error::Error;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use postgres_types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use postrider_core::{ContentType, DeadLetter, Headers, Key, MessageId, Priority, QueueName, Timestamp};
use tokio_postgres::Row;
use uuid::Uuid;

/// The server counts microseconds from the year 2000.
const EPOCH: i64 = 946_684_800_000_000;
/// The earliest time that the server can hold, counted its way.
const EARLIEST: i64 = -211_813_488_000_000_000;

/// A time, in the server's own form: its text form would cost a tenth of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time(pub(crate) Timestamp);

impl ToSql for Time {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let micros = self.0.as_micros().saturating_sub(EPOCH).max(EARLIEST);
        out.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Time {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(Timestamp::from_micros(micros.saturating_add(EPOCH))))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

/// A duration as the statements take it. Core allows none that does not fit.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
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
    row.get::<_, Time>(column).0
}

pub(crate) fn optional_time(row: &Row, column: usize) -> Option<Timestamp> {
    row.get::<_, Option<Time>>(column).map(|time| time.0)
}

/// A stored count. The column is wider than any count that we write.
pub(crate) fn count(row: &Row, column: usize) -> u32 {
    u32::try_from(row.get::<_, i64>(column).max(0)).unwrap_or(u32::MAX)
}

pub(crate) fn message_id(row: &Row, column: usize) -> MessageId {
    MessageId::from_uuid(row.get::<_, Uuid>(column))
}

pub(crate) fn body(row: &Row, column: usize) -> Bytes {
    Bytes::copy_from_slice(row.get::<_, &[u8]>(column))
}

/// A key, if it is one.
pub(crate) fn key(row: &Row, column: usize, what: &'static str) -> Option<Key> {
    row.get::<_, Option<&str>>(column).and_then(|key| Key::new(what, key).ok())
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
