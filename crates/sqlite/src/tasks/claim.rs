//! Claims tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider_core::task::{ClaimAnswer, ClaimTasks, ClaimedTask, FinishedAndClaimed, TaskId, TaskState, TaskType};
use postrider_core::{Priority, Timestamp};
use rusqlite::{Connection, Row, Rows};

use super::record::{self, Claimable, ClaimableColumns, TaskByIdColumns};
use super::step::TaskStep;
use crate::rows;
use crate::sql;

/// Interval, in claims, at which the least urgent tasks go first, so that none starves.
const LEAST_URGENT_EVERY: u64 = 16;

/// Upper bound of leases in one claim, whatever the caller requests: other processes wait for the write lock.
const MAX_LEASES: usize = 1000;

/// The states in which a task can be claimed.
const CLAIMABLE: [TaskState; 2] = [TaskState::Enqueued, TaskState::Pending];

/// The worker that claims, and the length of its leases.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimer<'a> {
    pub(super) worker: &'a str,
    pub(super) lease: Duration,
}

/// The priorities in the order of this round: the most urgent first, from time to time the least urgent.
pub(super) fn priorities(round: u64) -> [u8; 10] {
    let mut priorities = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];
    if round % LEAST_URGENT_EVERY == LEAST_URGENT_EVERY - 1 {
        priorities.reverse();
    }
    priorities
}

/// Rotates the types by the number of the round, so that none is always last.
pub(super) fn rotate<T>(types: &mut [T], round: u64) {
    if !types.is_empty() {
        types.rotate_left(usize::try_from(round % types.len() as u64).unwrap_or(0));
    }
}

/// The priorities of a type that have due tasks in a state.
pub(super) fn due_priorities(
    connection: &Connection,
    state: TaskState,
    task_type: &TaskType,
    now: Timestamp,
) -> rusqlite::Result<[bool; 10]> {
    let mut due = [false; 10];
    let mut statement = connection.prepare_cached(sql::TASK_DUE_PRIORITIES)?;
    let mut found = statement.query((state.as_str(), task_type.as_str(), now.as_micros()))?;
    while let Some(row) = found.next()? {
        if let Some(due) = due.get_mut(usize::from(row.get::<_, u8>("priority")?)) {
            *due = true;
        }
    }
    Ok(due)
}

/// When the next task of a type in a state becomes due after `after`.
pub(super) fn next_due(
    connection: &Connection,
    state: TaskState,
    task_type: &TaskType,
    after: Timestamp,
) -> rusqlite::Result<Timestamp> {
    let mut statement = connection.prepare_cached(sql::TASK_NEXT_DUE)?;
    let parameters = (state.as_str(), task_type.as_str(), after.as_micros());
    // A task with an unreadable time never becomes due.
    let next = statement.query_row(parameters, |row| Ok(rows::optional_time(row, 0).unwrap_or_default()))?;
    Ok(next.unwrap_or(Timestamp::MAX))
}

/// When the next task of these types can be claimed after `after`.
pub(super) fn next_claimable<'t>(
    connection: &Connection,
    types: impl IntoIterator<Item = &'t TaskType>,
    after: Timestamp,
) -> rusqlite::Result<Timestamp> {
    let mut next = Timestamp::MAX;
    for task_type in types {
        for state in CLAIMABLE {
            next = next.min(next_due(connection, state, task_type, after)?);
        }
    }
    Ok(next)
}

impl TaskStep<'_, '_> {
    /// Claims due tasks; when there are none, sets when the next one becomes due.
    pub(super) fn claim(
        &mut self,
        claim: &ClaimTasks,
        round: u64,
        answer: &mut FinishedAndClaimed,
    ) -> rusqlite::Result<()> {
        let max = claim.max.min(MAX_LEASES);
        let now = self.now();
        let connection = self.session.connection;
        // A type that is named twice would be claimed twice.
        let mut types: Vec<&TaskType> = claim.types.iter().collect::<BTreeSet<_>>().into_iter().collect();
        rotate(&mut types, round);
        let mut due_by_type = Vec::with_capacity(types.len());
        for task_type in &types {
            let mut due = [[false; 10]; 2];
            for (due, state) in due.iter_mut().zip(CLAIMABLE) {
                *due = due_priorities(connection, state, task_type, now)?;
            }
            due_by_type.push((*task_type, due));
        }
        let mut found = Vec::new();
        for priority in priorities(round) {
            for (task_type, [enqueued, pending]) in &due_by_type {
                let is_due = [enqueued[usize::from(priority)], pending[usize::from(priority)]];
                if found.len() < max && is_due != [false, false] {
                    self.find_due(task_type, priority, is_due, max, &mut found)?;
                }
            }
        }
        let claimer = Claimer { worker: &claim.worker, lease: claim.lease };
        answer.claimed.reserve(found.len());
        for claimable in found {
            answer.claimed.push(self.lease_task(claimable, claimer)?);
        }
        if answer.claimed.is_empty() {
            let next = next_claimable(connection, types, now)?;
            answer.next_due = (next != Timestamp::MAX).then(|| next.since(now));
        }
        Ok(())
    }

