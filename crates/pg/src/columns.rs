//! Columns as values, both ways.

use std::error::Error;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use postgres_types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use postrider_core::{Key, MessageId, Timestamp};
use tokio_postgres::Row;
use uuid::Uuid;

/// The server counts microseconds from the year 2000.
const EPOCH: i64 = 946_684_800_000_000;
/// The earliest time that the server can hold, counted its way.
const EARLIEST: i64 = -211_813_488_000_000_000;

/// A time, in the server's own form: its text form would cost a tenth of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Timestamp);

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
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// A time that is there.
pub fn time(row: &Row, column: usize) -> Timestamp {
    row.get::<_, Time>(column).0
}

/// A time, or null.
pub fn optional_time(row: &Row, column: usize) -> Option<Timestamp> {
    row.get::<_, Option<Time>>(column).map(|time| time.0)
}

/// A stored count. The column is wider than any count that we write.
pub fn count(row: &Row, column: usize) -> u32 {
    u32::try_from(row.get::<_, i64>(column).max(0)).unwrap_or(u32::MAX)
}

/// A message's id.
pub fn message_id(row: &Row, column: usize) -> MessageId {
    MessageId::from_uuid(row.get::<_, Uuid>(column))
}

/// A message's bytes.
pub fn body(row: &Row, column: usize) -> Bytes {
    Bytes::copy_from_slice(row.get::<_, &[u8]>(column))
}

/// A key, if it is one.
pub fn key(row: &Row, column: usize, what: &'static str) -> Option<Key> {
    row.get::<_, Option<&str>>(column).and_then(|key| Key::new(what, key).ok())
}
