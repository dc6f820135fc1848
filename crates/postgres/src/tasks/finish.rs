//! Ends of attempts, and heartbeats. A statement changes nothing without the token of the claim.
//!
//! An expired lease counts as held until it is reaped: the work is done, and refusing its end would only repeat it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use postgres_types::ToSql;
use postrider_core::task::{
    AttemptOutcome, DeadReason, Finish, Heartbeat, TaskId, TaskLease, TaskMode, TaskOutcome, TaskStanding, TaskState,
};
use postrider_core::{Deadline, MessagingError};
use postrider_pg::Step;
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;
use uuid::Uuid;

use super::Tasks;
use super::hints::Notices;
use super::keys::Keys;
use super::rows::{delay_column, kept, state, task_id};
use super::send::{Posting, message_ids};
use crate::rows::{micros, positions};
use crate::sql::Sql;

/// The caller that ends an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// The worker of the attempt.
    Holder,
    /// The reaper, which found that its lease has expired.
    Reaper,
}

/// The statement that ends an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Succeed,
    Retry,
    /// A retry of a task without attempts left.
    Spend,
    Die,
    Release,
}

const KINDS: [Kind; 5] = [Kind::Succeed, Kind::Retry, Kind::Spend, Kind::Die, Kind::Release];

/// The rows of one statement: one array a column, in the order of the ids.
#[derive(Debug, Default)]
struct Group<'f> {
    indexes: Vec<usize>,
    ids: Vec<Uuid>,
    tokens: Vec<i64>,
    results: Vec<Option<&'f [u8]>>,
    delays: Vec<i64>,
    reasons: Vec<&'static str>,
    errors: Vec<Cow<'f, str>>,
    message_ids: Vec<Uuid>,
}

/// A batch of ends, grouped by statement.
#[derive(Debug)]
pub(super) struct Finishing<'f> {
    leases: Vec<TaskLease>,
    groups: Vec<(Kind, Group<'f>)>,
    /// The ids and tokens of all ended tasks, if several statements end them.
    locked: Option<(Vec<Uuid>, Vec<i64>)>,
    is_reaped: bool,
    outcome: &'static str,
    posting: Posting,
}

