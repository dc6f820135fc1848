//! What is kept of messages after their end, and for how long.

use std::time::Duration;

use crate::session::Session;
use crate::sql;

impl Session<'_> {
    /// Removes archived rows that are older than the retention, at most `limit` of them, and answers how many.
    pub(crate) fn sweep_archive(&mut self, retention: Duration, limit: usize) -> rusqlite::Result<u64> {
        let until = self.now.saturating_sub(retention).as_micros();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let old: Vec<(i64, Vec<u8>)> = self
            .connection
            .prepare_cached(sql::SWEEP_ARCHIVE)?
            .query_map((until, limit), |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let mut remove = self.connection.prepare_cached(sql::REMOVE_ARCHIVED)?;
        let mut forget = self.connection.prepare_cached(sql::FORGET_ATTEMPTS)?;
        for (archive_id, message) in &old {
            remove.execute([archive_id])?;
            forget.execute([message])?;
        }
        Ok(old.len() as u64)
    }
}
