//! `TaskStore` over HTTP.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider_core::task::{
    ClaimAnswer, ClaimTasks, Created, Enqueued, Finish, FinishedAndClaimed, Heartbeat, LostLease, NewTask, OutboxBatch,
    PayloadRevision, Progress, Stranded, Task, TaskAttempt, TaskCount, TaskId, TaskLease, TaskNotice, TaskPage,
    TaskQuery, TaskRoutes, TaskStanding, TaskState, TaskStore, TaskType, check_lease,
};
use postrider_core::{Deadline, MessagingError, RowResults, WakeUps, async_trait};
use postrider_wire::task as wire;

use super::claim_guard::ClaimGuard;
use super::{HttpTasks, only_standings, standings};
use crate::failure::Failure;
use crate::transport::{MAX_ROWS, Request, Transport};
use crate::{PROVIDER, events, url};

const CLAIM_BY_ID: &str = "claim by id";

/// Index and task of a lease without a stored text: it was removed, or belongs to another process.
type Unknown = (usize, TaskId);

impl HttpTasks {
    /// The texts of leases, and the leases without one.
    fn texts<'l>(&self, leases: impl Iterator<Item = &'l TaskLease>) -> (Vec<Option<String>>, Vec<Unknown>) {
        let (mut texts, mut unknown) = (Vec::new(), Vec::new());
        for (index, lease) in leases.enumerate() {
            let text = self.shared.leases.text(lease);
            if text.is_none() {
                unknown.push((index, lease.id));
            }
            texts.push(text);
        }
        (texts, unknown)
    }

    /// Inserts the standings of leases without a stored text: they are lost, with the state of their task.
    async fn with_unknown(
        &self,
        mut known: Vec<TaskStanding>,
        unknown: Vec<Unknown>,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError> {
        for (index, id) in unknown {
            let state = self.get(id, deadline).await?.map(|task| task.info.state);
            known.insert(index.min(known.len()), TaskStanding::Lost(state));
        }
        Ok(known)
    }

    fn claim_guard(&self) -> ClaimGuard {
        ClaimGuard::new(self.provider.transport().clone(), self.shared.leases.clone())
    }
}

/// Finishes attempts, claims, or both.
async fn finish_and_claim(
    transport: Arc<Transport>,
    mut finish: Vec<wire::Finish>,
    claim: Option<ClaimTasks>,
) -> Result<wire::Claims, Failure> {
    let count = finish.len();
    let done = if count > MAX_ROWS { None } else { Some(send_one(&transport, &finish, claim.clone()).await) };
    let claims = match done {
        Some(Err(failure)) if failure.is_splittable(count) => None,
        done => done.transpose()?,
    };
    let Some(claims) = claims else {
        // Too large for one request: in halves.
        let rest = finish.split_off(count / 2);
        let mut first = Box::pin(finish_and_claim(transport.clone(), finish, None)).await?;
        let second = Box::pin(finish_and_claim(transport, rest, claim)).await;
        // The first half is done, so the outcome of the whole call is unknown.
        let second = second.map_err(|failure| match failure {
            Failure::Unknown(source) => Failure::Unknown(source),
            failure => Failure::Unknown(Arc::new(failure.into_connection_error())),
        })?;
        first.finished.extend(second.finished);
        return Ok(wire::Claims { finished: first.finished, ..second });
    };
    let finished = transport.rows(claims.finished, count)?;
    Ok(wire::Claims { finished, ..claims })
}

async fn send_one(
    transport: &Transport,
    finish: &[wire::Finish],
    claim: Option<ClaimTasks>,
) -> Result<wire::Claims, Failure> {
    let (finish, has_finish) = (finish.to_vec(), !finish.is_empty());
    let Some(claim) = claim else {
        let request = Request::post("/v1/tasks/finish", &wire::FinishRequest { finish }).map_err(Failure::NotDone)?;
        let wire::Finished { finished } = transport.call_once(request).await?;
        return Ok(wire::Claims { finished, tasks: Vec::new(), next_due: None });
    };
    let claim = ClaimTasks { max: claim.max.min(MAX_ROWS), ..claim };
    let request =
        Request::post("/v1/tasks/claim", &wire::ClaimRequest::new(claim, finish)).map_err(Failure::NotDone)?;
    match transport.call_once(request).await {
        // The leases of a lost answer expire by themselves.
        Err(failure @ Failure::Unknown(_)) if !has_finish => Err(Failure::NotDone(failure.into_connection_error())),
        claimed => claimed,
    }
}

