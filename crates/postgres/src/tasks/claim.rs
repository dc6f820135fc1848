//! Claims of tasks.
//!
//! A polling worker claims due tasks, the most urgent first, by one probe a priority, type and state. A worker that
//! received an id from a queue claims that task by the same rules.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use postgres_types::ToSql;
use postrider_core::task::{
    ClaimAnswer, ClaimTasks, ClaimedTask, Finish, FinishedAndClaimed, TaskId, TaskLease, TaskOutcome, TaskStanding,
    TaskType,
};
use postrider_core::{Deadline, Priority};
use postrider_pg::Step;
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;
use uuid::Uuid;

use super::Tasks;
use super::finish::{EndedBy, Finished, Finishing};
use super::rows::{duration, plain, priority, strategy, tags, task_id};
use crate::rows::{body, count, key, micros, optional_time, time};
use crate::sql::Sql;

postrider_pg::columns! {
    /// The columns that a claim returns.
    ClaimColumns {
        id, task_id, task_type, payload, attempt_count, max_attempts, retry_strategy, priority, ordering_key, tags,
        created_at, scheduled_for, first_started_at, started_at, deadline,
    }
}

pub(super) const CLAIM: &str = "claim tasks";

/// Interval, in claims, of the claim that takes the least urgent tasks first. It prevents starvation.
const LEAST_URGENT_EVERY: u64 = 16;

/// Upper bound of one claim statement.
const MAX_LEASES: usize = 1000;

/// Claims in one call while tasks may have become due.
const MAX_ROUNDS: usize = 3;

/// Delay after which tasks that other transactions have locked are claimed again.
const LOCKED_RETRY_DELAY: Duration = Duration::from_millis(10);

/// The probes of a claim, in order: a priority and a type each.
#[derive(Debug)]
pub(super) struct Probes<'c> {
    pub(super) priorities: Vec<i16>,
    pub(super) types: Vec<&'c str>,
}

impl<'c> Probes<'c> {
    /// Returns all types at each priority. The types are rotated each time, so that none is always last.
    pub(super) fn new(types: impl IntoIterator<Item = &'c str>, turn: u64) -> Self {
        let mut types: Vec<&str> = types.into_iter().collect();
        if !types.is_empty() {
            // Below the length.
            let first = (turn % types.len() as u64) as usize;
            types.rotate_left(first);
        }
        let mut priorities: Vec<i16> = (0..Priority::COUNT as i16).rev().collect();
        if turn % LEAST_URGENT_EVERY == LEAST_URGENT_EVERY - 1 {
            priorities.reverse();
        }
        let of_each = |priority: &i16| std::iter::repeat_n(*priority, types.len());
        Self {
            priorities: priorities.iter().flat_map(of_each).collect(),
            types: priorities.iter().flat_map(|_| types.iter().copied()).collect(),
        }
    }
}

/// The parameters of a claim.
#[derive(Debug)]
struct Claim<'c> {
    probes: Probes<'c>,
    limit: i64,
    lease: i64,
    token: i64,
    worker: String,
}

impl<'c> Claim<'c> {
    fn new(tasks: &Tasks, asked: &'c ClaimTasks) -> Self {
        let turn = tasks.turns.fetch_add(1, Ordering::Relaxed);
        // A repeated type would be probed twice.
        let mut seen = HashSet::new();
        let types = asked.types.iter().map(TaskType::as_str).filter(|task_type| seen.insert(*task_type));
        Self {
            probes: Probes::new(types, turn),
            limit: asked.max.min(MAX_LEASES) as i64,
            lease: micros(asked.lease),
            token: rand::random(),
            worker: plain(&asked.worker).into_owned(),
        }
    }

    fn step<'p>(&'p self, sql: &'p Sql) -> Step<'p> {
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&self.probes.priorities, &self.probes.types, &self.limit, &self.lease, &self.token, &self.worker];
        Step::new(&sql.task_claim, parameters)
    }
}

/// The rows of a claim.
#[derive(Debug, Default)]
struct ClaimResult {
    claimed: Vec<ClaimedTask>,
    /// Whether keys wait to be promoted.
    has_unplaced: bool,
}

