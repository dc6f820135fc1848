//! Implements the contract of a task store with the writer and the readers of a file.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider_core::task::{
    ClaimAnswer, ClaimTasks, Created, Enqueued, Finish, FinishedAndClaimed, Heartbeat, LostLease, MOST_ENDED_COUNTED,
    NewTask, OutboxBatch, PayloadRevision, Stranded, Task, TaskAttempt, TaskCount, TaskId, TaskLease, TaskNotice,
    TaskOutcome, TaskPage, TaskQuery, TaskRoutes, TaskStanding, TaskState, TaskStore, TaskType, check_lease,
};
use postrider_core::{Deadline, MessagingError, RowResults, Timestamp, WakeUps, async_trait};
use rusqlite::Connection;

use super::claim::Claimer;
use super::step::TaskStep;
use super::{SqliteTasks, UndeliveredTask, look, upkeep};
use crate::PROVIDER;
use crate::error::{Failure, refusal_as_value};
use crate::writer::work::{Answer, UndeliveredLease};

/// An answer with leases, which are returned when its caller has gone.
struct WithRoutes<T> {
    answer: T,
    routes: Arc<TaskRoutes>,
}

impl<T> WithRoutes<T> {
    fn undelivered(&self, leases: impl Iterator<Item = TaskLease>) -> Vec<UndeliveredLease> {
        leases.map(|lease| UndeliveredLease::Task(UndeliveredTask { lease, routes: self.routes.clone() })).collect()
    }
}

impl Answer for WithRoutes<FinishedAndClaimed> {
    fn into_leases(self) -> Vec<UndeliveredLease> {
        self.undelivered(self.answer.claimed.iter().map(|task| task.lease))
    }
}

impl Answer for WithRoutes<Vec<ClaimAnswer>> {
    fn into_leases(self) -> Vec<UndeliveredLease> {
        self.undelivered(self.answer.iter().filter_map(|answer| match answer {
            ClaimAnswer::Claimed(task) => Some(task.lease),
            ClaimAnswer::NotDue(_) | ClaimAnswer::NotClaimable => None,
        }))
    }
}

impl SqliteTasks {
    pub(super) fn max_payload(&self) -> usize {
        self.provider.shared().context.rules.capabilities.limits.max_body_bytes
    }

    /// The store's time.
    pub(super) fn now(&self) -> Timestamp {
        self.provider.shared().context.options.clock.now()
    }

    /// Runs a step on each of several tasks; each has its own result.
    async fn each<T: 'static>(
        &self,
        operation: &'static str,
        ids: &[TaskId],
        deadline: Deadline,
        step: impl Fn(&mut TaskStep<'_, '_>, TaskId) -> Result<T, Failure> + Send + 'static,
    ) -> Result<RowResults<T>, MessagingError>
    where
        RowResults<T>: Answer + Send,
    {
        self.begin(operation, deadline)?;
        let ids = ids.to_vec();
        let each = move |tasks: &mut TaskStep<'_, '_>| {
            Ok(ids.iter().map(|id| refusal_as_value(step(tasks, *id))).collect::<rusqlite::Result<RowResults<T>>>()?)
        };
        self.write(operation, deadline, each).await
    }
}

