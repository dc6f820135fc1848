//! Schedules, and the tasks that they create.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::task::{NewSchedule, NewTask, Schedule, ScheduleStore, TaskId};
use postrider_core::{Deadline, MessagingError, Timestamp, async_trait};
use rusqlite::{Connection, OptionalExtension, Row};

use super::step::TaskStep;
use super::{SqliteTasks, record};
use crate::error::Failure;
use crate::rows;
use crate::sql;

/// Reads a row of `schedule_get`; the inner error is that of an unreadable definition.
fn schedule(row: &Row<'_>) -> rusqlite::Result<Result<Schedule, MessagingError>> {
    let definition: Result<NewSchedule, _> =
        serde_json::from_str(row.get_ref("definition")?.as_str().unwrap_or_default());
    let definition = match definition {
        Ok(definition) => definition,
        Err(error) => {
            let source = Arc::new(error);
            return Ok(Err(MessagingError::Deserialization { content_type: "JSON", source }));
        }
    };
    Ok(Ok(Schedule {
        definition,
        version: row.get("version")?,
        created_at: rows::time(row, "created_at")?,
        paused_at: rows::optional_time(row, "paused_at")?,
        next_run_at: rows::optional_time(row, "next_run_at")?,
        last_run_at: rows::optional_time(row, "last_run_at")?,
        last_task: record::task_id(row, "last_task_id").ok(),
    }))
}

fn get(connection: &Connection, name: &str) -> Result<Option<Schedule>, Failure> {
    let found = connection.prepare_cached(sql::SCHEDULE_GET)?.query_row([name], schedule).optional()?;
    Ok(found.transpose()?)
}

/// The readable schedules: an unreadable one must not stop the others.
fn several(
    connection: &Connection,
    statement: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<Schedule>, Failure> {
    let mut statement = connection.prepare_cached(statement)?;
    let found = statement.query_map(parameters, schedule)?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(found.into_iter().filter_map(Result::ok).collect())
}

fn micros(time: Option<Timestamp>) -> Option<i64> {
    time.map(Timestamp::as_micros)
}

impl TaskStep<'_, '_> {
    fn put_schedule(&mut self, schedule: &NewSchedule, next_run_at: Option<Timestamp>) -> Result<Schedule, Failure> {
        let definition = serde_json::to_string(schedule)
            .map_err(|error| MessagingError::Serialization { content_type: "JSON", source: Arc::new(error) })?;
        let connection = self.session.connection;
        let parameters = (&schedule.name, definition, self.now().as_micros(), micros(next_run_at));
        connection.prepare_cached(sql::SCHEDULE_PUT)?.execute(parameters)?;
        get(connection, &schedule.name)?.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// Creates the tasks of a schedule and sets its next run; `None` if the schedule has changed since it was read.
    fn fire_schedule(
        &mut self,
        name: &str,
        version: i64,
        tasks: &[NewTask],
        last_run_at: Option<Timestamp>,
        next_run_at: Option<Timestamp>,
    ) -> Result<Option<Vec<TaskId>>, Failure> {
        // Checked before the first write, because a refusal must not leave part of the tasks.
        for task in tasks {
            task.check(self.session.rules.capabilities.limits.max_body_bytes)?;
            self.queue(&task.task_type)?;
            self.session.require_space(task.payload.len())?;
        }
        let connection = self.session.connection;
        match get(connection, name)? {
            Some(schedule) if schedule.version == version && schedule.paused_at.is_none() => {}
            _ => return Ok(None),
        }
        let mut made = Vec::with_capacity(tasks.len());
        for task in tasks {
            made.push(self.make(task).map_err(Failure::take_back)?.id);
        }
        let last_task = made.last().map(|id| id.as_uuid().as_bytes());
        let parameters = (name, version, micros(last_run_at), micros(next_run_at), last_task);
        connection.prepare_cached(sql::SCHEDULE_FIRE)?.execute(parameters)?;
        Ok(Some(made))
    }
}

#[async_trait]
impl ScheduleStore for SqliteTasks {
    async fn store_time(&self, deadline: Deadline) -> Result<Timestamp, MessagingError> {
        self.begin("read the time", deadline)?;
        Ok(self.now())
    }

    async fn put_schedule(
        &self,
        schedule: &NewSchedule,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Schedule, MessagingError> {
        self.begin("put a schedule", deadline)?;
        schedule.check(self.max_payload())?;
        let schedule = schedule.clone();
        self.write("put a schedule", deadline, move |step| step.put_schedule(&schedule, next_run_at)).await
    }

    async fn get_schedule(&self, name: &str, deadline: Deadline) -> Result<Option<Schedule>, MessagingError> {
        self.begin("get a schedule", deadline)?;
        let name = name.to_owned();
        self.read("get a schedule", deadline, move |connection| get(connection, &name)).await
    }

    async fn list_schedules(&self, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        self.begin("list schedules", deadline)?;
        self.read("list schedules", deadline, |connection| several(connection, sql::SCHEDULE_LIST, [])).await
    }

    async fn delete_schedule(&self, name: &str, deadline: Deadline) -> Result<bool, MessagingError> {
        self.begin("delete a schedule", deadline)?;
        let name = name.to_owned();
        let delete = move |step: &mut TaskStep<'_, '_>| {
            let mut statement = step.session.connection.prepare_cached(sql::SCHEDULE_DELETE)?;
            Ok(statement.execute([&name])? > 0)
        };
        self.write("delete a schedule", deadline, delete).await
    }

    async fn set_schedule_paused(
        &self,
        name: &str,
        version: i64,
        is_paused: bool,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<bool, MessagingError> {
        self.begin("pause a schedule", deadline)?;
        let name = name.to_owned();
        let set = move |step: &mut TaskStep<'_, '_>| {
            let connection = step.session.connection;
            let changed = if is_paused {
                connection.prepare_cached(sql::SCHEDULE_PAUSE)?.execute((&name, version, step.now().as_micros()))?
            } else {
                connection.prepare_cached(sql::SCHEDULE_RESUME)?.execute((&name, version, micros(next_run_at)))?
            };
            Ok(changed > 0)
        };
        self.write("pause a schedule", deadline, set).await
    }

    async fn due_schedules(&self, limit: usize, deadline: Deadline) -> Result<Vec<Schedule>, MessagingError> {
        self.begin("look for due schedules", deadline)?;
        let parameters = (self.now().as_micros(), i64::try_from(limit).unwrap_or(i64::MAX));
        let read = move |connection: &Connection| several(connection, sql::SCHEDULE_DUE, parameters);
        self.read("look for due schedules", deadline, read).await
    }

    async fn fire_schedule(
        &self,
        name: &str,
        version: i64,
        tasks: Vec<NewTask>,
        last_run_at: Option<Timestamp>,
        next_run_at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Option<Vec<TaskId>>, MessagingError> {
        self.begin("fire a schedule", deadline)?;
        let name = name.to_owned();
        let fire =
            move |step: &mut TaskStep<'_, '_>| step.fire_schedule(&name, version, &tasks, last_run_at, next_run_at);
        self.write("fire a schedule", deadline, fire).await
    }

    async fn next_schedule_due(&self, deadline: Deadline) -> Result<Option<Duration>, MessagingError> {
        self.begin("look for due schedules", deadline)?;
        let now = self.now();
        let read = move |connection: &Connection| {
            let mut statement = connection.prepare_cached(sql::SCHEDULE_NEXT_DUE)?;
            let next = statement.query_row([], |row| rows::optional_time(row, 0))?;
            Ok(next.map(|next| next.since(now)))
        };
        self.read("look for due schedules", deadline, read).await
    }
}