impl ClaimResult {
    fn read(claim: &Claim<'_>, rows: &[Row]) -> Self {
        let columns = ClaimColumns::of(rows);
        // `returning` guarantees no order.
        let mut ordered: Vec<&Row> = rows.iter().collect();
        let is_reversed = claim.probes.priorities.first() == Some(&0);
        ordered.sort_by_key(|row| {
            let (priority, due): (i16, _) = (row.get(columns.priority), time(row, columns.scheduled_for));
            (if is_reversed { priority } else { -priority }, due, row.get::<_, i64>(columns.id))
        });
        Self {
            claimed: ordered.iter().filter_map(|row| claimed(row, columns, claim.token)).collect(),
            has_unplaced: rows.first().is_some_and(|row| row.get("has_unplaced")),
        }
    }
}

/// Reads a claimed task; `None` if its type is invalid, which no caller can have claimed.
fn claimed(row: &Row, columns: ClaimColumns, token: i64) -> Option<ClaimedTask> {
    let (first_started_at, started_at) = (time(row, columns.first_started_at), time(row, columns.started_at));
    Some(ClaimedTask {
        lease: TaskLease { id: task_id(row, columns.task_id), token },
        task_type: TaskType::new(row.get::<_, &str>(columns.task_type)).ok()?,
        payload: body(row, columns.payload),
        attempt_count: count(row, columns.attempt_count),
        max_attempts: count(row, columns.max_attempts),
        retry_strategy: strategy(row, columns.retry_strategy),
        priority: priority(row, columns.priority),
        ordering_key: key(row, columns.ordering_key, "ordering key"),
        tags: tags(row, columns.tags),
        created_at: time(row, columns.created_at),
        scheduled_for: time(row, columns.scheduled_for),
        since_first_attempt: started_at.since(first_started_at),
        time_left: optional_time(row, columns.deadline).map(|deadline| deadline.since(started_at)),
    })
}

impl Tasks {
    /// Ends attempts and claims due tasks, in one transaction.
    pub(super) async fn finish_and_claim(
        self: Arc<Self>,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<PendingAnswer<FinishedAndClaimed>, Undone> {
        let began = Instant::now();
        let finishing = Finishing::new(&self, &finished, EndedBy::Holder);
        let asked = claim.as_ref().filter(|claim| claim.max > 0 && !claim.types.is_empty());
        let claim = asked.map(|asked| Claim::new(&self, asked));
        let (finished, result) = persist(|| self.try_finish_and_claim(&finishing, claim.as_ref(), deadline)).await?;
        self.notify(&finished.notices, began);
        // From here on, claimed tasks must reach the caller or be given back.
        let mut both =
            PendingAnswer::new(self.clone(), FinishedAndClaimed { claimed: result.claimed, ..Default::default() });
        let mut has_promoted = self.promote_own(&finished.keys).await;
        if result.has_unplaced && finished.keys.is_empty() {
            // Busy workers must not leave it to each other.
            has_promoted = self.promote_left().await.unwrap_or(false);
        }
        both.answer.finished = self.standings_after(&finishing, &finished).await?;
        let Some(asked) = asked else { return Ok(both) };
        // An error below must not hide what was ended or claimed.
        let claimed = both.answer.claimed.len();
        if has_promoted && claimed < asked.max.min(MAX_LEASES) {
            let more = ClaimTasks { max: asked.max - claimed, ..asked.clone() };
            both.answer.claimed.extend(self.claim_once(&more, deadline).await.unwrap_or_default().claimed);
        }
        if both.answer.claimed.is_empty() {
            match self.claim_again(asked, deadline).await {
                Ok((claimed, next_due)) => (both.answer.claimed, both.answer.next_due) = (claimed, next_due),
                Err(error) if both.answer.finished.is_empty() => return Err(error),
                Err(error) => tracing::debug!(?error, "nothing was claimed"),
            }
        }
        Ok(both)
    }

    async fn try_finish_and_claim(
        &self,
        finishing: &Finishing<'_>,
        claim: Option<&Claim<'_>>,
        deadline: Deadline,
    ) -> Result<(Finished, ClaimResult), Undone> {
        if finishing.is_empty() && claim.is_none() {
            return Ok(Default::default());
        }
        let operation = if finishing.is_empty() { CLAIM } else { "finish tasks" };
        let mut session = self.shared.database.session(operation, deadline).await?;
        let mut steps = finishing.steps(session.sql());
        steps.extend(claim.map(|claim| claim.step(session.sql())));
        let mut answers = session.run(&steps).await?;
        drop((steps, session));
        let result = match claim {
            Some(claim) => ClaimResult::read(claim, &answers.pop().unwrap_or_default()),
            None => ClaimResult::default(),
        };
        Ok((finishing.read(self, answers.iter().skip(finishing.locks())), result))
    }

    /// After an empty claim: finds out when the next task is due, and claims again if that is now.
    async fn claim_again(
        &self,
        asked: &ClaimTasks,
        deadline: Deadline,
    ) -> Result<(Vec<ClaimedTask>, Option<Duration>), Undone> {
        for _ in 0..MAX_ROUNDS {
            let probes = Probes::new(asked.types.iter().map(TaskType::as_str), 0);
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&probes.priorities, &probes.types];
            let found = self.ask(CLAIM, deadline, &self.sql().task_next_due, parameters).await?;
            let Some(row) = found.first() else { return Ok((Vec::new(), None)) };
            let has_promoted = row.get::<_, bool>("has_unplaced") && self.promote_left().await?;
            match row.get::<_, Option<i64>>("due_in") {
                // It became due between the claim and this statement.
                Some(wait) if wait <= 0 => {}
                wait if !has_promoted => return Ok((Vec::new(), wait.map(duration))),
                _ => {}
            }
            let result = self.claim_once(asked, deadline).await?;
            if !result.claimed.is_empty() {
                return Ok((result.claimed, None));
            }
        }
        Ok((Vec::new(), Some(LOCKED_RETRY_DELAY)))
    }

