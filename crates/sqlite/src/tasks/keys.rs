//! Ordering keys: of the tasks of a type that have one key, only the first that lives can be claimed.
//!
//! The first is the head, and the only one whose row is not `blocked`. It stays the head until it has ended, through
//! retries and lost leases; then the next one becomes it, in the same transaction.

use postrider_core::Timestamp;
use postrider_core::task::TaskType;
use rusqlite::OptionalExtension;

use super::step::TaskStep;
use crate::sql;

/// A place in the line of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) position: Option<i64>,
    pub(super) is_blocked: bool,
}

impl Place {
    /// Of a task without a key, which waits for nobody.
    pub(super) const FREE: Self = Self { position: None, is_blocked: false };
}

impl TaskStep<'_, '_> {
    /// The place behind everybody of a key who lives.
    pub(super) fn tail(&mut self, task_type: &TaskType, key: &str) -> rusqlite::Result<Place> {
        let statement = self.session.hot.task_key_tail.get(self.session.connection, sql::TASK_KEY_TAIL)?;
        let last: Option<i64> = statement.query_row((task_type.as_str(), key), |row| row.get(0))?;
        Ok(Place { position: Some(last.map_or(1, |last| last.saturating_add(1))), is_blocked: last.is_some() })
    }

    /// One of a key has ended: the first that is left goes ahead, unless it does already.
    pub(super) fn promote_task(&mut self, task_type: &TaskType, key: &str) -> rusqlite::Result<()> {
        let mut statement = self.session.connection.prepare_cached(sql::TASK_PROMOTE)?;
        let due = statement.query_row((task_type.as_str(), key), |row| row.get(0).map(Timestamp::from_micros));
        if let Some(due) = due.optional()? {
            self.tell_of_task(task_type, due);
        }
        Ok(())
    }
}