impl<'f> Finishing<'f> {
    pub(super) fn new(tasks: &Tasks, finished: &'f [Finish], ended_by: EndedBy) -> Self {
        let posting = Posting::of(tasks);
        let mut chosen: Vec<(usize, &'f Finish)> = Vec::with_capacity(finished.len());
        let mut seen = HashSet::with_capacity(finished.len());
        // The first end ends the lease, or finds it ended; the second has none either way.
        chosen.extend(finished.iter().enumerate().filter(|(_, finish)| seen.insert(finish.lease)));
        chosen.sort_by_key(|(_, finish)| finish.lease.id);
        let mut groups: Vec<(Kind, Group<'f>)> = KINDS.iter().map(|kind| (*kind, Group::default())).collect();
        let spent = match ended_by {
            EndedBy::Holder => DeadReason::MaxAttempts,
            EndedBy::Reaper => DeadReason::LeaseLost,
        };
        for (index, finish) in &chosen {
            let (kinds, result, delay, reason, error): (&[Kind], _, _, _, _) = match &finish.outcome {
                TaskOutcome::Succeeded { result } => (&[Kind::Succeed], result.as_deref(), 0, "", Cow::Borrowed("")),
                // The store counts attempts: one of the two statements finds the task.
                TaskOutcome::Retry { after, error } => {
                    (&[Kind::Retry, Kind::Spend], None, delay_column(*after), spent.as_str(), kept(error))
                }
                TaskOutcome::Dead { reason, error } => (&[Kind::Die], None, 0, reason.as_str(), kept(error)),
                TaskOutcome::Released => (&[Kind::Release], None, 0, "", Cow::Borrowed("")),
            };
            for (_, group) in groups.iter_mut().filter(|(kind, _)| kinds.contains(kind)) {
                group.indexes.push(*index);
                group.ids.push(*finish.lease.id.as_uuid());
                group.tokens.push(finish.lease.token);
                group.results.push(result);
                group.delays.push(delay);
                group.reasons.push(reason);
                group.errors.push(error.clone());
            }
        }
        groups.retain(|(_, group)| !group.indexes.is_empty());
        for (kind, group) in &mut groups {
            let has_message = match kind {
                Kind::Succeed => false,
                Kind::Retry | Kind::Release => posting.is_sent,
                Kind::Spend | Kind::Die => posting.events.is_some(),
            };
            group.message_ids = message_ids(if has_message { group.ids.len() } else { 0 });
        }
        let locked = (groups.len() > 1)
            .then(|| chosen.iter().map(|(_, finish)| (*finish.lease.id.as_uuid(), finish.lease.token)).unzip());
        let outcome = match ended_by {
            EndedBy::Holder => AttemptOutcome::Failed,
            EndedBy::Reaper => AttemptOutcome::LeaseLost,
        };
        Self {
            leases: finished.iter().map(|finish| finish.lease).collect(),
            groups,
            locked,
            is_reaped: ended_by == EndedBy::Reaper,
            outcome: outcome.as_str(),
            posting,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the steps of one transaction.
    pub(super) fn steps<'p>(&'p self, sql: &'p Sql) -> Vec<Step<'p>> {
        let lock = self.locked.as_ref().map(|(ids, tokens)| Step::new(&sql.task_lock, [ids as _, tokens as _]));
        lock.into_iter().chain(self.groups.iter().map(|(kind, group)| self.step(*kind, group, sql))).collect()
    }

    fn step<'p>(&'p self, kind: Kind, group: &'p Group<'f>, sql: &'p Sql) -> Step<'p> {
        let posting = &self.posting;
        let leases: [&(dyn ToSql + Sync); 2] = [&group.ids, &group.tokens];
        match kind {
            Kind::Succeed => Step::new(&sql.task_succeed, leases).and([&group.results]),
            Kind::Retry => Step::new(&sql.task_retry, leases).and([
                &group.delays,
                &group.errors,
                &group.message_ids,
                &self.is_reaped,
                &self.outcome,
                &posting.is_sent,
                &posting.is_here,
                &posting.is_listed,
                &posting.prefix,
            ]),
            Kind::Spend => self.dying(group, &true, sql),
            Kind::Die => self.dying(group, &false, sql),
            Kind::Release => Step::new(&sql.task_release, leases).and([
                &group.message_ids,
                &posting.is_sent,
                &posting.is_here,
                &posting.is_listed,
                &posting.prefix,
            ]),
        }
    }

    fn dying<'p>(&'p self, group: &'p Group<'f>, is_spent: &'p bool, sql: &'p Sql) -> Step<'p> {
        let posting = &self.posting;
        let leases: [&(dyn ToSql + Sync); 2] = [&group.ids, &group.tokens];
        Step::new(&sql.task_die, leases).and([
            &group.reasons,
            &group.errors,
            &self.outcome,
            &group.message_ids,
            &self.is_reaped,
            &posting.is_here,
            &posting.is_listed,
            &posting.events,
            &posting.room,
            is_spent,
        ])
    }

    /// Returns how many of the steps only lock.
    pub(super) fn locks(&self) -> usize {
        usize::from(self.locked.is_some())
    }

    /// Returns the result of each end.
    pub(super) fn read<'r>(&self, tasks: &Tasks, answers: impl Iterator<Item = &'r Vec<Row>>) -> Finished {
        let mut finished = Finished { held: vec![false; self.leases.len()], ..Finished::default() };
        for ((kind, group), rows) in self.groups.iter().zip(answers) {
            let [id, token, task_type, key] = positions(rows, ["task_id", "lease_token", "task_type", "ordering_key"]);
            // Usually all of them, in order.
            let done: HashSet<(Uuid, i64)> = rows.iter().map(|row| (row.get(id), row.get(token))).collect();
            for (index, lease) in group.indexes.iter().zip(group.ids.iter().zip(&group.tokens)) {
                finished.held[*index] |= done.contains(&(*lease.0, *lease.1));
            }
            if *kind == Kind::Spend {
                finished.spent.extend(&done);
            }
            for row in rows {
                finished.note(tasks, *kind, row.get(task_type), row.get(key));
            }
        }
        finished
    }
}

/// The result of a batch of ends.
#[derive(Debug, Default)]
pub(super) struct Finished {
    held: Vec<bool>,
    /// The held leases whose retry ended the task.
    spent: HashSet<(Uuid, i64)>,
    pub(super) keys: Keys,
    pub(super) notices: Notices,
}

impl Finished {
    fn note(&mut self, tasks: &Tasks, kind: Kind, task_type: &str, key: Option<&str>) {
        match kind {
            Kind::Succeed => {}
            Kind::Spend | Kind::Die => tasks.note_death(&mut self.notices),
            Kind::Retry | Kind::Release => tasks.note_offered(&mut self.notices, task_type),
        }
        if let Some(key) = key {
            self.keys.insert((task_type.to_owned(), key.to_owned()));
        }
    }
}

impl Tasks {
    /// Returns the standing of each lease after its end.
    pub(super) async fn standings_after(
        &self,
        finishing: &Finishing<'_>,
        finished: &Finished,
    ) -> Result<Vec<TaskStanding>, Undone> {
        let standings = self.standings_of(&finishing.leases, &finished.held).await.map(|mut standings| {
            for (standing, lease) in standings.iter_mut().zip(&finishing.leases) {
                if *standing == TaskStanding::Held && finished.spent.contains(&(*lease.id.as_uuid(), lease.token)) {
                    *standing = TaskStanding::Spent;
                }
            }
            standings
        });
        // If some attempts were ended, the outcome is unknown.
        standings.map_err(|error| match finished.held.contains(&true) {
            true => Undone::Unknown(error.into_harmless()),
            false => error,
        })
    }

