//! What is kept of messages after their end, and for how long.

use std::time::Duration;

use postrider_core::{DEAD_LETTER_SUFFIX, Timestamp};
use rusqlite::Connection;

use crate::session::Session;
use crate::sql;

/// What a sweep came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(crate) removed: u64,
    /// Where there may be more to remove.
    pub(crate) next: Option<i64>,
}

/// A row that is older than the retention.
#[derive(Debug)]
struct Old {
    archive_id: i64,
    /// The queue that its message was sent to.
    origin: String,
    message_id: Vec<u8>,
}

/// A part of the archive.
#[derive(Debug)]
pub(crate) struct Looked {
    old: Vec<Old>,
    pub(crate) next: Option<i64>,
    pub(crate) is_empty: bool,
}

impl Looked {
    pub(crate) fn has_old(&self) -> bool {
        !self.old.is_empty()
    }
}

/// Looks for rows that are older than the retention among the next `limit` after `after`.
pub(crate) fn look(
    connection: &Connection,
    now: Timestamp,
    retention: Duration,
    limit: usize,
    after: i64,
) -> rusqlite::Result<Looked> {
    let (now, until) = (now.as_micros(), now.saturating_sub(retention).as_micros());
    let mut statement = connection.prepare_cached(sql::SWEEP_ARCHIVE)?;
    let rows = statement.query_map((after, i64::try_from(limit).unwrap_or(i64::MAX)), |row| {
        // A time that is unreadable is as good as none: its row has been there for long.
        let queue: String = row.get(1).unwrap_or_default();
        let origin = queue.strip_suffix(DEAD_LETTER_SUFFIX).unwrap_or(&queue).to_owned();
        let old = Old { archive_id: row.get(0)?, origin, message_id: row.get(2)? };
        Ok((old, row.get::<_, i64>(3).unwrap_or(i64::MIN)))
    })?;
    let rows: Vec<(Old, i64)> = rows.collect::<rusqlite::Result<_>>()?;
    let is_full = rows.len() >= limit;
    // Rows are in the order of their age, so behind one that is too young there are only younger ones; except that a
    // clock that was ahead left rows from a time that has not come yet.
    let goes_on = |archived_at: i64| archived_at <= until || archived_at > now;
    let next = rows.last().filter(|(_, archived_at)| is_full && goes_on(*archived_at)).map(|(old, _)| old.archive_id);
    let is_empty = rows.is_empty();
    let old = rows.into_iter().filter(|(_, archived_at)| *archived_at <= until).map(|(old, _)| old);
    Ok(Looked { old: old.collect(), next, is_empty })
}

impl Session<'_> {
    /// Removes archived rows that are older than the retention, of the next `limit` after `after`.
    pub(crate) fn sweep_archive(&mut self, retention: Duration, limit: usize, after: i64) -> rusqlite::Result<Sweep> {
        let looked = look(self.connection, self.now, retention, limit, after)?;
        let mut remove = self.connection.prepare_cached(sql::REMOVE_ARCHIVED)?;
        let mut forget = self.connection.prepare_cached(sql::FORGET_ATTEMPTS)?;
        for old in &looked.old {
            remove.execute([old.archive_id])?;
            forget.execute((&old.origin, &old.message_id))?;
        }
        Ok(Sweep { removed: looked.old.len() as u64, next: looked.next })
    }
}
