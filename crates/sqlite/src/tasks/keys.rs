//! Ordering keys: of the living tasks of a type and key, only the first can be claimed.
//!
//! The first is the head, and the only one whose row is not `blocked`. It stays the head until it has ended, through
//! retries and lost leases; then the next task becomes the head, in the same transaction.

use postrider_core::Timestamp;
use postrider_core::task::TaskType;
use rusqlite::OptionalExtension;

use super::step::TaskStep;
use crate::sql;

/// A position among the tasks of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyPosition {
    pub(super) position: Option<i64>,
    pub(super) is_blocked: bool,
}

impl KeyPosition {
    /// That of a task without a key, which waits for no other task.
    pub(super) const NONE: Self = Self { position: None, is_blocked: false };
}

impl TaskStep<'_, '_> {
    /// The position behind every living task of a key.
    pub(super) fn tail(&mut self, task_type: &TaskType, key: &str) -> rusqlite::Result<KeyPosition> {
        let statement = self.session.hot.task_key_tail.get(self.session.connection, sql::TASK_KEY_TAIL)?;
        let last: Option<i64> = statement.query_row((task_type.as_str(), key), |row| row.get(0))?;
        Ok(KeyPosition { position: Some(last.map_or(1, |last| last.saturating_add(1))), is_blocked: last.is_some() })
    }

    /// Unblocks the first living task of a key after another has ended, if it is blocked.
    pub(super) fn promote_task(&mut self, task_type: &TaskType, key: &str) -> rusqlite::Result<()> {
        let mut statement = self.session.connection.prepare_cached(sql::TASK_PROMOTE)?;
        let due = statement.query_row((task_type.as_str(), key), |row| row.get(0).map(Timestamp::from_micros));
        if let Some(due) = due.optional()? {
            self.wake_for_task(task_type, due);
        }
        Ok(())
    }
}