    /// Returns `Held`, or the current state of the task.
    async fn standings_of(&self, leases: &[TaskLease], held: &[bool]) -> Result<Vec<TaskStanding>, Undone> {
        let lost = leases.iter().zip(held).filter(|(_, held)| !**held);
        let ids: Vec<Uuid> = lost.map(|(lease, _)| *lease.id.as_uuid()).collect();
        let states = if ids.is_empty() { HashMap::new() } else { persist(|| self.states(&ids)).await? };
        let standing = |(lease, held): (&TaskLease, &bool)| match held {
            true => TaskStanding::Held,
            false => TaskStanding::Lost(states.get(&lease.id).map(|seen| seen.state)),
        };
        Ok(leases.iter().zip(held).map(standing).collect())
    }

    /// Returns the states of tasks.
    pub(super) async fn states(&self, ids: &[Uuid]) -> Result<HashMap<TaskId, Seen>, Undone> {
        let rows = self.ask("look at tasks", Deadline::default(), &self.sql().task_states, vec![&ids]).await?;
        let [id, state_column, token, wait] = positions(&rows, ["task_id", "state", "lease_token", "wait"]);
        let seen = |row: &Row| {
            (task_id(row, id), Seen { state: state(row, state_column), token: row.get(token), wait: row.get(wait) })
        };
        Ok(rows.iter().map(seen).collect())
    }

    /// Refuses results that are too large, and ends that a reaper cannot make.
    pub(super) fn check_ends(&self, finished: &[Finish], ended_by: EndedBy) -> Result<(), MessagingError> {
        for finish in finished {
            finish.check(self.max_payload_bytes())?;
            let is_kept = matches!(finish.outcome, TaskOutcome::Succeeded { .. } | TaskOutcome::Released);
            if is_kept && ended_by == EndedBy::Reaper {
                let why = "a lost attempt is retried, or its task dies; use another outcome";
                return Err(MessagingError::invalid("end of a lost attempt", why));
            }
        }
        Ok(())
    }

