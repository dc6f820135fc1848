//! The chores of tasks: expired deadlines, enqueuing, stranded tasks, and the removal of old ones.

use std::time::Duration;

use postrider_core::task::{AttemptOutcome, DeadReason, Enqueued, Stranded, TaskId, TaskRoutes, TaskState, TaskType};
use postrider_core::{Priority, Timestamp};
use rusqlite::Connection;

use super::claim::{due_priorities, next_due, priorities, rotate};
use super::record;
use super::step::TaskStep;
use crate::rows;
use crate::sql;

/// Upper bound of a count of tasks or messages; larger counts make no difference.
const MAX_COUNTED: i64 = 100_000;

/// Upper bound of due tasks of a type and a priority that are searched for stranded ones.
const MAX_SEARCHED: i64 = 10_000;

/// Tasks read, and removed, in one transaction: other processes wait for the write lock.
pub(super) const CHUNK: usize = 1000;

const DEADLINE_PASSED: &str = "the deadline passed before it was done";

/// The types that have claimable tasks in a state, from the index alone.
pub(super) fn types(connection: &Connection, state: TaskState) -> rusqlite::Result<Vec<TaskType>> {
    let mut statement = connection.prepare_cached(sql::TASK_TYPES)?;
    let (mut types, mut after) = (Vec::new(), String::new());
    loop {
        let next = statement.query_row((state.as_str(), &after), |row| row.get::<_, Option<String>>(0))?;
        let Some(name) = next else { return Ok(types) };
        // An invalid name was written by another program.
        types.extend(TaskType::new(&name).ok());
        after = name;
    }
}

/// When the next PENDING task becomes due after `after`.
pub(super) fn next_to_enqueue(connection: &Connection, after: Timestamp) -> rusqlite::Result<Timestamp> {
    let mut next = Timestamp::MAX;
    for task_type in types(connection, TaskState::Pending)? {
        next = next.min(next_due(connection, TaskState::Pending, &task_type, after)?);
    }
    Ok(next)
}

/// A task that was found by a search.
struct Found {
    row: i64,
    id: TaskId,
    due: Timestamp,
}

/// Tasks of a type that were due and enqueued before `until`, and are still not claimed.
fn find_stranded(
    connection: &Connection,
    task_type: &TaskType,
    priority: u8,
    until: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    let mut statement = connection.prepare_cached(sql::TASK_STRANDED)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters = (task_type.as_str(), priority, until.as_micros(), MAX_SEARCHED, limit);
    let found = statement.query_map(parameters, |row| {
        let (id, due) = (record::task_id(row, "task_id")?, rows::time(row, "scheduled_for")?);
        Ok(Found { row: row.get("id")?, id, due })
    })?;
    found.collect()
}

/// The types that have tasks due and enqueued for longer than `grace`.
pub(super) fn stranded(
    connection: &Connection,
    routes: &TaskRoutes,
    grace: Duration,
    now: Timestamp,
) -> rusqlite::Result<Vec<Stranded>> {
    let until = now.saturating_sub(grace);
    let mut stranded = Vec::new();
    for task_type in types(connection, TaskState::Enqueued)? {
        let mut is_stranded = false;
        for priority in priorities(0) {
            is_stranded = is_stranded || !find_stranded(connection, &task_type, priority, until, 1)?.is_empty();
        }
        if is_stranded {
            stranded.push(count_stranded(connection, routes, task_type, now)?);
        }
    }
    Ok(stranded)
}

fn count_stranded(
    connection: &Connection,
    routes: &TaskRoutes,
    task_type: TaskType,
    now: Timestamp,
) -> rusqlite::Result<Stranded> {
    let count = |statement: &str, parameters: &[&dyn rusqlite::ToSql]| -> rusqlite::Result<u64> {
        let count = connection.prepare_cached(statement)?.query_row(parameters, |row| row.get::<_, i64>(0))?;
        Ok(count.max(0).cast_unsigned())
    };
    let name = task_type.as_str();
    let enqueued = count(sql::TASK_COUNT_ENQUEUED, &[&name, &now.as_micros(), &MAX_COUNTED])?;
    let processing = count(sql::TASK_COUNT_PROCESSING, &[&name, &MAX_COUNTED])?;
    let in_outbox = match routes.queue(&task_type) {
        Ok(queue) => count(sql::OUTBOX_COUNT, &[&queue.as_str(), &MAX_COUNTED])?,
        Err(_) => 0,
    };
    Ok(Stranded { task_type, enqueued, in_outbox, processing })
}

/// A part of the table, in the order of creation.
#[derive(Debug)]
pub(super) struct Forgettable {
    pub(super) rows: Vec<i64>,
    /// The row after which the next part begins, if there is one.
    pub(super) next: Option<i64>,
}

