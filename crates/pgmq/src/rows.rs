//! Conversion between PGMQ's rows and values.

use std::error::Error;

use bytes::BytesMut;
use postgres_types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use postrider_core::{DeadLetter, DeadLetterReason, QueueName, Timestamp};
use postrider_pg::columns::{optional_time, time};
use postrider_pg::tokio_postgres::Row;

use crate::codec::{self, Decoded};

/// JSON, as text in this program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Json<'t>(pub(crate) &'t str);

/// The wire version of `jsonb`.
const WIRE_VERSION: u8 = 1;

impl ToSql for Json<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&[WIRE_VERSION]);
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Json<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        match raw.split_first() {
            Some((&WIRE_VERSION, text)) => Ok(Self(std::str::from_utf8(text)?)),
            _ => Err("this version of jsonb is unknown".into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }
}

postrider_pg::columns! {
    /// The columns of a row of a queue or an archive.
    StoredColumns { msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers }
}

/// A row of a queue's table.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) msg_id: i64,
    pub(crate) read_ct: i32,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) last_read_at: Option<Timestamp>,
    pub(crate) vt: Timestamp,
    pub(crate) decoded: Decoded,
}

impl Stored {
    pub(crate) fn read(queue: &QueueName, row: &Row, columns: StoredColumns) -> Self {
        let msg_id = row.get(columns.msg_id);
        Self {
            msg_id,
            read_ct: row.get(columns.read_ct),
            enqueued_at: time(row, columns.enqueued_at),
            last_read_at: optional_time(row, columns.last_read_at),
            vt: time(row, columns.vt),
            decoded: decoded(queue, msg_id, row, [columns.message, columns.headers]),
        }
    }

    /// Returns the number of deliveries, without those taken back.
    pub(crate) fn deliveries(&self) -> u32 {
        u32::try_from(self.read_ct).unwrap_or(0).saturating_sub(self.decoded.released)
    }
}

/// Decodes a message from these columns.
pub(crate) fn decoded(queue: &QueueName, msg_id: i64, row: &Row, [message, headers]: [usize; 2]) -> Decoded {
    let text = |column: usize| row.get::<_, Option<Json<'_>>>(column).map(|json| json.0);
    codec::decode(queue, msg_id, text(message), text(headers))
}

postrider_pg::columns! {
    /// The columns of a dead letter.
    DeadColumns { msg_id, message, headers, enqueued_at, is_leased }
}

/// A dead letter.
#[derive(Debug)]
pub(crate) struct Dead {
    /// Its number, which is also its position in the order of deaths.
    pub(crate) msg_id: i64,
    pub(crate) decoded: Decoded,
    pub(crate) headers: String,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) is_leased: bool,
}

impl Dead {
    pub(crate) fn read_all(queue: &QueueName, rows: &[Row]) -> Vec<Self> {
        let columns = DeadColumns::of(rows);
        let read = |row: &Row| {
            let msg_id = row.get(columns.msg_id);
            Self {
                msg_id,
                decoded: decoded(&queue.dead_letters(), msg_id, row, [columns.message, columns.headers]),
                headers: row
                    .get::<_, Option<Json<'_>>>(columns.headers)
                    .map_or_else(String::new, |json| json.0.to_owned()),
                enqueued_at: time(row, columns.enqueued_at),
                is_leased: row.get(columns.is_leased),
            }
        };
        rows.iter().map(read).collect()
    }

    /// Converts it to the contract's form. A dead letter of another client has no record.
    pub(crate) fn into_letter(self, origin: &QueueName) -> DeadLetter {
        let death = self.decoded.death.unwrap_or_default();
        DeadLetter {
            id: self.decoded.id,
            origin: origin.clone(),
            body: self.decoded.body,
            content_type: self.decoded.content_type,
            headers: self.decoded.headers,
            ordering_key: self.decoded.ordering_key,
            dedup_key: self.decoded.dedup_key,
            priority: postrider_core::Priority::default(),
            expires_at: self.decoded.expires_at,
            reason: death.reason.map_or_else(|| DeadLetterReason::from(FOREIGN), DeadLetterReason::from),
            error: death.error,
            deliveries_count: death.deliveries,
            attempts_count: death.attempts,
            enqueued_at: death.enqueued_at.unwrap_or(self.enqueued_at),
            first_attempt_at: death.first_read_at,
            last_attempt_at: death.last_read_at,
            dead_at: death.dead_at.unwrap_or(self.enqueued_at),
            revision: death.revision,
        }
    }
}

/// Death reason of a dead letter of another client.
const FOREIGN: &str = "foreign";
