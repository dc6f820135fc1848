//! Where a task is claimed.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider_core::task::{ClaimAnswer, ClaimTasks, ClaimedTask, FinishedAndClaimed, TaskId, TaskState, TaskType};
use postrider_core::{Priority, Timestamp};
use rusqlite::{Connection, Row, Rows};

use super::record::{self, Claimable};
use super::step::TaskStep;
use crate::rows;
use crate::sql;

/// Every so many claims the least urgent go first, so that none waits for ever.
const LEAST_URGENT_EVERY: u64 = 16;

/// So many tasks are leased in one claim at most, whatever was asked for: every other process waits for the lock.
const MOST_LEASES: usize = 1000;

/// The states that a task can be claimed in: back from a worker, and new.
const CLAIMABLE: [TaskState; 2] = [TaskState::Enqueued, TaskState::Pending];

/// Who claims, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimer<'a> {
    pub(super) worker: &'a str,
    pub(super) lease: Duration,
}

/// The priorities in the order of this turn: the most urgent first, now and then the least.
pub(super) fn priorities(turn: u64) -> [u8; 10] {
    let mut priorities = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];
    if turn % LEAST_URGENT_EVERY == LEAST_URGENT_EVERY - 1 {
        priorities.reverse();
    }
    priorities
}

/// The types in the order of this turn, so that none is always last.
pub(super) fn rotated<T>(types: &mut [T], turn: u64) {
    if !types.is_empty() {
        types.rotate_left(usize::try_from(turn % types.len() as u64).unwrap_or(0));
    }
}

/// Which priorities of a type have something due in a state.
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
        if let Some(due) = due.get_mut(usize::from(row.get::<_, u8>(0)?)) {
            *due = true;
        }
    }
    Ok(due)
}

/// When the first task of a type becomes due in a state that is not due at `after`.
pub(super) fn next_due(
    connection: &Connection,
    state: TaskState,
    task_type: &TaskType,
    after: Timestamp,
) -> rusqlite::Result<Timestamp> {
    let mut statement = connection.prepare_cached(sql::TASK_NEXT_DUE)?;
    let parameters = (state.as_str(), task_type.as_str(), after.as_micros());
    // A time that is unreadable never comes.
    let next = statement.query_row(parameters, |row| Ok(rows::optional_time(row, 0).unwrap_or_default()))?;
    Ok(next.unwrap_or(Timestamp::MAX))
}

