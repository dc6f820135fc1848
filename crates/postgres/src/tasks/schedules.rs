//! Schedules, beside the tasks in the same schema.

use std::time::{Duration, Instant};

use postgres_types::ToSql;
use postrider_core::task::{NewSchedule, NewTask, Schedule, TaskId};
use postrider_core::{Deadline, MessagingError, Timestamp};
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;
use uuid::Uuid;

use super::Tasks;
use super::hints::Notices;
use super::rows::{duration, plain, unwritable};
use crate::rows::{Time, optional_time, time};

const FIRE: &str = "fire a schedule";

impl Tasks {
    pub(super) async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, Undone> {
        let found = self.ask("read the clock", deadline, &self.sql().store_time, Vec::new()).await?;
        Ok(found.first().map_or(Timestamp::EPOCH, |row| time(row, "now")))
    }

    pub(super) async fn put_schedule(
        &self,
        schedule: &NewSchedule,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Schedule, Undone> {
        schedule.check(self.max_payload_bytes())?;
        let definition = serde_json::to_string(schedule).map_err(|error| unwritable("schedule", error))?;
        let (name, next) = (schedule.name.as_str(), next_run_at.map(Time));
        let put = persist(|| {
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&name, &definition, &next];
            self.ask("put a schedule", deadline, &self.sql().schedule_put, parameters)
        });
        let put = put.await?;
        let row = put.first().ok_or_else(|| MessagingError::invalid("schedule", "it was not stored; try again"))?;
        Ok(read(row)?)
    }

    pub(super) async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, Undone> {
        let name = plain(name);
        let found = self.ask("read a schedule", deadline, &self.sql().schedule_get, vec![&name]).await?;
        Ok(found.first().map(read).transpose()?)
    }

    pub(super) async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, Undone> {
        let found = self.ask("list schedules", deadline, &self.sql().schedule_list, Vec::new()).await?;
        Ok(readable(&found))
    }

    pub(super) async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, Undone> {
        let name = plain(name);
        let gone =
            persist(|| self.ask("delete a schedule", deadline, &self.sql().schedule_delete, vec![&name])).await?;
        Ok(!gone.is_empty())
    }

    pub(super) async fn set_schedule_paused(
        &self,
        name: &str,
        version: i64,
        is_paused: bool,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<bool, Undone> {
        let (sql, name, next) = (self.sql(), plain(name), next_run_at.map(Time));
        let changed = persist(|| match is_paused {
            true => self.ask("pause a schedule", deadline, &sql.schedule_pause, vec![&name, &version]),
            false => self.ask("resume a schedule", deadline, &sql.schedule_resume, vec![&name, &version, &next]),
        });
        Ok(!changed.await?.is_empty())
    }

    pub(super) async fn due_schedules(&self, limit: usize, deadline: Deadline) -> Result<Vec<Schedule>, Undone> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let found = self.ask("look for due schedules", deadline, &self.sql().schedule_due, vec![&limit]).await?;
        Ok(readable(&found))
    }

    pub(super) async fn next_schedule_due(&self, deadline: Deadline) -> Result<Option<Duration>, Undone> {
        let statement = &self.sql().schedule_next_due;
        let found = self.ask("look for due schedules", deadline, statement, Vec::new()).await?;
        Ok(found.first().and_then(|row| row.get::<_, Option<i64>>("due_in")).map(duration))
    }

    /// Creates the tasks of a schedule's ticks and advances it, if it is unchanged since it was read.
    pub(super) async fn fire_schedule(
        &self,
        firing: &Firing,
        tasks: &[NewTask],
        deadline: Deadline,
    ) -> Result<Option<Vec<TaskId>>, Undone> {
        tasks.iter().try_for_each(|task| self.check(task))?;
        persist(|| self.try_fire(firing, tasks, deadline)).await
    }

    async fn try_fire(
        &self,
        firing: &Firing,
        tasks: &[NewTask],
        deadline: Deadline,
    ) -> Result<Option<Vec<TaskId>>, Undone> {
        let began = Instant::now();
        let name = plain(&firing.name);
        let mut session = self.shared.database.session(FIRE, deadline).await?;
        session.begin().await?;
        if session.query(&session.sql().schedule_lock, &[&name, &firing.version]).await?.is_empty() {
            session.rollback().await?;
            return Ok(None);
        }
        let tasks: Vec<&NewTask> = tasks.iter().collect();
        let made = self.insert_in(&session, &tasks).await?;
        let ids = self.ids_in(&session, &tasks, &made).await?;
        let last: Option<Uuid> = ids.last().map(|id| *id.as_uuid());
        let (next, last_run) = (firing.next_run_at.map(Time), firing.last_run_at.map(Time));
        session.query(&session.sql().schedule_fire, &[&name, &next, &last_run, &last]).await?;
        session.commit().await?;
        drop(session);
        let mut notices = Notices::default();
        tasks.iter().for_each(|task| self.note_pending(&mut notices, task.task_type.as_str()));
        self.notify(&notices, began);
        self.promote_own(&made.keys).await;
        Ok(Some(ids))
    }
}

/// A due schedule as it was read, and its next times.
#[derive(Debug)]
pub(super) struct Firing {
    pub(super) name: String,
    pub(super) version: i64,
    pub(super) last_run_at: Option<Timestamp>,
    pub(super) next_run_at: Option<Timestamp>,
}

fn read(row: &Row) -> Result<Schedule, MessagingError> {
    let definition = serde_json::from_str(row.get("definition")).map_err(|error| MessagingError::Deserialization {
        content_type: "application/json",
        source: std::sync::Arc::new(error),
    })?;
    Ok(Schedule {
        definition,
        version: row.get("version"),
        created_at: time(row, "created_at"),
        paused_at: optional_time(row, "paused_at"),
        next_run_at: optional_time(row, "next_run_at"),
        last_run_at: optional_time(row, "last_run_at"),
        last_task: row.get::<_, Option<Uuid>>("last_task_id").map(TaskId::from_uuid),
    })
}

/// Returns the schedules that can be parsed. One that a newer program wrote must not keep the others from firing.
fn readable(rows: &[Row]) -> Vec<Schedule> {
    let read = |row| {
        read(row).inspect_err(|error| {
            tracing::warn!(name = row.get::<_, &str>("name"), %error, "skipped a schedule that cannot be parsed");
        })
    };
    rows.iter().filter_map(|row| read(row).ok()).collect()
}