    /// Ends attempts whose leases have expired.
    pub(super) async fn reap(&self, lost: &[Finish], deadline: Deadline) -> Result<Vec<TaskStanding>, Undone> {
        let began = Instant::now();
        let finishing = Finishing::new(self, lost, EndedBy::Reaper);
        if finishing.is_empty() {
            return Ok(Vec::new());
        }
        let finished = persist(|| async {
            let mut session = self.shared.database.session("reap tasks", deadline).await?;
            let answers = session.run(&finishing.steps(session.sql())).await?;
            Ok(finishing.read(self, answers.iter().skip(finishing.locks())))
        });
        let finished = finished.await?;
        self.notify(&finished.notices, began);
        self.promote_own(&finished.keys).await;
        self.standings_after(&finishing, &finished).await
    }

    /// Sets the ends of leases, and stores the reported progress.
    pub(super) async fn heartbeat(
        &self,
        heartbeats: &[Heartbeat],
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, Undone> {
        let mut chosen: Vec<(TaskLease, Option<&postrider_core::task::Progress>)> =
            Vec::with_capacity(heartbeats.len());
        let mut indexes: HashMap<TaskLease, usize> = HashMap::with_capacity(heartbeats.len());
        for heartbeat in heartbeats {
            // Of two heartbeats of one lease the later counts, if it has progress.
            match indexes.get(&heartbeat.lease) {
                Some(index) => chosen[*index].1 = heartbeat.progress.as_ref().or(chosen[*index].1),
                None => {
                    indexes.insert(heartbeat.lease, chosen.len());
                    chosen.push((heartbeat.lease, heartbeat.progress.as_ref()));
                }
            }
        }
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        chosen.sort_by_key(|(lease, _)| lease.id);
        let ids: Vec<Uuid> = chosen.iter().map(|(lease, _)| *lease.id.as_uuid()).collect();
        let tokens: Vec<i64> = chosen.iter().map(|(lease, _)| lease.token).collect();
        let has_progress: Vec<bool> = chosen.iter().map(|(_, progress)| progress.is_some()).collect();
        let fractions: Vec<Option<f64>> = chosen.iter().map(|(_, progress)| (*progress)?.fraction).collect();
        let texts: Vec<Option<Cow<'_, str>>> =
            chosen.iter().map(|(_, progress)| Some(kept((*progress)?.text.as_deref()?))).collect();
        let lease = micros(lease);
        let renewed = persist(|| {
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&ids, &tokens, &has_progress, &fractions, &texts, &lease];
            self.ask("renew leases", deadline, &self.sql().task_heartbeat, parameters)
        });
        let renewed = renewed.await?;
        let [id, token] = positions(&renewed, ["task_id", "lease_token"]);
        let held: HashSet<TaskLease> =
            renewed.iter().map(|row| TaskLease { id: task_id(row, id), token: row.get(token) }).collect();
        let leases: Vec<TaskLease> = heartbeats.iter().map(|heartbeat| heartbeat.lease).collect();
        let held: Vec<bool> = leases.iter().map(|lease| held.contains(lease)).collect();
        self.standings_of(&leases, &held).await
    }

    /// Returns whether leases are held.
    pub(super) async fn standings(&self, leases: &[TaskLease]) -> Result<Vec<TaskStanding>, Undone> {
        let ids: Vec<Uuid> = leases.iter().map(|lease| *lease.id.as_uuid()).collect();
        let states = if ids.is_empty() { HashMap::new() } else { self.states(&ids).await? };
        let standing = |lease: &TaskLease| match states.get(&lease.id) {
            None => TaskStanding::Lost(None),
            Some(seen) if seen.state == TaskState::Processing && seen.token == Some(lease.token) => TaskStanding::Held,
            Some(seen) => TaskStanding::Lost(Some(seen.state)),
        };
        Ok(leases.iter().map(standing).collect())
    }

    /// Whether queues deliver tasks.
    pub(super) fn is_queued(&self) -> bool {
        self.routes.mode == TaskMode::Queue
    }
}

/// The state of a task, as last read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) state: TaskState,
    token: Option<i64>,
    /// In how many microseconds it is due, if only its time is missing.
    pub(super) wait: Option<i64>,
}