    async fn claim_once(&self, asked: &ClaimTasks, deadline: Deadline) -> Result<ClaimResult, Undone> {
        let (none, claim) = (Finishing::new(self, &[], EndedBy::Holder), Claim::new(self, asked));
        Ok(persist(|| self.try_finish_and_claim(&none, Some(&claim), deadline)).await?.1)
    }

    /// Claims the tasks of these ids, each by the rules of every claim.
    pub(super) async fn claim_by_id(
        self: Arc<Self>,
        ids: Vec<TaskId>,
        lease: Duration,
        worker: String,
        deadline: Deadline,
    ) -> Result<PendingAnswer<Vec<ClaimAnswer>>, Undone> {
        let (lease, worker) = (micros(lease), plain(&worker).into_owned());
        let mut left: Vec<Uuid> = ids.iter().map(|id| *id.as_uuid()).collect();
        left.sort_unstable();
        left.dedup();
        let mut answers: HashMap<TaskId, ClaimAnswer> = HashMap::with_capacity(left.len());
        // Claimed tasks must reach the caller or be given back.
        let mut taken = PendingAnswer::new(self.clone(), Vec::with_capacity(ids.len()));
        for _ in 0..MAX_ROUNDS {
            if left.is_empty() {
                break;
            }
            let token: i64 = rand::random();
            let rows = persist(|| {
                let parameters: Vec<&(dyn ToSql + Sync)> = vec![&left, &lease, &token, &worker];
                self.ask(CLAIM, deadline, &self.sql().task_claim_by_id, parameters)
            });
            let rows = rows.await?;
            let columns = ClaimColumns::of(&rows);
            for task in rows.iter().filter_map(|row| claimed(row, columns, token)) {
                answers.insert(task.lease.id, ClaimAnswer::NotClaimable);
                taken.answer.push(ClaimAnswer::Claimed(Box::new(task)));
            }
            left.retain(|id| !answers.contains_key(&TaskId::from_uuid(*id)));
            if left.is_empty() {
                break;
            }
            let seen = persist(|| self.states(&left)).await?;
            left.retain(|id| {
                let id = TaskId::from_uuid(*id);
                let wait = seen.get(&id).and_then(|seen| seen.wait);
                let answer = wait.map_or(ClaimAnswer::NotClaimable, |wait| ClaimAnswer::NotDue(duration(wait)));
                answers.insert(id, answer);
                // It became due between the two statements.
                wait.is_some_and(|wait| wait <= 0)
            });
        }
        let claimed = std::mem::take(&mut taken.answer).into_iter();
        let mut claimed: HashMap<TaskId, ClaimAnswer> =
            claimed.filter_map(|answer| Some((answer.lease()?.id, answer))).collect();
        taken.answer = ids
            .iter()
            .map(|id| {
                // A repeated id is claimed once.
                let known = || answers.get(id).cloned().unwrap_or(ClaimAnswer::NotClaimable);
                claimed.remove(id).unwrap_or_else(known)
            })
            .collect();
        Ok(taken)
    }

