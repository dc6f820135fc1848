//! What keeps tasks moving when nobody asks: deadlines, tasks on their way, and what is no longer needed.

use std::time::Duration;

use postrider_core::task::{AttemptOutcome, DeadReason, Enqueued, Stranded, TaskId, TaskRoutes, TaskState, TaskType};
use postrider_core::{Priority, Timestamp};
use rusqlite::Connection;

use super::claim::{due_priorities, next_due, priorities, rotated};
use super::record;
use super::step::TaskStep;
use crate::rows;
use crate::sql;

/// So many tasks are counted of a type, and so many messages of a queue: beyond that it makes no difference.
const MOST_COUNTED: i64 = 100_000;

/// So many due tasks of a type and a priority are looked at for one that was not sent lately.
const MOST_LOOKED_AT: i64 = 10_000;

/// So many tasks are looked at, and forgotten, at a time: every other process waits for the end of a removal.
pub(super) const CHUNK: usize = 1000;

const DEADLINE_PASSED: &str = "the deadline passed before it was done";

/// The types of which something can be claimed in a state, without a look at their tasks.
pub(super) fn types(connection: &Connection, state: TaskState) -> rusqlite::Result<Vec<TaskType>> {
    let mut statement = connection.prepare_cached(sql::TASK_TYPES)?;
    let (mut types, mut after) = (Vec::new(), String::new());
    loop {
        let next = statement.query_row((state.as_str(), &after), |row| row.get::<_, Option<String>>(0))?;
        let Some(name) = next else { return Ok(types) };
        // A name that is none was not written by us.
        types.extend(TaskType::new(&name).ok());
        after = name;
    }
}

/// When the first PENDING task becomes due that is not due at `after`.
pub(super) fn next_to_enqueue(connection: &Connection, after: Timestamp) -> rusqlite::Result<Timestamp> {
    let mut next = Timestamp::MAX;
    for task_type in types(connection, TaskState::Pending)? {
        next = next.min(next_due(connection, TaskState::Pending, &task_type, after)?);
    }
    Ok(next)
}

/// A task that was found by its row.
struct Found {
    row: i64,
    id: TaskId,
    due: Timestamp,
}

/// Tasks of a type that have been due and on their way since before `until`.
fn find_stranded(
    connection: &Connection,
    task_type: &TaskType,
    priority: u8,
    until: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    let mut statement = connection.prepare_cached(sql::TASK_STRANDED)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let parameters = (task_type.as_str(), priority, until.as_micros(), MOST_LOOKED_AT, limit);
    let found = statement.query_map(parameters, |row| {
        Ok(Found { row: row.get(0)?, id: record::task_id(row, 1)?, due: rows::time(row, 2)? })
    })?;
    found.collect()
}

/// Types of which some task has been due and on its way for longer than `grace`.
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
    let enqueued = count(sql::TASK_COUNT_ENQUEUED, &[&name, &now.as_micros(), &MOST_COUNTED])?;
    let processing = count(sql::TASK_COUNT_PROCESSING, &[&name, &MOST_COUNTED])?;
    let in_outbox = match routes.queue(&task_type) {
        Ok(queue) => count(sql::OUTBOX_COUNT, &[&queue.as_str(), &MOST_COUNTED])?,
        Err(_) => 0,
    };
    Ok(Stranded { task_type, enqueued, in_outbox, processing })
}

/// A part of the table, from the oldest on.
#[derive(Debug)]
pub(super) struct Forgettable {
    pub(super) rows: Vec<i64>,
    /// Where there may be more.
    pub(super) next: Option<i64>,
}

/// Rows among the next ones after `after` that ended before `until`. Behind a task that was made after that there is none.
pub(super) fn forgettable(connection: &Connection, after: i64, until: Timestamp) -> rusqlite::Result<Forgettable> {
    let mut statement = connection.prepare_cached(sql::TASK_FORGETTABLE)?;
    let mut found = statement.query((after, until.as_micros(), CHUNK as i64))?;
    let mut part = Forgettable { rows: Vec::new(), next: None };
    let mut looked_at = 0;
    while let Some(row) = found.next()? {
        let id = row.get(0)?;
        // A time that is unreadable stops nobody.
        if rows::time(row, 1).is_ok_and(|created_at| created_at > until) {
            return Ok(Forgettable { next: None, ..part });
        }
        if row.get::<_, Option<bool>>(2)?.unwrap_or(false) {
            part.rows.push(id);
        }
        looked_at += 1;
        part.next = (looked_at == CHUNK).then_some(id);
    }
    Ok(part)
}