#[async_trait]
impl TaskStore for HttpTasks {
    fn store_name(&self) -> &'static str {
        PROVIDER
    }

    fn routes(&self) -> &TaskRoutes {
        &self.shared.routes
    }

    fn max_payload_bytes(&self) -> usize {
        self.shared.max_payload_bytes
    }

    async fn create(&self, tasks: Vec<NewTask>, deadline: Deadline) -> Result<RowResults<Created>, MessagingError> {
        self.create_all(tasks, deadline).await
    }

    async fn finish_and_claim(
        &self,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<FinishedAndClaimed, MessagingError> {
        const FINISH: &str = "finish";
        self.provider.begin(FINISH, deadline)?;
        if let Some(claim) = &claim {
            claim.check()?;
        }
        let duration = claim.as_ref().map_or(Duration::ZERO, |claim| claim.lease);
        let (texts, unknown) = self.texts(finished.iter().map(|finish| &finish.lease));
        let (mut ended, mut finish) = (Vec::new(), Vec::new());
        for (row, text) in finished.into_iter().zip(texts) {
            row.check(self.shared.max_payload_bytes)?;
            if let Some(text) = text {
                ended.push(row.lease);
                finish.push(wire::Finish::new(text, row.outcome));
            }
        }
        if finish.is_empty() && claim.is_none() {
            let finished = self.with_unknown(Vec::new(), unknown, deadline).await?;
            return Ok(FinishedAndClaimed { finished, ..FinishedAndClaimed::default() });
        }
        let (transport, mut guard) = (self.provider.transport().clone(), self.claim_guard());
        let is_finish_only = claim.is_none();
        let work = async move {
            let done = finish_and_claim(transport, finish, claim).await;
            let claims = done.map_err(|failure| failure.into_error(FINISH, Vec::new()))?;
            let finished = if is_finish_only { only_standings(claims.finished)? } else { standings(claims.finished) };
            let mut claimed = Vec::with_capacity(claims.tasks.len());
            for task in claims.tasks {
                claimed.push(guard.add(task, duration, "claim")?);
            }
            Ok((finished, claimed, claims.next_due, guard))
        };
        let (finished, claimed, next_due, guard) = self.provider.carry_out(FINISH, Vec::new(), deadline, work).await?;
        guard.disarm();
        ended.iter().for_each(|lease| self.shared.leases.remove(lease));
        let finished = self.with_unknown(finished, unknown, deadline).await?;
        Ok(FinishedAndClaimed { finished, claimed, next_due })
    }

    async fn claim_by_id(
        &self,
        ids: &[TaskId],
        lease: Duration,
        worker: &str,
        deadline: Deadline,
    ) -> Result<Vec<ClaimAnswer>, MessagingError> {
        self.provider.begin(CLAIM_BY_ID, deadline)?;
        check_lease(lease)?;
        let mut requests = Vec::new();
        for ids in ids.chunks(wire::MOST_BY_ID) {
            let request = wire::ClaimByIdRequest { ids: ids.to_vec(), lease, worker: worker.to_owned() };
            requests.push((ids.len(), Request::post("/v1/tasks/claim-by-id", &request)?));
        }
        let (transport, mut guard) = (self.provider.transport().clone(), self.claim_guard());
        let work = async move {
            let mut answers = Vec::new();
            for (count, request) in requests {
                let answer: Result<wire::ClaimByIdAnswers, Failure> = transport.call_once(request).await;
                let rows = answer
                    .and_then(|answer| transport.rows(answer.answers, count))
                    .map_err(Failure::into_connection_error)?;
                for row in rows {
                    answers.push(match row {
                        wire::ClaimRow::Claimed(task) => {
                            ClaimAnswer::Claimed(Box::new(guard.add(*task, lease, CLAIM_BY_ID)?))
                        }
                        wire::ClaimRow::NotDue(time) => ClaimAnswer::NotDue(time),
                        wire::ClaimRow::NotClaimable(_) => ClaimAnswer::NotClaimable,
                    });
                }
            }
            Ok((answers, guard))
        };
        let (answers, guard) = self.provider.carry_out(CLAIM_BY_ID, Vec::new(), deadline, work).await?;
        guard.disarm();
        Ok(answers)
    }

    async fn heartbeat(
        &self,
        heartbeats: Vec<Heartbeat>,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError> {
        const HEARTBEAT: &str = "heartbeat";
        self.provider.begin(HEARTBEAT, deadline)?;
        check_lease(lease)?;
        let (texts, unknown) = self.texts(heartbeats.iter().map(|heartbeat| &heartbeat.lease));
        let (mut leases, mut rows) = (Vec::new(), Vec::new());
        for (heartbeat, text) in heartbeats.into_iter().zip(texts) {
            // The server would refuse the row, which would look like a lost lease.
            let progress =
                heartbeat.progress.map(|progress| Progress::new(progress.fraction, progress.text)).transpose()?;
            if let Some(lease) = text {
                leases.push(heartbeat.lease);
                rows.push(wire::Heartbeat { lease, progress });
            }
        }
        let mut standings = Vec::with_capacity(rows.len());
        for (rows, leases) in rows.chunks(MAX_ROWS).zip(leases.chunks(MAX_ROWS)) {
            let request = wire::HeartbeatRequest { heartbeats: rows.to_vec(), extend: lease };
            let request = Request::post("/v1/tasks/heartbeat", &request)?;
            let part: wire::Standings = self.provider.call_once(HEARTBEAT, Vec::new(), request, deadline).await?;
            let part = self.provider.transport().rows(part.standings, rows.len());
            let part = part.map_err(|failure| failure.into_error(HEARTBEAT, Vec::new()))?;
            // Right away: these are extended even if the next request fails.
            for (extended, _) in leases.iter().zip(&part).filter(|(_, standing)| standing.held) {
                self.shared.leases.extend(extended, lease);
            }
            standings.extend(part);
        }
        let known = only_standings(standings)?;
        for (lost, _) in leases.iter().zip(&known).filter(|(_, standing)| !standing.is_held()) {
            self.shared.leases.remove(lost);
        }
        self.with_unknown(known, unknown, deadline).await
    }

    async fn standings(&self, leases: &[TaskLease], deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        const STANDINGS: &str = "standings";
        self.provider.begin(STANDINGS, deadline)?;
        let (texts, unknown) = self.texts(leases.iter());
        let texts: Vec<String> = texts.into_iter().flatten().collect();
        let mut standings = Vec::with_capacity(texts.len());
        for texts in texts.chunks(MAX_ROWS) {
            let request = Request::post("/v1/tasks/standings", &wire::StandingsRequest { leases: texts.to_vec() })?;
            let part: wire::Standings = self.provider.call(STANDINGS, request, deadline).await?;
            standings.extend(
                self.provider.transport().rows(part.standings, texts.len()).map_err(Failure::into_connection_error)?,
            );
        }
        self.with_unknown(only_standings(standings)?, unknown, deadline).await
    }

    async fn lost_leases(&self, _: usize, _: Deadline) -> Result<Vec<LostLease>, MessagingError> {
        Err(self.kept_by_the_server("finds lost leases"))
    }

    async fn reap(&self, _: Vec<Finish>, _: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        Err(self.kept_by_the_server("reaps lost attempts"))
    }

    async fn expire_overdue(&self, _: usize, _: Deadline) -> Result<Vec<TaskId>, MessagingError> {
        Err(self.kept_by_the_server("expires tasks past their deadline"))
    }

    async fn cancel(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<TaskState>, MessagingError> {
        self.provider.begin("cancel", deadline)?;
        Ok(self.each(ids, |id| self.cancel_one(id, deadline)).await)
    }

    async fn run_now(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.provider.begin("run now", deadline)?;
        Ok(self.each(ids, |id| self.run_one_now(id, deadline)).await)
    }

    async fn replay(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        self.provider.begin("replay", deadline)?;
        Ok(self.each(ids, |id| self.replay_one(id, deadline)).await)
    }

    async fn edit_payload(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError> {
        self.edit(id, payload, deadline).await
    }

    async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, MessagingError> {
        let Some(detail) = self.detail("revisions", id, deadline).await? else { return Ok(Vec::new()) };
        let revisions = detail.revisions.into_iter().map(PayloadRevision::try_from);
        revisions.collect::<Result<_, _>>().map_err(self.provider.malformed_answer("revisions"))
    }

    async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, MessagingError> {
        let Some(detail) = self.detail("get", id, deadline).await? else { return Ok(None) };
        detail.into_task().map(Some).map_err(self.provider.malformed_answer("get"))
    }

    async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError> {
        let Some(detail) = self.detail("attempts", id, deadline).await? else { return Ok(Vec::new()) };
        Ok(detail.attempts.into_iter().map(TaskAttempt::from).collect())
    }

    async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError> {
        self.provider.begin("list", deadline)?;
        query.check()?;
        // A query cannot express an empty list of patterns, which matches no task.
        if query.filter.within.as_ref().is_some_and(Vec::is_empty) {
            return Ok(TaskPage { tasks: Vec::new(), next: None });
        }
        let request = Request::get(format!("/v1/tasks?{}", wire::write_query(query)));
        let page: wire::Page = self.provider.call("list", request, deadline).await?;
        page.try_into().map_err(self.provider.malformed_answer("list"))
    }

    async fn counts(&self, deadline: Deadline) -> Result<Vec<TaskCount>, MessagingError> {
        self.provider.begin("count", deadline)?;
        let counts: wire::Counts = self.provider.call("count", Request::get("/v1/tasks/counts"), deadline).await?;
        Ok(counts.by_type.into_iter().map(TaskCount::from).collect())
    }

    async fn enqueue_due(&self, _: usize, _: Deadline) -> Result<Enqueued, MessagingError> {
        Err(self.kept_by_the_server("enqueues due tasks"))
    }

    async fn stranded(&self, _: Duration, _: Deadline) -> Result<Vec<Stranded>, MessagingError> {
        Err(self.kept_by_the_server("finds lost messages of tasks"))
    }

    async fn resend(&self, _: &TaskType, _: usize, _: Duration, _: Deadline) -> Result<usize, MessagingError> {
        Err(self.kept_by_the_server("resends lost messages of tasks"))
    }

    async fn take_outbox(&self, _: usize, _: Duration, _: Deadline) -> Result<OutboxBatch, MessagingError> {
        Err(self.kept_by_the_server("sends its outbox"))
    }

    async fn outbox_sent(&self, _: &[(i64, i64)], _: Deadline) -> Result<(), MessagingError> {
        Err(self.kept_by_the_server("sends its outbox"))
    }

    async fn forget_finished(&self, _: Duration, _: Deadline) -> Result<u64, MessagingError> {
        Err(self.kept_by_the_server("removes finished tasks"))
    }

    async fn subscribe_tasks(&self, notice: TaskNotice, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        self.provider.begin("subscribe", deadline)?;
        let TaskNotice::Claimable(types) = notice else {
            return Err(self.kept_by_the_server("enqueues due tasks"));
        };
        let types = types.iter().map(|task_type| ("type", task_type.as_str()));
        let path = format!("/v1/tasks/wake-ups?{}", url::query(types));
        let closing = self.provider.inner.under_way.closing();
        events::wake_ups(self.provider.transport().clone(), path, closing, deadline).await
    }
}