    /// Releases claimed tasks whose caller is gone. The attempts are not counted.
    async fn release_claimed(&self, leases: Vec<TaskLease>) -> Result<Vec<TaskStanding>, Undone> {
        let began = Instant::now();
        let released: Vec<Finish> =
            leases.into_iter().map(|lease| Finish { lease, outcome: TaskOutcome::Released }).collect();
        let finishing = Finishing::new(self, &released, EndedBy::Holder);
        let (finished, _) = persist(|| self.try_finish_and_claim(&finishing, None, Deadline::default())).await?;
        self.notify(&finished.notices, began);
        self.standings_after(&finishing, &finished).await
    }
}

/// An answer that holds leases on tasks.
pub(super) trait Leases: Default + Send + 'static {
    fn leases(&self) -> Vec<TaskLease>;
}

impl Leases for FinishedAndClaimed {
    fn leases(&self) -> Vec<TaskLease> {
        self.claimed.iter().map(|task| task.lease).collect()
    }
}

impl Leases for Vec<ClaimAnswer> {
    fn leases(&self) -> Vec<TaskLease> {
        self.iter().filter_map(AnswerLease::lease).collect()
    }
}

trait AnswerLease {
    fn lease(&self) -> Option<TaskLease>;
}

impl AnswerLease for ClaimAnswer {
    fn lease(&self) -> Option<TaskLease> {
        match self {
            Self::Claimed(task) => Some(task.lease),
            Self::NotDue(_) | Self::NotClaimable => None,
        }
    }
}

/// An answer that has not reached its caller. If it is dropped before, because the caller is gone, its tasks are
/// released.
#[derive(Debug)]
pub(super) struct PendingAnswer<T: Leases> {
    tasks: Arc<Tasks>,
    answer: T,
}

impl<T: Leases> PendingAnswer<T> {
    fn new(tasks: Arc<Tasks>, answer: T) -> Self {
        Self { tasks, answer }
    }

    /// Hands the answer to the caller.
    pub(super) fn into_answer(mut self) -> T {
        std::mem::take(&mut self.answer)
    }
}

impl<T: Leases> Drop for PendingAnswer<T> {
    fn drop(&mut self) {
        let leases = self.answer.leases();
        // Without a runtime the leases expire.
        if let (false, Ok(runtime)) = (leases.is_empty(), tokio::runtime::Handle::try_current()) {
            let tasks = self.tasks.clone();
            runtime.spawn(async move {
                if let Err(error) = tasks.release_claimed(leases).await {
                    tracing::debug!(?error, "cannot release tasks whose caller is gone");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_looked_at_before_the_next_priority_and_none_is_always_last() {
        let first = Probes::new(["a", "b"], 0);
        assert_eq!(&first.priorities[..4], [9, 9, 8, 8]);
        assert_eq!(&first.types[..4], ["a", "b", "a", "b"]);
        assert_eq!((first.types.len(), first.priorities.len()), (20, 20));
        assert_eq!(&Probes::new(["a", "b"], 1).types[..2], ["b", "a"]);
        let patient = Probes::new(["a", "b"], 15);
        assert_eq!(&patient.priorities[..4], [0, 0, 1, 1]);
        assert!(Probes::new([], 3).types.is_empty());
    }
}
