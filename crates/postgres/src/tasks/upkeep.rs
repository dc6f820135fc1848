//! What has to be done for tasks now and then: lost leases, missed deadlines, the end of memory.

use std::time::{Duration, Instant};

use postgres_types::ToSql;
use postrider_core::Deadline;
use postrider_core::task::{LostLease, TaskId, TaskLease, TaskType};
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;

use super::Tasks;
use super::hints::News;
use super::keys::Keys;
use super::rows::{delay_column, duration, strategy, task_id};
use super::send::{Posting, message_ids};
use crate::rows::count;

/// What is told of a task whose deadline has passed.
const TOO_LATE: &str = "the deadline passed before it was done";

/// So many tasks die by one statement at most.
const MOST_DEATHS: usize = 1000;

/// So many tasks are looked at in one transaction to be forgotten.
const CHUNK: i64 = 1000;

impl Tasks {
    /// Leases that have run out, the longest ago first.
    pub(super) async fn lost_leases(&self, limit: usize, deadline: Deadline) -> Result<Vec<LostLease>, Undone> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = self.ask("look for lost leases", deadline, &self.sql().task_lost_leases, vec![&limit]).await?;
        Ok(found.iter().filter_map(lost).collect())
    }

    /// Tasks die whose deadline has passed.
    pub(super) async fn expire_overdue(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, Undone> {
        let mut dead = Vec::new();
        while dead.len() < limit {
            let wanted = (limit - dead.len()).min(MOST_DEATHS);
            let chunk = match self.expire_some(wanted, deadline).await {
                Ok(chunk) => chunk,
                // What has died must be told.
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
        let (mut news, mut keys) = (News::default(), Keys::new());
        for row in &dead {
            self.note_death(&mut news);
            if let Some(key) = row.get::<_, Option<String>>(2) {
                keys.insert((row.get(1), key));
            }
        }
        self.tell(&news, began);
        self.place_own(&keys).await;
        Ok(dead.iter().map(|row| task_id(row, 0)).collect())
    }

    /// Removes tasks that ended well, or were called off, long ago.
    pub(super) async fn forget_finished(&self, older_than: Duration, deadline: Deadline) -> Result<u64, Undone> {
        let (mut forgotten, mut after, age) = (0, 0_i64, delay_column(older_than));
        loop {
            let chunk = persist(|| {
                let parameters: Vec<&(dyn ToSql + Sync)> = vec![&after, &age, &CHUNK];
                self.ask("forget tasks", deadline, &self.sql().task_forget, parameters)
            });
            let chunk = chunk.await?;
            let Some(row) = chunk.first() else { return Ok(forgotten) };
            forgotten += row.get::<_, i64>(0).max(0).unsigned_abs();
            match row.get::<_, Option<i64>>(1) {
                Some(last) => after = last,
                None => return Ok(forgotten),
            }
        }
    }
}

/// A lease that has run out; `None` when the task's type is none, and so was not written by us.
fn lost(row: &Row) -> Option<LostLease> {
    Some(LostLease {
        lease: TaskLease { id: task_id(row, 0), token: row.get(1) },
        task_type: TaskType::new(row.get::<_, &str>(2)).ok()?,
        worker: row.get::<_, Option<String>>(3).unwrap_or_default(),
        attempt_count: count(row, 4),
        max_attempts: count(row, 5),
        retry_strategy: strategy(row, 6),
        since_first_attempt: duration(row.get::<_, Option<i64>>(7).unwrap_or(0)),
    })
}
