//! The archive: how long its rows are kept, and how they are removed.

use std::time::Duration;

use postrider_core::{DEAD_LETTER_SUFFIX, Timestamp};
use rusqlite::Connection;

use crate::rows::{Columns, columns};
use crate::session::Session;
use crate::sql;

/// The result of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(crate) removed: u64,
    /// The row after which there may be more to remove.
    pub(crate) next: Option<i64>,
}

columns! {
    /// Where the columns of `sweep_archive` are.
    SweepColumns { archive_id, queue, message_id, archived_at }
}

/// An archived row that is older than the retention.
#[derive(Debug)]
struct OldRow {
    archive_id: i64,
    /// The queue that its message was sent to.
    origin: String,
    message_id: Vec<u8>,
}

/// The old rows of a part of the archive.
#[derive(Debug)]
pub(crate) struct OldRows {
    rows: Vec<OldRow>,
    /// The row after which the next part begins, if it may have old rows.
    pub(crate) next: Option<i64>,
    /// Whether the part has no rows at all.
    pub(crate) is_empty: bool,
}

impl OldRows {
    pub(crate) fn has_any(&self) -> bool {
        !self.rows.is_empty()
    }
}

/// Finds the rows older than the retention among the next `limit` after `after`.
pub(crate) fn find_old(
    connection: &Connection,
    now: Timestamp,
    retention: Duration,
    limit: usize,
    after: i64,
) -> rusqlite::Result<OldRows> {
    let (now, until) = (now.as_micros(), now.saturating_sub(retention).as_micros());
    let mut statement = connection.prepare_cached(sql::SWEEP_ARCHIVE)?;
    let columns = SweepColumns::of(&statement)?;
    let rows = statement.query_map((after, i64::try_from(limit).unwrap_or(i64::MAX)), |row| {
        let queue: String = row.get(columns.queue).unwrap_or_default();
        let origin = queue.strip_suffix(DEAD_LETTER_SUFFIX).unwrap_or(&queue).to_owned();
        let old = OldRow { archive_id: row.get(columns.archive_id)?, origin, message_id: row.get(columns.message_id)? };
        // A row with an unreadable time counts as old.
        Ok((old, row.get::<_, i64>(columns.archived_at).unwrap_or(i64::MIN)))
    })?;
    let rows: Vec<(OldRow, i64)> = rows.collect::<rusqlite::Result<_>>()?;
    let is_full = rows.len() >= limit;
    // Rows are in the order of age, so a young row ends the search, except one from the future, which a clock that was
    // ahead has left.
    let goes_on = |archived_at: i64| archived_at <= until || archived_at > now;
    let next = rows.last().filter(|(_, archived_at)| is_full && goes_on(*archived_at)).map(|(old, _)| old.archive_id);
    let is_empty = rows.is_empty();
    let old = rows.into_iter().filter(|(_, archived_at)| *archived_at <= until).map(|(old, _)| old);
    Ok(OldRows { rows: old.collect(), next, is_empty })
}

impl Session<'_> {
    /// Removes the archived rows older than the retention among the next `limit` after `after`.
    pub(crate) fn sweep_archive(&mut self, retention: Duration, limit: usize, after: i64) -> rusqlite::Result<Sweep> {
        let old = find_old(self.connection, self.now, retention, limit, after)?;
        let mut remove = self.connection.prepare_cached(sql::REMOVE_ARCHIVED)?;
        let mut forget = self.connection.prepare_cached(sql::FORGET_ATTEMPTS)?;
        for row in &old.rows {
            remove.execute([row.archive_id])?;
            forget.execute((&row.origin, &row.message_id))?;
        }
        Ok(Sweep { removed: old.rows.len() as u64, next: old.next })
    }
}
