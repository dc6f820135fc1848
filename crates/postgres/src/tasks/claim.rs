//! Where tasks are claimed.
//!
//! A worker that polls asks for what is due: the most urgent first, by a probe for each priority, type and state. One
//! that was delivered an id asks for that task alone, by the same rules.

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
use super::finish::{Ender, Finished, Finishing};
use super::rows::{duration, plain, priority, strategy, tags, task_id};
use crate::rows::{body, count, key, micros, optional_time, time};
use crate::sql::Sql;

pub(super) const CLAIM: &str = "claim tasks";

/// Every so many claims the least urgent go first, so that none waits for ever.
const LEAST_URGENT_EVERY: u64 = 16;

/// So many tasks are claimed by one statement at most, whatever was asked for.
const MOST_LEASES: usize = 1000;

/// So often a claim that brought nothing is made again because something may be there.
const MOST_ROUNDS: usize = 3;

/// What is due and could not be had is in somebody's hands for a moment.
const HELD_BY_OTHERS: Duration = Duration::from_millis(10);

/// Where to look, and in which order: a priority and a type each.
#[derive(Debug)]
pub(super) struct Probes<'c> {
    pub(super) priorities: Vec<i16>,
    pub(super) types: Vec<&'c str>,
}

impl<'c> Probes<'c> {
    /// All types at each priority, in turn. The types begin with another one each time, so that none is always last.
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

/// A claim, before it is sent.
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
        // The same type twice would be looked at twice.
        let mut seen = HashSet::new();
        let types = asked.types.iter().map(TaskType::as_str).filter(|task_type| seen.insert(*task_type));
        Self {
            probes: Probes::new(types, turn),
            limit: asked.max.min(MOST_LEASES) as i64,
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

/// What a claim brought.
#[derive(Debug, Default)]
struct Brought {
    claimed: Vec<ClaimedTask>,
    /// Whether keys wait to be put in order.
    has_unplaced: bool,
}

impl Brought {
    fn read(claim: &Claim<'_>, rows: &[Row]) -> Self {
        // The server answers in whatever order it likes.
        let mut ordered: Vec<&Row> = rows.iter().collect();
        let is_reversed = claim.probes.priorities.first() == Some(&0);
        ordered.sort_by_key(|row| {
            let priority: i16 = row.get(7);
            (if is_reversed { priority } else { -priority }, time(row, 11), row.get::<_, i64>(0))
        });
        Self {
            claimed: ordered.iter().filter_map(|row| claimed(row, claim.token)).collect(),
            has_unplaced: rows.first().is_some_and(|row| row.get(15)),
        }
    }
}

/// A task that was claimed; `None` when its type is none, and nobody can have asked for it.
fn claimed(row: &Row, token: i64) -> Option<ClaimedTask> {
    let (first_started_at, started_at) = (time(row, 12), time(row, 13));
    Some(ClaimedTask {
        lease: TaskLease { id: task_id(row, 1), token },
        task_type: TaskType::new(row.get::<_, &str>(2)).ok()?,
        payload: body(row, 3),
        attempt_count: count(row, 4),
        max_attempts: count(row, 5),
        retry_strategy: strategy(row, 6),
        priority: priority(row, 7),
        ordering_key: key(row, 8, "ordering key"),
        tags: tags(row, 9),
        created_at: time(row, 10),
        scheduled_for: time(row, 11),
        since_first_attempt: started_at.since(first_started_at),
        time_left: optional_time(row, 14).map(|deadline| deadline.since(started_at)),
    })
}

impl Tasks {
    /// Ends attempts and claims what is due, in one transaction.
    pub(super) async fn finish_and_claim(
        self: Arc<Self>,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<Unclaimed<FinishedAndClaimed>, Undone> {
        let began = Instant::now();
        let finishing = Finishing::new(&self, &finished, Ender::Holder);
        let asked = claim.as_ref().filter(|claim| claim.max > 0 && !claim.types.is_empty());
        let claim = asked.map(|asked| Claim::new(&self, asked));
        let (finished, brought) = persist(|| self.try_finish_and_claim(&finishing, claim.as_ref(), deadline)).await?;
        self.tell(&finished.news, began);
        // From here on what was claimed must reach somebody, or go back.
        let mut both =
            Unclaimed::new(self.clone(), FinishedAndClaimed { claimed: brought.claimed, ..Default::default() });
        let mut is_placed = self.place_own(&finished.keys).await;
        if brought.has_unplaced && finished.keys.is_empty() {
            // Those who come all the time must not leave it to each other.
            is_placed = self.place_left().await.unwrap_or(false);
        }
        both.answer.finished = self.told(&finishing, &finished).await?;
        let Some(asked) = asked else { return Ok(both) };
        // What was ended or claimed must be told, whatever comes of this.
        let claimed = both.answer.claimed.len();
        if is_placed && claimed < asked.max.min(MOST_LEASES) {
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
    ) -> Result<(Finished, Brought), Undone> {
        if finishing.is_empty() && claim.is_none() {
            return Ok(Default::default());
        }
        let operation = if finishing.is_empty() { CLAIM } else { "finish tasks" };
        let mut session = self.shared.database.session(operation, deadline).await?;
        let mut steps = finishing.steps(session.sql());
        steps.extend(claim.map(|claim| claim.step(session.sql())));
        let mut answers = session.run(&steps).await?;
        drop((steps, session));
        let brought = match claim {
            Some(claim) => Brought::read(claim, &answers.pop().unwrap_or_default()),
            None => Brought::default(),
        };
        Ok((finishing.read(self, answers.iter().skip(finishing.locks())), brought))
    }

    /// A claim brought nothing: finds out when one may bring something, and makes it again if that is now.
    async fn claim_again(
        &self,
        asked: &ClaimTasks,
        deadline: Deadline,
    ) -> Result<(Vec<ClaimedTask>, Option<Duration>), Undone> {
        for _ in 0..MOST_ROUNDS {
            let probes = Probes::new(asked.types.iter().map(TaskType::as_str), 0);
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&probes.priorities, &probes.types];
            let found = self.ask(CLAIM, deadline, &self.sql().task_next_due, parameters).await?;
            let Some(row) = found.first() else { return Ok((Vec::new(), None)) };
            let is_placed = row.get::<_, bool>(1) && self.place_left().await?;
            match row.get::<_, Option<i64>>(0) {
                // Came between the claim and the look.
                Some(wait) if wait <= 0 => {}
                wait if !is_placed => return Ok((Vec::new(), wait.map(duration))),
                _ => {}
            }
            let brought = self.claim_once(asked, deadline).await?;
            if !brought.claimed.is_empty() {
                return Ok((brought.claimed, None));
            }
        }
        Ok((Vec::new(), Some(HELD_BY_OTHERS)))
    }

    async fn claim_once(&self, asked: &ClaimTasks, deadline: Deadline) -> Result<Brought, Undone> {
        let (none, claim) = (Finishing::new(self, &[], Ender::Holder), Claim::new(self, asked));
        Ok(persist(|| self.try_finish_and_claim(&none, Some(&claim), deadline)).await?.1)
    }

    /// Claims these tasks, each by the same rules.
    pub(super) async fn claim_by_id(
        self: Arc<Self>,
        ids: Vec<TaskId>,
        lease: Duration,
        worker: String,
        deadline: Deadline,
    ) -> Result<Unclaimed<Vec<ClaimAnswer>>, Undone> {
        let (lease, worker) = (micros(lease), plain(&worker).into_owned());
        let mut left: Vec<Uuid> = ids.iter().map(|id| *id.as_uuid()).collect();
        left.sort_unstable();
        left.dedup();
        let mut answers: HashMap<TaskId, ClaimAnswer> = HashMap::with_capacity(left.len());
        // What was claimed must reach somebody, or go back.
        let mut taken = Unclaimed::new(self.clone(), Vec::with_capacity(ids.len()));
        for _ in 0..MOST_ROUNDS {
            if left.is_empty() {
                break;
            }
            let token: i64 = rand::random();
            let rows = persist(|| {
                let parameters: Vec<&(dyn ToSql + Sync)> = vec![&left, &lease, &token, &worker];
                self.ask(CLAIM, deadline, &self.sql().task_claim_by_id, parameters)
            });
            let rows = rows.await?;
            for task in rows.iter().filter_map(|row| claimed(row, token)) {
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
                // Its time came between the two looks.
                wait.is_some_and(|wait| wait <= 0)
            });
        }
        let claimed = std::mem::take(&mut taken.answer).into_iter();
        let mut claimed: HashMap<TaskId, ClaimAnswer> =
            claimed.filter_map(|answer| Some((answer.lease()?.id, answer))).collect();
        taken.answer = ids
            .iter()
            .map(|id| {
                // The same id twice is claimed once.
                let known = || answers.get(id).cloned().unwrap_or(ClaimAnswer::NotClaimable);
                claimed.remove(id).unwrap_or_else(known)
            })
            .collect();
        Ok(taken)
    }

    /// Gives tasks back that nobody was there to take: they were never seen, so the attempts are not counted.
    async fn give_back(&self, leases: Vec<TaskLease>) -> Result<Vec<TaskStanding>, Undone> {
        let began = Instant::now();
        let released: Vec<Finish> =
            leases.into_iter().map(|lease| Finish { lease, outcome: TaskOutcome::Released }).collect();
        let finishing = Finishing::new(self, &released, Ender::Holder);
        let (finished, _) = persist(|| self.try_finish_and_claim(&finishing, None, Deadline::default())).await?;
        self.tell(&finished.news, began);
        self.told(&finishing, &finished).await
    }
}

/// What holds leases on tasks.
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

/// An answer that has not reached its caller. Dropped before it does, because the caller has left, what was claimed goes
/// back.
#[derive(Debug)]
pub(super) struct Unclaimed<T: Leases> {
    tasks: Arc<Tasks>,
    answer: T,
}

impl<T: Leases> Unclaimed<T> {
    fn new(tasks: Arc<Tasks>, answer: T) -> Self {
        Self { tasks, answer }
    }

    /// The caller has it.
    pub(super) fn taken(mut self) -> T {
        std::mem::take(&mut self.answer)
    }
}

impl<T: Leases> Drop for Unclaimed<T> {
    fn drop(&mut self) {
        let leases = self.answer.leases();
        // Where nothing runs any more, the leases run out.
        if let (false, Ok(runtime)) = (leases.is_empty(), tokio::runtime::Handle::try_current()) {
            let tasks = self.tasks.clone();
            runtime.spawn(async move {
                if let Err(error) = tasks.give_back(leases).await {
                    tracing::debug!(?error, "tasks were claimed for nobody and not given back");
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