/// The tasks that ended before `until`, among the rows after `after`. The search ends at a task created after `until`.
pub(super) fn forgettable(connection: &Connection, after: i64, until: Timestamp) -> rusqlite::Result<Forgettable> {
    let mut statement = connection.prepare_cached(sql::TASK_FORGETTABLE)?;
    let mut found = statement.query((after, until.as_micros(), CHUNK as i64))?;
    let mut part = Forgettable { rows: Vec::new(), next: None };
    let mut read = 0;
    while let Some(row) = found.next()? {
        let id = row.get("id")?;
        // An unreadable time does not end the search.
        if rows::time(row, "created_at").is_ok_and(|created_at| created_at > until) {
            return Ok(Forgettable { next: None, ..part });
        }
        if row.get::<_, Option<bool>>("is_forgettable")?.unwrap_or(false) {
            part.rows.push(id);
        }
        read += 1;
        part.next = (read == CHUNK).then_some(id);
    }
    Ok(part)
}

impl TaskStep<'_, '_> {
    /// Ends tasks whose deadline has passed as dead, also leased ones.
    pub(super) fn expire_overdue(&mut self, limit: usize) -> rusqlite::Result<Vec<TaskId>> {
        let overdue: Vec<i64> = {
            let mut statement = self.session.connection.prepare_cached(sql::TASK_OVERDUE)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let found = statement.query_map((self.session.now.as_micros(), limit), |row| row.get("id"))?;
            found.collect::<rusqlite::Result<_>>()?
        };
        let mut died = Vec::with_capacity(overdue.len());
        for row in overdue {
            let Some(task) = self.task_row(row)? else { continue };
            if task.state == TaskState::Processing {
                self.note_attempt(&task, AttemptOutcome::Deadline, Some(DEADLINE_PASSED))?;
            }
            self.die(&task, DeadReason::Deadline, DEADLINE_PASSED)?;
            died.push(task.id);
        }
        Ok(died)
    }

    /// Enqueues due PENDING tasks.
    pub(super) fn enqueue_due(&mut self, limit: usize, round: u64) -> rusqlite::Result<Enqueued> {
        let connection = self.session.connection;
        let now = self.now();
        let mut types = types(connection, TaskState::Pending)?;
        rotate(&mut types, round);
        let mut due_by_type = Vec::with_capacity(types.len());
        for task_type in types {
            let due = due_priorities(connection, TaskState::Pending, &task_type, now)?;
            due_by_type.push((task_type, due));
        }
        let mut enqueued = Enqueued::default();
        for priority in priorities(round) {
            for (task_type, due) in &due_by_type {
                if due[usize::from(priority)] && enqueued.count < limit {
                    enqueued.count += self.enqueue_some(task_type, priority, limit - enqueued.count)?;
                }
            }
        }
        if enqueued.count < limit {
            let next = next_to_enqueue(connection, now)?;
            enqueued.next_due = (next != Timestamp::MAX).then(|| next.since(now));
        }
        Ok(enqueued)
    }

    /// Enqueues up to `limit` due tasks of a type and a priority. Returns how many.
    fn enqueue_some(&mut self, task_type: &TaskType, priority: u8, limit: usize) -> rusqlite::Result<usize> {
        let now = self.now();
        let found: Vec<(i64, TaskId)> = {
            let mut statement = self.session.connection.prepare_cached(sql::TASK_TO_SEND)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let parameters = (task_type.as_str(), priority, now.as_micros(), limit);
            let found =
                statement.query_map(parameters, |row| Ok((row.get("id")?, record::task_id(row, "task_id")?)))?;
            found.collect::<rusqlite::Result<_>>()?
        };
        for (row, id) in &found {
            self.enqueue(*row, *id, task_type, priority)?;
        }
        Ok(found.len())
    }

    fn enqueue(&mut self, row: i64, id: TaskId, task_type: &TaskType, priority: u8) -> rusqlite::Result<()> {
        let now = self.now();
        let statement = self.session.hot.task_enqueue.get(self.session.connection, sql::TASK_ENQUEUE)?;
        statement.execute((row, now.as_micros()))?;
        self.send_task(id, task_type, Priority::new(priority).unwrap_or_default(), now)
    }

    /// Sends the messages of tasks again that were enqueued longer than `grace` ago, the longest due first.
    pub(super) fn resend(&mut self, task_type: &TaskType, limit: usize, grace: Duration) -> rusqlite::Result<usize> {
        let until = self.now().saturating_sub(grace);
        let mut found = Vec::new();
        for priority in priorities(0) {
            let stranded = find_stranded(self.session.connection, task_type, priority, until, limit)?;
            found.extend(stranded.into_iter().map(|task| (task.due, task.row, task.id, priority)));
        }
        found.sort_unstable();
        found.truncate(limit);
        for (_, row, id, priority) in &found {
            self.enqueue(*row, *id, task_type, *priority)?;
        }
        Ok(found.len())
    }

    /// Removes tasks that ended before `until`, with their history.
    pub(super) fn forget(&mut self, rows: &[i64], until: Timestamp) -> rusqlite::Result<u64> {
        let connection = self.session.connection;
        let mut forget = connection.prepare_cached(sql::TASK_FORGET)?;
        let mut forget_attempts = connection.prepare_cached(sql::TASK_FORGET_ATTEMPTS)?;
        let mut forget_revisions = connection.prepare_cached(sql::TASK_FORGET_REVISIONS)?;
        let mut forgotten = 0;
        for row in rows {
            if forget.execute((row, until.as_micros()))? > 0 {
                forget_attempts.execute([row])?;
                forget_revisions.execute([row])?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }
}