impl TaskStep<'_, '_> {
    /// Tasks whose deadline has passed die, worked on or not.
    pub(super) fn expire_overdue(&mut self, limit: usize) -> rusqlite::Result<Vec<TaskId>> {
        let overdue: Vec<i64> = {
            let mut statement = self.session.connection.prepare_cached(sql::TASK_OVERDUE)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let found = statement.query_map((self.session.now.as_micros(), limit), |row| row.get(0))?;
            found.collect::<rusqlite::Result<_>>()?
        };
        let mut died = Vec::with_capacity(overdue.len());
        for row in overdue {
            let Some(life) = self.life(row)? else { continue };
            if life.state == TaskState::Processing {
                self.note_attempt(&life, AttemptOutcome::Deadline, Some(DEADLINE_PASSED))?;
            }
            self.die(&life, DeadReason::Deadline, DEADLINE_PASSED)?;
            died.push(life.id);
        }
        Ok(died)
    }

    /// Sends PENDING tasks that are due on their way.
    pub(super) fn enqueue_due(&mut self, limit: usize, turn: u64) -> rusqlite::Result<Enqueued> {
        let connection = self.session.connection;
        let now = self.now();
        let mut types = types(connection, TaskState::Pending)?;
        rotated(&mut types, turn);
        let mut lines = Vec::with_capacity(types.len());
        for task_type in types {
            let due = due_priorities(connection, TaskState::Pending, &task_type, now)?;
            lines.push((task_type, due));
        }
        let mut enqueued = Enqueued::default();
        for priority in priorities(turn) {
            for (task_type, due) in &lines {
                if due[usize::from(priority)] && enqueued.count < limit {
                    enqueued.count += self.enqueue_line(task_type, priority, limit - enqueued.count)?;
                }
            }
        }
        if enqueued.count < limit {
            let next = next_to_enqueue(connection, now)?;
            enqueued.next_due = (next != Timestamp::MAX).then(|| next.since(now));
        }
        Ok(enqueued)
    }

    /// Sends due tasks of a type and a priority on their way, up to `limit`. Answers how many.
    fn enqueue_line(&mut self, task_type: &TaskType, priority: u8, limit: usize) -> rusqlite::Result<usize> {
        let now = self.now();
        let found: Vec<(i64, TaskId)> = {
            let mut statement = self.session.connection.prepare_cached(sql::TASK_TO_SEND)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let parameters = (task_type.as_str(), priority, now.as_micros(), limit);
            let found = statement.query_map(parameters, |row| Ok((row.get(0)?, record::task_id(row, 1)?)))?;
            found.collect::<rusqlite::Result<_>>()?
        };
        for (row, id) in &found {
            self.send_on_its_way(*row, *id, task_type, priority)?;
        }
        Ok(found.len())
    }

    fn send_on_its_way(&mut self, row: i64, id: TaskId, task_type: &TaskType, priority: u8) -> rusqlite::Result<()> {
        let now = self.now();
        let statement = self.session.hot.task_enqueue.get(self.session.connection, sql::TASK_ENQUEUE)?;
        statement.execute((row, now.as_micros()))?;
        self.send_task(id, task_type, Priority::new(priority).unwrap_or_default(), now)
    }

    /// Sends tasks of a type again that have been on their way for longer than `grace`, the longest due first.
    pub(super) fn resend(&mut self, task_type: &TaskType, limit: usize, grace: Duration) -> rusqlite::Result<usize> {
        let until = self.now().saturating_sub(grace);
        let mut found = Vec::new();
        for priority in priorities(0) {
            let line = find_stranded(self.session.connection, task_type, priority, until, limit)?;
            found.extend(line.into_iter().map(|task| (task.due, task.row, task.id, priority)));
        }
        found.sort_unstable();
        found.truncate(limit);
        for (_, row, id, priority) in &found {
            self.send_on_its_way(*row, *id, task_type, *priority)?;
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