/// When the first task of these types can be claimed that cannot be at `after`.
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
    /// Claims what is due; when there is nothing, says how long that will stay so.
    pub(super) fn claim(
        &mut self,
        claim: &ClaimTasks,
        turn: u64,
        answer: &mut FinishedAndClaimed,
    ) -> rusqlite::Result<()> {
        let most = claim.max.min(MOST_LEASES);
        let now = self.now();
        let connection = self.session.connection;
        // One that is named twice would be claimed twice.
        let mut types: Vec<&TaskType> = claim.types.iter().collect::<BTreeSet<_>>().into_iter().collect();
        rotated(&mut types, turn);
        let mut lines = Vec::with_capacity(types.len());
        for task_type in &types {
            let mut due = [[false; 10]; 2];
            for (due, state) in due.iter_mut().zip(CLAIMABLE) {
                *due = due_priorities(connection, state, task_type, now)?;
            }
            lines.push((*task_type, due));
        }
        let mut found = Vec::new();
        for priority in priorities(turn) {
            for (task_type, [enqueued, pending]) in &lines {
                let is_due = [enqueued[usize::from(priority)], pending[usize::from(priority)]];
                if found.len() < most && is_due != [false, false] {
                    self.find_due(task_type, priority, is_due, most, &mut found)?;
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

    /// Adds the due tasks of a type and a priority, up to `most` in all: the longest due first, in whichever of the two
    /// states they are.
    fn find_due(
        &mut self,
        task_type: &TaskType,
        priority: u8,
        is_due: [bool; 2],
        most: usize,
        found: &mut Vec<Claimable>,
    ) -> rusqlite::Result<()> {
        let now = self.now();
        let connection = self.session.connection;
        let urgency = Priority::new(priority).unwrap_or_default();
        let [enqueued, pending] = &mut self.session.hot.task_due;
        let mut lines = [None, None];
        for ((line, statement), (state, is_due)) in
            lines.iter_mut().zip([enqueued, pending]).zip(CLAIMABLE.into_iter().zip(is_due))
        {
            if is_due {
                let statement = statement.get(connection, sql::TASK_DUE)?;
                let parameters = (state.as_str(), task_type.as_str(), priority, now.as_micros());
                *line = Some(Line { rows: statement.query(parameters)?, head: None });
            }
        }
        while found.len() < most {
            let mut first: Option<&mut Line<'_>> = None;
            for line in lines.iter_mut().flatten() {
                line.fill(task_type, urgency, now)?;
                if line.due() < first.as_ref().map_or(Timestamp::MAX, |first| first.due()) {
                    first = Some(line);
                }
            }
            let Some(next) = first.and_then(|line| line.head.take()) else { break };
            found.push(next);
        }
        Ok(())
    }

    /// Claims a task by its id, by the same rules.
    pub(super) fn claim_task(&mut self, id: TaskId, claimer: Claimer<'_>) -> rusqlite::Result<ClaimAnswer> {
        let now = self.now();
        let connection = self.session.connection;
        let statement = self.session.hot.task_by_id.get(connection, sql::TASK_BY_ID)?;
        let mut found = statement.query([id.as_uuid().as_bytes()])?;
        let Some(row) = found.next()? else { return Ok(ClaimAnswer::NotClaimable) };
        let Some(claimable) = record::readable(Self::may_claim(row, now))? else {
            // Spoiled by somebody else's hand: the others of its batch must not fail with it.
            return Ok(ClaimAnswer::NotClaimable);
        };
        let claimable = match claimable {
            Ok(claimable) => claimable,
            Err(answer) => return Ok(answer),
        };
        drop(found);
        Ok(ClaimAnswer::Claimed(Box::new(self.lease_task(claimable, claimer)?)))
    }

    /// The task of a row, or why it may not be claimed.
    fn may_claim(row: &Row<'_>, now: Timestamp) -> rusqlite::Result<Result<Claimable, ClaimAnswer>> {
        let is_waiting = matches!(record::state(row, 12)?, TaskState::Pending | TaskState::Enqueued);
        let is_blocked: bool = row.get(13)?;
        let is_overdue = rows::optional_time(row, 10)?.is_some_and(|deadline| deadline <= now);
        if !is_waiting || is_blocked || is_overdue {
            return Ok(Err(ClaimAnswer::NotClaimable));
        }
        let due = rows::time(row, 8)?;
        if due > now {
            return Ok(Err(ClaimAnswer::NotDue(due.since(now))));
        }
        Claimable::read(row, &record::task_type(row, 14)?, record::priority(row, 15), now).map(Ok)
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

/// Due tasks of one state, read as far as they are wanted.
struct Line<'s> {
    rows: Rows<'s>,
    head: Option<Claimable>,
}

impl Line<'_> {
    /// Reads the next one, unless it was read already. What nobody can read is passed over.
    fn fill(&mut self, task_type: &TaskType, priority: Priority, now: Timestamp) -> rusqlite::Result<()> {
        while self.head.is_none() {
            let Some(row) = self.rows.next()? else { return Ok(()) };
            self.head = Claimable::read(row, task_type, priority, now).ok();
        }
        Ok(())
    }

    fn due(&self) -> Timestamp {
        self.head.as_ref().map_or(Timestamp::MAX, |head| head.task.scheduled_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sixteenth_turn_is_for_the_least_urgent() {
        let first: Vec<u8> = (0..32).map(|turn| priorities(turn)[0]).collect();
        assert_eq!(first.iter().filter(|priority| **priority == 9).count(), 30);
        assert_eq!((first[15], first[31]), (0, 0));
        assert_eq!(priorities(15), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn every_type_is_first_in_its_turn() {
        let first = |turn| {
            let mut types = ["a", "b", "c"];
            rotated(&mut types, turn);
            types[0]
        };
        assert_eq!([first(0), first(1), first(2), first(3)], ["a", "b", "c", "a"]);
        rotated(&mut Vec::<u8>::new(), 7);
    }
}
