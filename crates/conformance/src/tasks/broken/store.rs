//! The calls of a broken store.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use postrider_core::service::{RowResults, WakeUps};
use postrider_core::task::{
    ClaimAnswer, ClaimTasks, Created, Enqueued, Finish, FinishedAndClaimed, Heartbeat, LostLease, NewTask, OutboxBatch,
    PayloadRevision, ScheduleStore, Stranded, Task, TaskAttempt, TaskCount, TaskId, TaskLease, TaskNotice, TaskPage,
    TaskQuery, TaskRoutes, TaskStanding, TaskState, TaskStore, TaskType,
};
use postrider_core::{Deadline, MessagingError, async_trait};

use super::spoil::DAY;
use super::{BrokenTasks, TaskFault};

/// More tasks than any test has.
const ALL: usize = 100_000;

#[async_trait]
impl<S: TaskStore + ScheduleStore> TaskStore for BrokenTasks<S> {
    fn store_name(&self) -> &'static str {
        self.inner.store_name()
    }

    fn routes(&self) -> &TaskRoutes {
        &self.routes
    }

    fn max_payload_bytes(&self) -> usize {
        let largest = self.inner.max_payload_bytes();
        if self.has(TaskFault::UnderstatesItsLimit) { largest / 2 } else { largest }
    }

    async fn create(&self, tasks: Vec<NewTask>, deadline: Deadline) -> Result<RowResults<Created>, MessagingError> {
        match self.fault {
            Some(TaskFault::FailsWholeBatches) => {
                for task in &tasks {
                    task.check(self.max_payload_bytes())?;
                }
            }
            Some(TaskFault::FreesKeysOfTheEnded | TaskFault::LooksBeforeItMakes) => {
                let mut rows = Vec::new();
                for task in tasks {
                    rows.push(self.create_one(task, deadline).await);
                }
                return Ok(rows);
            }
            _ => {}
        }
        let mut tasks: Vec<NewTask> = tasks.into_iter().map(|task| self.spoil_task(task)).collect();
        if self.has(TaskFault::ForgetsWhoIsNext) && self.notes.is_tenth_creation() {
            // A task that never ends.
            let endless = tasks
                .iter()
                .filter(|task| task.ordering_key.is_some())
                .map(|task| NewTask { deadline: None, ..task.clone() }.id(TaskId::generate()).scheduled_in(DAY * 1000));
            self.inner.create(endless.collect(), deadline).await?;
        }
        if self.has(TaskFault::ReversesBatches) {
            tasks.reverse();
            let mut rows = self.inner.create(tasks, deadline).await?;
            rows.reverse();
            return Ok(rows);
        }
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        let mut rows = self.inner.create(tasks, deadline).await?;
        if self.has(TaskFault::AcceptsTakenIds) {
            for (row, id) in rows.iter_mut().zip(ids).filter(|(row, _)| row.is_err()) {
                *row = Ok(Created { id, is_new: false, state: TaskState::Pending });
            }
        }
        Ok(rows)
    }

    async fn finish_and_claim(
        &self,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<FinishedAndClaimed, MessagingError> {
        if self.fault.is_none() {
            return self.inner.finish_and_claim(finished, claim, deadline).await;
        }
        let claim = claim.map(|claim| self.spoil_claim(claim));
        let mut done = FinishedAndClaimed::default();
        if !finished.is_empty() && !self.has(TaskFault::ClaimsBeforeItEnds) {
            done.finished = self.end_all(finished.clone(), deadline).await?;
        }
        if let Some(claim) = claim {
            let brought = self.inner.claim(claim.clone(), deadline).await?;
            done.next_due = brought.next_due.filter(|_| !self.has(TaskFault::ForgetsNextDue));
            done.claimed = self.spoil_claimed_all(brought.claimed, &claim, deadline).await?;
        }
        if !finished.is_empty() && self.has(TaskFault::ClaimsBeforeItEnds) {
            done.finished = self.end_all(finished, deadline).await?;
        }
        Ok(done)
    }

    async fn claim_by_id(
        &self,
        ids: &[TaskId],
        lease: Duration,
        worker: &str,
        deadline: Deadline,
    ) -> Result<Vec<ClaimAnswer>, MessagingError> {
        let lease = self.spoil_lease(lease);
        let worker = if self.has(TaskFault::ForgetsWhoClaimed) { "another" } else { worker };
        let answers = self.inner.claim_by_id(ids, lease, worker, deadline).await?;
        let mut first: HashMap<TaskId, ClaimAnswer> = HashMap::new();
        let mut spoiled = Vec::new();
        for (id, answer) in ids.iter().zip(answers) {
            let mut answer = self.spoil_answer(*id, answer, deadline).await?;
            if self.has(TaskFault::AnswersIdsAlike) {
                answer = first.entry(*id).or_insert(answer).clone();
            }
            spoiled.push(answer);
        }
        Ok(spoiled)
    }

    async fn heartbeat(
        &self,
        mut heartbeats: Vec<Heartbeat>,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError> {
        let mut lease = self.spoil_lease(lease);
        for heartbeat in &mut heartbeats {
            heartbeat.lease = self.spoil_token(heartbeat.lease);
            if self.has(TaskFault::ForgetsProgress) {
                heartbeat.progress = None;
            }
        }
        if self.has(TaskFault::AddsHeartbeats)
            && let Some(first) = heartbeats.first()
            && let Some(task) = self.inner.get(first.lease.id, deadline).await?
        {
            let now = self.inner.store_time(deadline).await?;
            lease += task.info.lease_expires_at.map_or(Duration::ZERO, |end| end.since(now));
        }
        self.inner.heartbeat(heartbeats, lease, deadline).await
    }

    async fn standings(&self, leases: &[TaskLease], deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        if self.has(TaskFault::SaysAllIsHeld) {
            return Ok(vec![TaskStanding::Held; leases.len()]);
        }
        let mut standings = self.inner.standings(leases, deadline).await?;
        if self.has(TaskFault::MixesAnswersUp) {
            standings.reverse();
        }
        Ok(standings)
    }

    async fn lost_leases(&self, limit: usize, deadline: Deadline) -> Result<Vec<LostLease>, MessagingError> {
        let mut lost = self.inner.lost_leases(limit, deadline).await?;
        if self.has(TaskFault::LosesTheLiving) {
            lost.extend(self.living("worker-1"));
        }
        Ok(lost)
    }

    async fn reap(&self, lost: Vec<Finish>, deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        if self.fault.is_none() {
            return self.inner.reap(lost, deadline).await;
        }
        let mut standings = Vec::new();
        for lost in lost {
            standings.push(self.reap_one(lost, deadline).await?);
        }
        Ok(standings)
    }

    async fn expire_overdue(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, MessagingError> {
        match self.fault {
            Some(TaskFault::ExpiresNothing) => Ok(Vec::new()),
            Some(TaskFault::ExpiresTooMany) => self.inner.expire_overdue(ALL, deadline).await,
            Some(TaskFault::DropsEventsOfTheOverdue) => self.without_events.expire_overdue(limit, deadline).await,
            _ => self.ending().expire_overdue(limit, deadline).await,
        }
    }

    async fn cancel(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<TaskState>, MessagingError> {
        if self.fault.is_none() {
            return self.inner.cancel(ids, deadline).await;
        }
        let mut rows = Vec::new();
        for id in ids {
            rows.push(self.cancel_one(*id, deadline).await);
        }
        Ok(rows)
    }

    async fn run_now(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        if self.fault.is_none() {
            return self.inner.run_now(ids, deadline).await;
        }
        let mut rows = Vec::new();
        for id in ids {
            rows.push(self.run_now_one(*id, deadline).await);
        }
        Ok(rows)
    }

    async fn replay(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        if self.fault.is_none() {
            return self.inner.replay(ids, deadline).await;
        }
        let mut rows = Vec::new();
        for id in ids {
            rows.push(self.replay_one(*id, deadline).await);
        }
        Ok(rows)
    }

    async fn edit_payload(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError> {
        self.inner.edit_payload(id, payload, deadline).await
    }

    async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, MessagingError> {
        let mut revisions = self.inner.revisions(id, deadline).await?;
        if self.has(TaskFault::ForgetsRevisions) {
            revisions.clear();
        }
        Ok(revisions)
    }

    async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, MessagingError> {
        let task = self.inner.get(id, deadline).await?;
        Ok(task.map(|task| Task { info: self.spoil_info(task.info), ..task }))
    }

    async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError> {
        let mut attempts = self.inner.attempts(id, deadline).await?;
        match self.fault {
            Some(TaskFault::ForgetsErrors) => attempts.iter_mut().for_each(|attempt| attempt.error = None),
            Some(TaskFault::ForgetsFailures) => drop(attempts.drain(..attempts.len().saturating_sub(1))),
            _ => {}
        }
        Ok(attempts)
    }

    async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError> {
        self.page(query, deadline).await
    }

    async fn counts(&self, deadline: Deadline) -> Result<Vec<TaskCount>, MessagingError> {
        let mut counts = self.inner.counts(deadline).await?;
        if self.has(TaskFault::CountsNoDeaths) {
            counts.retain(|count| count.state != TaskState::Dead);
        }
        Ok(counts)
    }

    async fn enqueue_due(&self, limit: usize, deadline: Deadline) -> Result<Enqueued, MessagingError> {
        let enqueued = self.inner.enqueue_due(limit, deadline).await?;
        if self.has(TaskFault::SendsTwice) {
            for stranded in self.inner.stranded(Duration::ZERO, deadline).await? {
                self.inner.resend(&stranded.task_type, ALL, Duration::ZERO, deadline).await?;
            }
        }
        Ok(enqueued)
    }

    async fn stranded(&self, grace: Duration, deadline: Deadline) -> Result<Vec<Stranded>, MessagingError> {
        let grace = if self.has(TaskFault::IgnoresTheGrace) { Duration::ZERO } else { grace };
        let mut stranded = self.inner.stranded(grace, deadline).await?;
        if self.has(TaskFault::HidesTheOutbox) {
            stranded.iter_mut().for_each(|it| it.in_outbox = 0);
        }
        Ok(stranded)
    }

    async fn resend(
        &self,
        task_type: &TaskType,
        limit: usize,
        grace: Duration,
        deadline: Deadline,
    ) -> Result<usize, MessagingError> {
        let grace = if self.has(TaskFault::IgnoresTheGrace) { Duration::ZERO } else { grace };
        if self.has(TaskFault::ResendsEveryType) {
            let types: Vec<TaskType> = self.notes.state().types.iter().filter(|it| *it != task_type).cloned().collect();
            for other in types {
                self.inner.resend(&other, limit, grace, deadline).await?;
            }
        }
        self.inner.resend(task_type, limit, grace, deadline).await
    }

    async fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<OutboxBatch, MessagingError> {
        let mut batch = self.inner.take_outbox(limit, lease, deadline).await?;
        match self.fault {
            Some(TaskFault::GivesTakenMessages) if batch.rows.is_empty() => {
                batch.rows = std::mem::take(&mut self.notes.state().given);
                return Ok(batch);
            }
            Some(TaskFault::ForgetsWhatItGave) => {
                let sent: Vec<_> = batch.rows.iter().map(|row| (row.id, row.token)).collect();
                self.inner.outbox_sent(&sent, deadline).await?;
            }
            Some(TaskFault::GivesTheYoungestFirst) => batch.rows.reverse(),
            _ => {}
        }
        self.notes.state().given.extend(batch.rows.iter().cloned());
        Ok(batch)
    }

    async fn outbox_sent(&self, rows: &[(i64, i64)], deadline: Deadline) -> Result<(), MessagingError> {
        let mut rows = rows.to_vec();
        if self.has(TaskFault::BelievesLateSenders) {
            let state = self.notes.state();
            for (id, token) in &mut rows {
                // The last row given has the valid token.
                if let Some(newest) = state.given.iter().rev().find(|given| given.id == *id) {
                    *token = newest.token;
                }
            }
        }
        self.inner.outbox_sent(&rows, deadline).await
    }

    async fn forget_finished(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        let older_than = if self.has(TaskFault::ForgetsTheYoung) { Duration::ZERO } else { older_than };
        self.inner.forget_finished(older_than, deadline).await
    }

    async fn subscribe_tasks(&self, notice: TaskNotice, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        let is_deaf = match self.fault {
            Some(TaskFault::WakesNobody) => true,
            Some(TaskFault::WakesNoEnqueuer) => notice == TaskNotice::ToSend,
            _ => false,
        };
        if is_deaf {
            return Ok(WakeUps::new(stream::pending()));
        }
        self.inner.subscribe_tasks(notice, deadline).await
    }
}
