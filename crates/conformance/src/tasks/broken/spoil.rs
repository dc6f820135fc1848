//! How the faults change calls and answers.

use std::time::Duration;

use postrider_core::task::{
    ClaimAnswer, ClaimTasks, ClaimedTask, DeadReason, Finish, LostLease, NewTask, ScheduleStore, TaskId, TaskInfo,
    TaskLease, TaskOutcome, TaskPage, TaskQuery, TaskStanding, TaskState, TaskStore, When,
};
use postrider_core::{Deadline, MessagingError, Priority};

use super::{BrokenTasks, TaskFault};

pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

impl<S: TaskStore + ScheduleStore> BrokenTasks<S> {
    /// The task that reaches the store.
    pub(super) fn spoil_task(&self, mut task: NewTask) -> NewTask {
        self.notes.state().types.insert(task.task_type.clone());
        match self.fault {
            Some(TaskFault::LosesTags) => task.tags.retain(|tag| tag.chars().any(char::is_control)),
            Some(TaskFault::AllowsOneMore) if task.retry_strategy.is_none() => {
                task.max_attempts = task.attempts().checked_add(1);
            }
            Some(TaskFault::IgnoresIdempotencyKeys) => task.idempotency_key = None,
            Some(TaskFault::ClaimsEarly) => task.scheduled_for = When::NOW,
            Some(TaskFault::IgnoresPriorities) => task.priority = Priority::default(),
            Some(TaskFault::IgnoresDeadlines) => task.deadline = None,
            Some(TaskFault::IgnoresOrderingKeys) => task.ordering_key = None,
            Some(TaskFault::OnlyRemembersKeys) => {
                if let Some(key) = task.ordering_key.take() {
                    self.notes.state().ordering_keys.insert(task.id, key);
                }
            }
            Some(TaskFault::PassesOverTheLater) if task.scheduled_for != When::NOW => task.ordering_key = None,
            _ => {}
        }
        task
    }

    /// The claim that reaches the store.
    pub(super) fn spoil_claim(&self, mut claim: ClaimTasks) -> ClaimTasks {
        claim.lease = self.spoil_lease(claim.lease);
        match self.fault {
            Some(TaskFault::ClaimsEveryType) => claim.types = self.notes.state().types.iter().cloned().collect(),
            Some(TaskFault::ClaimsTooMany) => claim.max += 1,
            _ => {}
        }
        claim
    }

    pub(super) fn spoil_lease(&self, lease: Duration) -> Duration {
        let is_no_lease = lease.is_zero() || lease > DAY * 400;
        if self.has(TaskFault::AcceptsEmptyLeases) && is_no_lease { DAY } else { lease }
    }

    /// The claimed task that reaches the worker.
    pub(super) fn spoil_claimed(&self, mut task: ClaimedTask) -> ClaimedTask {
        let mut state = self.notes.state();
        match self.fault {
            Some(TaskFault::HidesDeadlines) => task.time_left = None,
            Some(TaskFault::ReplaysWithCounts) => {
                task.attempt_count += state.earlier_attempts.get(&task.lease.id).copied().unwrap_or(0);
            }
            Some(TaskFault::OnlyRemembersKeys) => {
                task.ordering_key = state.ordering_keys.get(&task.lease.id).cloned();
            }
            _ => {}
        }
        state.claimed.insert(task.lease.id, task.clone());
        state.last_claim = Some(task.clone());
        task
    }

    /// The claimed tasks, with too many or too few.
    pub(super) async fn spoil_claimed_all(
        &self,
        claimed: Vec<ClaimedTask>,
        claim: &ClaimTasks,
        deadline: Deadline,
    ) -> Result<Vec<ClaimedTask>, MessagingError> {
        if self.has(TaskFault::ClaimsTwice) && claimed.is_empty() {
            return Ok(self.notes.state().last_claim.take().into_iter().collect());
        }
        let mut kept = Vec::new();
        for task in claimed {
            if self.has(TaskFault::StarvesTheLeastUrgent) && task.priority == Priority::LOWEST {
                self.release(task.lease, deadline).await?;
                kept.extend(self.inner.claim(claim.clone(), deadline).await?.claimed);
            } else if self.has(TaskFault::SharesKeysAmongTypes) && self.is_key_held(&task) {
                self.release(task.lease, deadline).await?;
            } else {
                kept.push(self.spoil_claimed(task));
            }
        }
        Ok(kept)
    }

    async fn release(&self, lease: TaskLease, deadline: Deadline) -> Result<(), MessagingError> {
        let finish = Finish { lease, outcome: TaskOutcome::Released };
        self.inner.finish(vec![finish], deadline).await.map(drop)
    }

