//! Rows of PGMQ's tables as values, and JSON as the statements take it.

use std::error::Error;

use bytes::BytesMut;
use postgres_types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use postrider_core::{DeadLetter, DeadLetterReason, QueueName, Timestamp};
use postrider_pg::columns::{optional_time, time};
use postrider_pg::tokio_postgres::Row;

use crate::codec::{self, Decoded};

/// JSON, as text on our side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Json<'t>(pub(crate) &'t str);

/// The version of `jsonb` on the wire.
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
            _ => Err("this version of jsonb is not known".into()),
        }
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSONB
    }
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
    /// Reads the first columns: msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers.
    pub(crate) fn read(queue: &QueueName, row: &Row) -> Self {
        let msg_id = row.get(0);
        Self {
            msg_id,
            read_ct: row.get(1),
            enqueued_at: time(row, 2),
            last_read_at: optional_time(row, 3),
            vt: time(row, 4),
            decoded: decoded(queue, msg_id, row, [5, 6]),
        }
    }

    /// How often it was delivered, without the deliveries that were taken back.
    pub(crate) fn deliveries(&self) -> u32 {
        u32::try_from(self.read_ct).unwrap_or(0).saturating_sub(self.decoded.released)
    }
}

/// Reads a message whose JSON and headers are in these columns.
pub(crate) fn decoded(queue: &QueueName, msg_id: i64, row: &Row, [message, headers]: [usize; 2]) -> Decoded {
    let text = |column: usize| row.get::<_, Option<Json<'_>>>(column).map(|json| json.0);
    codec::decode(queue, msg_id, text(message), text(headers))
}

/// A dead letter as a listing has it: msg_id, message, headers, enqueued_at, whether it is leased.
#[derive(Debug)]
pub(crate) struct Dead {
    /// Its number, which is its place in the order of deaths.
    pub(crate) msg_id: i64,
    pub(crate) decoded: Decoded,
    pub(crate) headers: String,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) is_leased: bool,
}

impl Dead {
    pub(crate) fn read(queue: &QueueName, row: &Row) -> Self {
        let msg_id = row.get(0);
        Self {
            msg_id,
            decoded: decoded(&queue.dead_letters(), msg_id, row, [1, 2]),
            headers: row.get::<_, Option<Json<'_>>>(2).map_or_else(String::new, |json| json.0.to_owned()),
            enqueued_at: time(row, 3),
            is_leased: row.get(4),
        }
    }

    /// As the contract has it. What another client has put there has no record.
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

/// Why a message is among the dead that another client has put there.
const FOREIGN: &str = "foreign";
