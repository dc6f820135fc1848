//! Conversion between columns and values.
//!
//! Columns are read by name. A lookup by name is a linear search, so where a result has many rows,
//! [`columns!`](crate::columns!) and [`positions`] resolve the names once per result.

use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use postgres_types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use postrider_core::{Key, MessageId, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use uuid::Uuid;

/// A column of a row: its name, or its position.
pub trait Column: RowIndex + Display {}

impl<C: RowIndex + Display> Column for C {}

/// Returns the positions of columns in a result; zeros if it has no rows.
pub fn positions<const N: usize>(rows: &[Row], names: [&str; N]) -> [usize; N] {
    rows.first().map_or([0; N], |row| names.map(|name| position(row, name)))
}

/// Returns the position of a column. Reading a missing column panics, as by its name.
fn position(row: &Row, name: &str) -> usize {
    row.columns().iter().position(|column| column.name() == name).unwrap_or(usize::MAX)
}

/// Defines a struct of the positions of columns, found by their names.
#[macro_export]
macro_rules! columns {
    ($(#[$doc:meta])* $type:ident { $($name:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $type { $(pub(crate) $name: usize,)+ }

        impl $type {
            /// Finds the columns of a result; zeros if it has no rows.
            pub(crate) fn of(rows: &[$crate::tokio_postgres::Row]) -> Self {
                let [$($name),+] = $crate::columns::positions(rows, [$(stringify!($name)),+]);
                Self { $($name),+ }
            }
        }
    };
}

/// The server's epoch, the year 2000, in microseconds since 1970.
const EPOCH: i64 = 946_684_800_000_000;
/// The server's earliest time.
const EARLIEST: i64 = -211_813_488_000_000_000;

/// A time in the server's binary form; its text form would cost a tenth of a batch.
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

/// Returns a duration in microseconds. Core refuses durations that do not fit.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// Reads a time that is never null.
pub fn time(row: &Row, column: impl Column) -> Timestamp {
    row.get::<_, Time>(column).0
}

/// Reads a time, or null.
pub fn optional_time(row: &Row, column: impl Column) -> Option<Timestamp> {
    row.get::<_, Option<Time>>(column).map(|time| time.0)
}

/// Reads a count. The column is wider than any count of this program.
pub fn count(row: &Row, column: impl Column) -> u32 {
    u32::try_from(row.get::<_, i64>(column).max(0)).unwrap_or(u32::MAX)
}

/// Reads a message id.
pub fn message_id(row: &Row, column: impl Column) -> MessageId {
    MessageId::from_uuid(row.get::<_, Uuid>(column))
}

/// Reads the body of a message.
pub fn body(row: &Row, column: impl Column) -> Bytes {
    Bytes::copy_from_slice(row.get::<_, &[u8]>(column))
}

/// Reads a key; `None` if it is null or invalid.
pub fn key(row: &Row, column: impl Column, what: &'static str) -> Option<Key> {
    row.get::<_, Option<&str>>(column).and_then(|key| Key::new(what, key).ok())
}