    fn is_key_held(&self, task: &ClaimedTask) -> bool {
        let state = self.notes.state();
        let mut others = state.claimed.values().filter(|other| other.lease.id != task.lease.id);
        task.ordering_key.is_some() && others.any(|other| other.ordering_key == task.ordering_key)
    }

    /// The answer to a claim by id.
    pub(super) async fn spoil_answer(
        &self,
        id: TaskId,
        answer: ClaimAnswer,
        deadline: Deadline,
    ) -> Result<ClaimAnswer, MessagingError> {
        match answer {
            ClaimAnswer::Claimed(task) => Ok(ClaimAnswer::Claimed(Box::new(self.spoil_claimed(*task)))),
            ClaimAnswer::NotDue(_) if self.has(TaskFault::ClaimsEarlyById) => {
                self.inner.run_now(&[id], deadline).await?;
                let again = self.inner.claim_by_id(&[id], Duration::from_secs(60), "worker-1", deadline).await?;
                Ok(again.into_iter().next().unwrap_or(ClaimAnswer::NotClaimable))
            }
            ClaimAnswer::NotClaimable if self.has(TaskFault::ClaimsWhatIsHeld) => {
                let held = self.notes.state().claimed.get(&id).cloned();
                Ok(held.map_or(ClaimAnswer::NotClaimable, |task| ClaimAnswer::Claimed(Box::new(task))))
            }
            other => Ok(other),
        }
    }

    /// The lease that reaches the store.
    pub(super) fn spoil_token(&self, lease: TaskLease) -> TaskLease {
        if self.has(TaskFault::IgnoresTokens)
            && let Some(newest) = self.notes.state().claimed.get(&lease.id)
        {
            return newest.lease;
        }
        lease
    }

    /// The end that reaches the store.
    pub(super) fn spoil_finish(&self, finish: Finish) -> Finish {
        let lease = self.spoil_token(finish.lease);
        let keyed = self.notes.state().claimed.get(&lease.id).is_some_and(|task| task.ordering_key.is_some());
        let outcome = match (self.fault, finish.outcome) {
            (Some(TaskFault::LosesResults), TaskOutcome::Succeeded { .. }) => TaskOutcome::Succeeded { result: None },
            (Some(TaskFault::RetriesAtOnce | TaskFault::GivesEarly), TaskOutcome::Retry { error, .. }) => {
                TaskOutcome::Retry { after: Duration::ZERO, error }
            }
            (Some(TaskFault::ForgetsReasons), TaskOutcome::Dead { error, .. }) => {
                TaskOutcome::Dead { reason: DeadReason::Permanent, error }
            }
            (Some(TaskFault::KeepsKeysOfTheDead), TaskOutcome::Dead { error, .. }) if keyed => {
                self.notes.state().reported_states.insert(lease.id, TaskState::Dead);
                TaskOutcome::Retry { after: DAY * 1000, error }
            }
            (Some(TaskFault::ChargesReleases), TaskOutcome::Released) => {
                TaskOutcome::Retry { after: Duration::ZERO, error: String::new() }
            }
            (_, outcome) => outcome,
        };
        Finish { lease, outcome }
    }