#[async_trait]
impl TaskStore for SqliteTasks {
    fn store_name(&self) -> &'static str {
        PROVIDER
    }

    fn routes(&self) -> &TaskRoutes {
        &self.routes
    }

    fn max_payload_bytes(&self) -> usize {
        self.max_payload()
    }

    async fn create(&self, tasks: Vec<NewTask>, deadline: Deadline) -> Result<RowResults<Created>, MessagingError> {
        self.begin("create", deadline)?;
        let create = move |step: &mut TaskStep<'_, '_>| {
            Ok(tasks
                .iter()
                .map(|task| refusal_as_value(step.create(task)))
                .collect::<rusqlite::Result<RowResults<_>>>()?)
        };
        self.write("create", deadline, create).await
    }

    async fn finish_and_claim(
        &self,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<FinishedAndClaimed, MessagingError> {
        let operation = if finished.is_empty() { "claim" } else { "finish" };
        self.begin(operation, deadline)?;
        for finish in &finished {
            finish.check(self.max_payload())?;
        }
        if let Some(claim) = &claim {
            claim.check()?;
        }
        let claim = claim.map(|claim| (claim, self.next_round()));
        let only_claims = finished.is_empty();
        let routes = self.routes.clone();
        let step = move |step: &mut TaskStep<'_, '_>| {
            let mut answer = FinishedAndClaimed::default();
            answer.finished.reserve(finished.len());
            for finish in &finished {
                answer.finished.push(step.finish(finish)?);
            }
            if let Some((claim, round)) = &claim {
                step.claim(claim, *round, &mut answer)?;
            }
            Ok(WithRoutes { answer, routes: routes.clone() })
        };
        let claimed = if only_claims {
            self.lease(operation, deadline, step).await?
        } else {
            self.write(operation, deadline, step).await?
        };
        Ok(claimed.answer)
    }

    async fn claim_by_id(
        &self,
        ids: &[TaskId],
        lease: Duration,
        worker: &str,
        deadline: Deadline,
    ) -> Result<Vec<ClaimAnswer>, MessagingError> {
        self.begin("claim", deadline)?;
        check_lease(lease)?;
        let (ids, worker, routes) = (ids.to_vec(), worker.to_owned(), self.routes.clone());
        let claim = move |step: &mut TaskStep<'_, '_>| {
            let claimer = Claimer { worker: &worker, lease };
            let answer = ids.iter().map(|id| step.claim_task(*id, claimer)).collect::<rusqlite::Result<_>>()?;
            Ok(WithRoutes { answer, routes: routes.clone() })
        };
        Ok(self.lease("claim", deadline, claim).await?.answer)
    }

    async fn heartbeat(
        &self,
        heartbeats: Vec<Heartbeat>,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError> {
        self.begin("heartbeat", deadline)?;
        check_lease(lease)?;
        let beat = move |step: &mut TaskStep<'_, '_>| {
            let standings = heartbeats.iter().map(|heartbeat| step.heartbeat(heartbeat, lease));
            Ok(standings.collect::<rusqlite::Result<Vec<_>>>()?)
        };
        self.write("heartbeat", deadline, beat).await
    }

    async fn standings(&self, leases: &[TaskLease], deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        self.begin("standings", deadline)?;
        let leases = leases.to_vec();
        let read = move |connection: &Connection| Ok(look::standings(connection, &leases)?);
        self.read("standings", deadline, read).await
    }

    async fn lost_leases(&self, limit: usize, deadline: Deadline) -> Result<Vec<LostLease>, MessagingError> {
        self.begin("look for lost leases", deadline)?;
        let now = self.now();
        let read = move |connection: &Connection| Ok(look::lost_leases(connection, limit, now)?);
        self.read("look for lost leases", deadline, read).await
    }

    async fn reap(&self, lost: Vec<Finish>, deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        self.begin("reap", deadline)?;
        let is_allowed = |lost: &Finish| matches!(lost.outcome, TaskOutcome::Retry { .. } | TaskOutcome::Dead { .. });
        if !lost.iter().all(is_allowed) {
            let why = "a reaped attempt is retried or its task dies; use Retry or Dead";
            return Err(MessagingError::invalid("outcome", why));
        }
        let reap = move |step: &mut TaskStep<'_, '_>| {
            Ok(lost.iter().map(|lost| step.reap(lost)).collect::<rusqlite::Result<Vec<_>>>()?)
        };
        self.write("reap", deadline, reap).await
    }

    async fn expire_overdue(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, MessagingError> {
        self.begin("expire", deadline)?;
        self.write("expire", deadline, move |step| Ok(step.expire_overdue(limit)?)).await
    }

    async fn cancel(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<TaskState>, MessagingError> {
        self.each("cancel", ids, deadline, |step, id| step.cancel(id)).await
    }

    async fn run_now(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.each("run now", ids, deadline, |step, id| step.run_now(id)).await
    }

    async fn replay(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.each("replay", ids, deadline, |step, id| step.replay(id)).await
    }

    async fn edit_payload(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError> {
        self.begin("edit", deadline)?;
        if payload.len() > self.max_payload() {
            let why =
                format!("it has {} bytes, but at most {} are allowed; send less", payload.len(), self.max_payload());
            return Err(MessagingError::invalid("payload", why));
        }
        self.write("edit", deadline, move |step| step.edit_payload(id, &payload)).await
    }

    async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, MessagingError> {
        self.begin("revisions", deadline)?;
        self.read("revisions", deadline, move |connection| look::revisions(connection, id)).await
    }

    async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, MessagingError> {
        self.begin("get", deadline)?;
        self.read("get", deadline, move |connection| Ok(look::get(connection, id)?)).await
    }

    async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError> {
        self.begin("attempts", deadline)?;
        self.read("attempts", deadline, move |connection| look::attempts(connection, id)).await
    }

    async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError> {
        self.begin("list", deadline)?;
        query.check()?;
        let query = query.clone();
        self.read("list", deadline, move |connection| look::list(connection, &query)).await
    }

    async fn counts(&self, deadline: Deadline) -> Result<Vec<TaskCount>, MessagingError> {
        self.begin("count", deadline)?;
        self.read("count", deadline, |connection| Ok(look::counts(connection, MOST_ENDED_COUNTED)?)).await
    }

    async fn enqueue_due(&self, limit: usize, deadline: Deadline) -> Result<Enqueued, MessagingError> {
        self.begin("enqueue", deadline)?;
        let round = self.next_round();
        self.write("enqueue", deadline, move |step| Ok(step.enqueue_due(limit, round)?)).await
    }

    async fn stranded(&self, grace: Duration, deadline: Deadline) -> Result<Vec<Stranded>, MessagingError> {
        self.begin("look for stranded tasks", deadline)?;
        let (routes, now) = (self.routes.clone(), self.now());
        let read = move |connection: &Connection| Ok(upkeep::stranded(connection, &routes, grace, now)?);
        self.read("look for stranded tasks", deadline, read).await
    }

    async fn resend(
        &self,
        task_type: &TaskType,
        limit: usize,
        grace: Duration,
        deadline: Deadline,
    ) -> Result<usize, MessagingError> {
        self.begin("resend", deadline)?;
        let task_type = task_type.clone();
        self.write("resend", deadline, move |step| Ok(step.resend(&task_type, limit, grace)?)).await
    }

    async fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<OutboxBatch, MessagingError> {
        self.begin("take from the outbox", deadline)?;
        check_lease(lease)?;
        self.lease("take from the outbox", deadline, move |step| Ok(step.take_outbox(limit, lease)?)).await
    }

    async fn outbox_sent(&self, rows: &[(i64, i64)], deadline: Deadline) -> Result<(), MessagingError> {
        self.begin("clear the outbox", deadline)?;
        let rows = rows.to_vec();
        self.write("clear the outbox", deadline, move |step| Ok(step.outbox_sent(&rows)?)).await
    }

    async fn forget_finished(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        self.begin("forget", deadline)?;
        let until = self.now().saturating_sub(older_than);
        let (mut forgotten, mut after) = (0, Some(0));
        while let Some(from) = after {
            let read = move |connection: &Connection| Ok(upkeep::forgettable(connection, from, until)?);
            let part = self.read("forget", deadline, read).await?;
            if !part.rows.is_empty() {
                let rows = part.rows;
                forgotten += self.write("forget", deadline, move |step| Ok(step.forget(&rows, until)?)).await?;
            }
            after = part.next;
        }
        Ok(forgotten)
    }

    async fn subscribe_tasks(&self, notice: TaskNotice, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.begin("subscribe", deadline)?;
        self.hints(notice)
    }
}
