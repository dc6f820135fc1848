//! Chores of tasks: lost leases, missed deadlines, removal of old tasks.

use std::time::{Duration, Instant};

use postgres_types::ToSql;
use postrider_core::Deadline;
use postrider_core::task::{LostLease, TaskId, TaskLease, TaskType};
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;

use super::Tasks;
use super::hints::Notices;
use super::keys::Keys;
use super::rows::{delay_column, duration, strategy, task_id};
use super::send::{Posting, message_ids};
use crate::rows::{count, positions};

/// The error of a task whose deadline has passed.
const TOO_LATE: &str = "the deadline passed before it was done";

/// Upper bound of one expiry statement.
const MAX_DEATHS: usize = 1000;

/// Tasks read in one transaction of the removal.
const CHUNK: i64 = 1000;

impl Tasks {
    /// Returns expired leases, the earliest first.
    pub(super) async fn lost_leases(&self, limit: usize, deadline: Deadline) -> Result<Vec<LostLease>, Undone> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = self.ask("look for lost leases", deadline, &self.sql().task_lost_leases, vec![&limit]).await?;
        Ok(found.iter().filter_map(lost).collect())
    }

    /// Ends tasks whose deadline has passed.
    pub(super) async fn expire_overdue(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, Undone> {
        let mut dead = Vec::new();
        while dead.len() < limit {
            let wanted = (limit - dead.len()).min(MAX_DEATHS);
            let chunk = match self.expire_some(wanted, deadline).await {
                Ok(chunk) => chunk,
                // An error must not hide the tasks that were ended.
                Err(_) if !dead.is_empty() => break,
                Err(error) => return Err(error),
            };
            let is_last = chunk.len() < wanted;
            dead.extend(chunk);
            if is_last {
                break;
            }
        }
        Ok(dead)
    }

    async fn expire_some(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, Undone> {
        let (began, posting) = (Instant::now(), Posting::of(self));
        let ids = message_ids(if posting.events.is_some() { limit } else { 0 });
        let number = limit as i64;
        let dead = persist(|| {
            let parameters: Vec<&(dyn ToSql + Sync)> =
                vec![&number, &TOO_LATE, &ids, &posting.is_here, &posting.is_listed, &posting.events, &posting.room];
            self.ask("end overdue tasks", deadline, &self.sql().task_expire, parameters)
        });
        let dead = dead.await?;
        let (mut notices, mut keys) = (Notices::default(), Keys::new());
        let [id, task_type, key] = positions(&dead, ["task_id", "task_type", "ordering_key"]);
        for row in &dead {
            self.note_death(&mut notices);
            if let Some(key) = row.get::<_, Option<String>>(key) {
                keys.insert((row.get(task_type), key));
            }
        }
        self.notify(&notices, began);
        self.promote_own(&keys).await;
        Ok(dead.iter().map(|row| task_id(row, id)).collect())
    }

    /// Removes tasks that succeeded or were canceled long ago.
    pub(super) async fn forget_finished(&self, older_than: Duration, deadline: Deadline) -> Result<u64, Undone> {
        let (mut forgotten, mut after, age) = (0, 0_i64, delay_column(older_than));
        loop {
            let chunk = persist(|| {
                let parameters: Vec<&(dyn ToSql + Sync)> = vec![&after, &age, &CHUNK];
                self.ask("forget tasks", deadline, &self.sql().task_forget, parameters)
            });
            let chunk = chunk.await?;
            let Some(row) = chunk.first() else { return Ok(forgotten) };
            forgotten += row.get::<_, i64>("forgotten").max(0).unsigned_abs();
            match row.get::<_, Option<i64>>("last") {
                Some(last) => after = last,
                None => return Ok(forgotten),
            }
        }
    }
}

/// Reads an expired lease; `None` if the task's type is invalid: another program wrote it.
fn lost(row: &Row) -> Option<LostLease> {
    Some(LostLease {
        lease: TaskLease { id: task_id(row, "task_id"), token: row.get("lease_token") },
        task_type: TaskType::new(row.get::<_, &str>("task_type")).ok()?,
        worker: row.get::<_, Option<String>>("worker_id").unwrap_or_default(),
        attempt_count: count(row, "attempt_count"),
        max_attempts: count(row, "max_attempts"),
        retry_strategy: strategy(row, "retry_strategy"),
        since_first_attempt: duration(row.get::<_, Option<i64>>("since_first_attempt").unwrap_or(0)),
    })
}