    /// Ends attempts with the fault.
    pub(super) async fn end_all(
        &self,
        finished: Vec<Finish>,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError> {
        let mut finished: Vec<Finish> = finished.into_iter().map(|finish| self.spoil_finish(finish)).collect();
        let leases: Vec<TaskLease> = finished.iter().map(|finish| finish.lease).collect();
        if self.has(TaskFault::RefusesLateEnds) {
            for lease in &leases {
                if let Some(state) = self.expired_state(*lease, deadline).await? {
                    return Ok(vec![TaskStanding::Lost(Some(state)); leases.len()]);
                }
            }
        }
        if self.has(TaskFault::EndsTheFirstHundred) {
            finished.truncate(100);
        }
        let mut standings = self.ending().finish(finished, deadline).await?;
        standings.resize(leases.len(), TaskStanding::Held);
        if self.has(TaskFault::HidesSpentAttempts) {
            standings.iter_mut().filter(|standing| standing.is_held()).for_each(|spent| *spent = TaskStanding::Held);
        }
        if self.has(TaskFault::AcceptsEveryEnd) {
            standings.fill(TaskStanding::Held);
        }
        if self.has(TaskFault::EndsTwice) {
            for (at, lease) in leases.iter().enumerate() {
                if let Some(first) = leases[..at].iter().position(|earlier| earlier == lease) {
                    standings[at] = standings[first];
                }
            }
        }
        for (lease, standing) in leases.iter().zip(&standings) {
            if standing.is_held() && !self.has(TaskFault::IgnoresTokens) {
                self.notes.state().claimed.remove(&lease.id);
            }
        }
        Ok(standings)
    }

    /// The state of a task whose lease has expired.
    async fn expired_state(&self, lease: TaskLease, deadline: Deadline) -> Result<Option<TaskState>, MessagingError> {
        let now = self.inner.store_time(deadline).await?;
        let task = self.inner.get(lease.id, deadline).await?;
        Ok(task.filter(|it| it.info.lease_expires_at.is_some_and(|end| end <= now)).map(|it| it.info.state))
    }

    /// Reaps one lease with the fault.
    pub(super) async fn reap_one(&self, mut lost: Finish, deadline: Deadline) -> Result<TaskStanding, MessagingError> {
        lost.lease = self.spoil_token(lost.lease);
        if self.has(TaskFault::ReapsAsFailures) && self.expired_state(lost.lease, deadline).await?.is_some() {
            return only(self.inner.finish(vec![lost], deadline).await?);
        }
        let store = match self.fault {
            Some(TaskFault::DropsEventsOfTheLost) => &self.without_events,
            _ => self.ending(),
        };
        let standing = only(store.reap(vec![lost.clone()], deadline).await?)?;
        if self.has(TaskFault::RevivesTheLost) && matches!(lost.outcome, TaskOutcome::Dead { .. }) {
            self.inner.replay(&[lost.lease.id], deadline).await?;
        }
        if self.has(TaskFault::ReapsTheRenewed) && standing == TaskStanding::Lost(Some(TaskState::Processing)) {
            return only(self.inner.finish(vec![lost], deadline).await?);
        }
        Ok(standing)
    }

    /// Live leases, reported as lost.
    pub(super) fn living(&self, worker: &str) -> Vec<LostLease> {
        let state = self.notes.state();
        let living = state.claimed.values().map(|task| LostLease {
            lease: task.lease,
            task_type: task.task_type.clone(),
            worker: worker.to_owned(),
            attempt_count: task.attempt_count,
            max_attempts: task.max_attempts,
            retry_strategy: task.retry_strategy.clone(),
            since_first_attempt: task.since_first_attempt,
        });
        living.collect()
    }

    /// The task as reported.
    pub(super) fn spoil_info(&self, mut info: TaskInfo) -> TaskInfo {
        let state = self.notes.state();
        if let Some(told) = state.reported_states.get(&info.id) {
            info.state = *told;
        }
        if state.moved.contains(&info.id) {
            info.scheduled_for = info.scheduled_for.saturating_add(Duration::from_secs(1));
        }
        info.attempt_count += state.earlier_attempts.get(&info.id).copied().unwrap_or(0);
        info
    }

    /// A page with the fault.
    pub(super) async fn page(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError> {
        let mut query = query.clone();
        let pattern = match self.fault {
            Some(TaskFault::ReadsPatterns) => query.filter.error_contains.take(),
            _ => None,
        };
        match self.fault {
            Some(TaskFault::ListsEveryState) => query.filter.states.clear(),
            Some(TaskFault::ListsBesidePatterns) => query.filter.within = None,
            Some(TaskFault::IncludesTheEnd) => {
                let end = &mut query.filter.created_before;
                *end = end.map(|time| time.saturating_add(Duration::from_micros(1)));
            }
            _ => {}
        }
        let mut page = self.inner.list(&query, deadline).await?;
        if let Some(pattern) = pattern {
            page.tasks.retain(|task| task.last_error.as_ref().is_some_and(|error| is_like(error, &pattern)));
        }
        if self.has(TaskFault::StopsAtEmptyPages) && page.tasks.is_empty() {
            page.next = None;
        }
        if self.has(TaskFault::SkipsTasks) && page.tasks.len() > 1 {
            page.tasks.pop();
        }
        page.tasks = page.tasks.into_iter().map(|task| self.spoil_info(task)).collect();
        Ok(page)
    }
}

/// Whether a text contains a pattern in which an underscore matches any character.
fn is_like(text: &str, pattern: &str) -> bool {
    let (text, pattern): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    let fits = |part: &[char]| part.iter().zip(&pattern).all(|(seen, wanted)| seen == wanted || *wanted == '_');
    text.windows(pattern.len().max(1)).any(fits)
}

fn only(mut standings: Vec<TaskStanding>) -> Result<TaskStanding, MessagingError> {
    let unknown = MessagingError::OutcomeUnknown { operation: "reap", ids: Vec::new(), source: None };
    standings.pop().ok_or(unknown)
}