    /// Adds the due tasks of a type and a priority until `found` has `max`: the longest due first, in either state.
    fn find_due(
        &mut self,
        task_type: &TaskType,
        priority: u8,
        is_due: [bool; 2],
        max: usize,
        found: &mut Vec<Claimable>,
    ) -> rusqlite::Result<()> {
        let now = self.now();
        let connection = self.session.connection;
        let urgency = Priority::new(priority).unwrap_or_default();
        let [enqueued, pending] = &mut self.session.hot.task_due;
        let mut cursors = [None, None];
        for ((cursor, statement), (state, is_due)) in
            cursors.iter_mut().zip([enqueued, pending]).zip(CLAIMABLE.into_iter().zip(is_due))
        {
            if is_due {
                let (statement, columns) = statement.with_columns(connection, sql::TASK_DUE)?;
                let parameters = (state.as_str(), task_type.as_str(), priority, now.as_micros());
                *cursor = Some(DueCursor { rows: statement.query(parameters)?, columns, next: None });
            }
        }
        while found.len() < max {
            let mut first: Option<&mut DueCursor<'_>> = None;
            for cursor in cursors.iter_mut().flatten() {
                cursor.fill(task_type, urgency, now)?;
                if cursor.due() < first.as_ref().map_or(Timestamp::MAX, |first| first.due()) {
                    first = Some(cursor);
                }
            }
            let Some(next) = first.and_then(|cursor| cursor.next.take()) else { break };
            found.push(next);
        }
        Ok(())
    }

    /// Claims a task by its id, by the same rules.
    pub(super) fn claim_task(&mut self, id: TaskId, claimer: Claimer<'_>) -> rusqlite::Result<ClaimAnswer> {
        let now = self.now();
        let connection = self.session.connection;
        let (statement, columns) = self.session.hot.task_by_id.with_columns(connection, sql::TASK_BY_ID)?;
        let mut found = statement.query([id.as_uuid().as_bytes()])?;
        let Some(row) = found.next()? else { return Ok(ClaimAnswer::NotClaimable) };
        let Some(claimable) = record::readable(Self::may_claim(row, columns, now))? else {
            // Another program has damaged the row; the rest of the batch must not fail with it.
            return Ok(ClaimAnswer::NotClaimable);
        };
        let claimable = match claimable {
            Ok(claimable) => claimable,
            Err(answer) => return Ok(answer),
        };
        drop(found);
        Ok(ClaimAnswer::Claimed(Box::new(self.lease_task(claimable, claimer)?)))
    }

    /// The task of a row, or why it cannot be claimed.
    fn may_claim(
        row: &Row<'_>,
        columns: TaskByIdColumns,
        now: Timestamp,
    ) -> rusqlite::Result<Result<Claimable, ClaimAnswer>> {
        let claimable = columns.claimable;
        let is_waiting = matches!(record::state(row, columns.state)?, TaskState::Pending | TaskState::Enqueued);
        let is_blocked: bool = row.get(columns.blocked)?;
        let is_overdue = rows::optional_time(row, claimable.deadline)?.is_some_and(|deadline| deadline <= now);
        if !is_waiting || is_blocked || is_overdue {
            return Ok(Err(ClaimAnswer::NotClaimable));
        }
        let due = rows::time(row, claimable.scheduled_for)?;
        if due > now {
            return Ok(Err(ClaimAnswer::NotDue(due.since(now))));
        }
        let (task_type, priority) =
            (record::task_type(row, columns.task_type)?, record::priority(row, columns.priority));
        Claimable::read(row, claimable, &task_type, priority, now).map(Ok)
    }

    fn lease_task(&mut self, claimable: Claimable, claimer: Claimer<'_>) -> rusqlite::Result<ClaimedTask> {
        let Claimable { row, mut task } = claimable;
        task.lease.token = rand::random();
        let now = self.now();
        let until = now.saturating_add(claimer.lease).as_micros();
        let statement = self.session.hot.task_claim.get(self.session.connection, sql::TASK_CLAIM)?;
        statement.execute((row, task.lease.token, until, claimer.worker, now.as_micros()))?;
        Ok(task)
    }
}

/// A cursor over the due tasks of one state.
struct DueCursor<'s> {
    rows: Rows<'s>,
    columns: ClaimableColumns,
    next: Option<Claimable>,
}

impl DueCursor<'_> {
    /// Reads the next task, unless it was read already. Unreadable rows are skipped.
    fn fill(&mut self, task_type: &TaskType, priority: Priority, now: Timestamp) -> rusqlite::Result<()> {
        while self.next.is_none() {
            let Some(row) = self.rows.next()? else { return Ok(()) };
            self.next = Claimable::read(row, self.columns, task_type, priority, now).ok();
        }
        Ok(())
    }

    fn due(&self) -> Timestamp {
        self.next.as_ref().map_or(Timestamp::MAX, |next| next.task.scheduled_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sixteenth_round_starts_with_the_least_urgent() {
        let first: Vec<u8> = (0..32).map(|round| priorities(round)[0]).collect();
        assert_eq!(first.iter().filter(|priority| **priority == 9).count(), 30);
        assert_eq!((first[15], first[31]), (0, 0));
        assert_eq!(priorities(15), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn every_type_is_first_in_some_round() {
        let first = |round| {
            let mut types = ["a", "b", "c"];
            rotate(&mut types, round);
            types[0]
        };
        assert_eq!([first(0), first(1), first(2), first(3)], ["a", "b", "c", "a"]);
        rotate(&mut Vec::<u8>::new(), 7);
    }
}
