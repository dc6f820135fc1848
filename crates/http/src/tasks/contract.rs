//! The contract of a store of tasks, kept by requests.

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

use super::handed::Handed;
use super::{HttpTasks, only_standings, standings};
use crate::failure::Undone;
use crate::transport::{Ask, MOST_ROWS, Transport};
use crate::{PROVIDER, events, url};

const CLAIM_BY_ID: &str = "claim by id";

/// Where a lease stands that is not known here: its text was forgotten, or it is another process's.
type Unknown = (usize, TaskId);

impl HttpTasks {
    /// The texts of leases, and the places of those that have none here.
    fn texts<'l>(&self, leases: impl Iterator<Item = &'l TaskLease>) -> (Vec<Option<String>>, Vec<Unknown>) {
        let (mut texts, mut unknown) = (Vec::new(), Vec::new());
        for (place, lease) in leases.enumerate() {
            let text = self.shared.leases.text(lease);
            if text.is_none() {
                unknown.push((place, lease.id));
            }
            texts.push(text);
        }
        (texts, unknown)
    }

    /// Puts the standings of leases that are not known here between those of the others. They are lost, and the task says
    /// what became of it.
    async fn with_unknown(
        &self,
        mut known: Vec<TaskStanding>,
        unknown: Vec<Unknown>,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError> {
        for (place, id) in unknown {
            let state = self.get(id, deadline).await?.map(|task| task.info.state);
            known.insert(place.min(known.len()), TaskStanding::Lost(state));
        }
        Ok(known)
    }

    fn handed(&self) -> Handed {
        Handed::new(self.provider.transport().clone(), self.shared.leases.clone())
    }
}

/// Ends attempts and claims, or one of the two.
async fn finish_and_claim(
    transport: Arc<Transport>,
    mut finish: Vec<wire::Finish>,
    claim: Option<ClaimTasks>,
) -> Result<wire::Claims, Undone> {
    let asked = finish.len();
    let done = if asked > MOST_ROWS { None } else { Some(ask_once(&transport, &finish, claim.clone()).await) };
    let claims = match done {
        Some(Err(undone)) if undone.is_too_much(asked) => None,
        done => done.transpose()?,
    };
    let Some(claims) = claims else {
        // Too much for one request: in halves.
        let rest = finish.split_off(asked / 2);
        let mut first = Box::pin(finish_and_claim(transport.clone(), finish, None)).await?;
        let second = Box::pin(finish_and_claim(transport, rest, claim)).await;
        // The first half is done: that nothing was done is not true of the whole any more.
        let second = second.map_err(|undone| match undone {
            Undone::Unknown(source) => Undone::Unknown(source),
            undone => Undone::Unknown(Arc::new(undone.into_harmless())),
        })?;
        first.finished.extend(second.finished);
        return Ok(wire::Claims { finished: first.finished, ..second });
    };
    let finished = transport.rows(claims.finished, asked)?;
    Ok(wire::Claims { finished, ..claims })
}

async fn ask_once(
    transport: &Transport,
    finish: &[wire::Finish],
    claim: Option<ClaimTasks>,
) -> Result<wire::Claims, Undone> {
    let (finish, ends_something) = (finish.to_vec(), !finish.is_empty());
    let Some(claim) = claim else {
        let ask = Ask::post("/v1/tasks/finish", &wire::FinishRequest { finish }).map_err(Undone::NotDone)?;
        let wire::Finished { finished } = transport.change(ask).await?;
        return Ok(wire::Claims { finished, tasks: Vec::new(), next_due: None });
    };
    let claim = ClaimTasks { max: claim.max.min(MOST_ROWS), ..claim };
    let ask = Ask::post("/v1/tasks/claim", &wire::ClaimRequest::new(claim, finish)).map_err(Undone::NotDone)?;
    match transport.change(ask).await {
        // What was claimed for an answer that was lost comes back when its lease ends.
        Err(undone @ Undone::Unknown(_)) if !ends_something => Err(Undone::NotDone(undone.into_harmless())),
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
        let lasts = claim.as_ref().map_or(Duration::ZERO, |claim| claim.lease);
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
        let (transport, mut handed) = (self.provider.transport().clone(), self.handed());
        let only_ends = claim.is_none();
        let work = async move {
            let done = finish_and_claim(transport, finish, claim).await;
            let claims = done.map_err(|undone| undone.into_error(FINISH, Vec::new()))?;
            let finished = if only_ends { only_standings(claims.finished)? } else { standings(claims.finished) };
            let mut claimed = Vec::with_capacity(claims.tasks.len());
            for task in claims.tasks {
                claimed.push(handed.take(task, lasts, "claim")?);
            }
            Ok((finished, claimed, claims.next_due, handed))
        };
        let (finished, claimed, next_due, handed) = self.provider.carry_out(FINISH, Vec::new(), deadline, work).await?;
        handed.arrived();
        ended.iter().for_each(|lease| self.shared.leases.forget(lease));
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
            requests.push((ids.len(), Ask::post("/v1/tasks/claim-by-id", &request)?));
        }
        let (transport, mut handed) = (self.provider.transport().clone(), self.handed());
        let work = async move {
            let mut answers = Vec::new();
            for (asked, ask) in requests {
                let said: Result<wire::ClaimByIdAnswers, Undone> = transport.change(ask).await;
                let rows = said.and_then(|said| transport.rows(said.answers, asked)).map_err(Undone::into_harmless)?;
                for row in rows {
                    answers.push(match row {
                        wire::ClaimRow::Claimed(task) => {
                            ClaimAnswer::Claimed(Box::new(handed.take(*task, lease, CLAIM_BY_ID)?))
                        }
                        wire::ClaimRow::NotDue(time) => ClaimAnswer::NotDue(time),
                        wire::ClaimRow::NotClaimable(_) => ClaimAnswer::NotClaimable,
                    });
                }
            }
            Ok((answers, handed))
        };
        let (answers, handed) = self.provider.carry_out(CLAIM_BY_ID, Vec::new(), deadline, work).await?;
        handed.arrived();
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
        let (mut renewed, mut signs) = (Vec::new(), Vec::new());
        for (heartbeat, text) in heartbeats.into_iter().zip(texts) {
            // The server refuses a row with odd progress, which would pass for a lease that is lost.
            let progress = heartbeat.progress.map(|told| Progress::new(told.fraction, told.text)).transpose()?;
            if let Some(lease) = text {
                renewed.push(heartbeat.lease);
                signs.push(wire::Heartbeat { lease, progress });
            }
        }
        let mut said = Vec::with_capacity(signs.len());
        for (signs, leases) in signs.chunks(MOST_ROWS).zip(renewed.chunks(MOST_ROWS)) {
            let request = wire::HeartbeatRequest { heartbeats: signs.to_vec(), extend: lease };
            let ask = Ask::post("/v1/tasks/heartbeat", &request)?;
            let part: wire::Standings = self.provider.change(HEARTBEAT, Vec::new(), ask, deadline).await?;
            let part = self.provider.transport().rows(part.standings, signs.len());
            let part = part.map_err(|undone| undone.into_error(HEARTBEAT, Vec::new()))?;
            // At once: these are renewed even if the next part fails.
            for (held, _) in leases.iter().zip(&part).filter(|(_, standing)| standing.held) {
                self.shared.leases.renew(held, lease);
            }
            said.extend(part);
        }
        let known = only_standings(said)?;
        for (lost, _) in renewed.iter().zip(&known).filter(|(_, standing)| !standing.is_held()) {
            self.shared.leases.forget(lost);
        }
        self.with_unknown(known, unknown, deadline).await
    }

    async fn standings(&self, leases: &[TaskLease], deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        const STANDINGS: &str = "standings";
        self.provider.begin(STANDINGS, deadline)?;
        let (texts, unknown) = self.texts(leases.iter());
        let texts: Vec<String> = texts.into_iter().flatten().collect();
        let mut said = Vec::with_capacity(texts.len());
        for texts in texts.chunks(MOST_ROWS) {
            let ask = Ask::post("/v1/tasks/standings", &wire::StandingsRequest { leases: texts.to_vec() })?;
            let part: wire::Standings = self.provider.look(STANDINGS, ask, deadline).await?;
            said.extend(self.provider.transport().rows(part.standings, texts.len()).map_err(Undone::into_harmless)?);
        }
        self.with_unknown(only_standings(said)?, unknown, deadline).await
    }

    async fn lost_leases(&self, _: usize, _: Deadline) -> Result<Vec<LostLease>, MessagingError> {
        Err(self.kept_by_the_server("looks for lost leases"))
    }

    async fn reap(&self, _: Vec<Finish>, _: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        Err(self.kept_by_the_server("reaps lost attempts"))
    }

    async fn expire_overdue(&self, _: usize, _: Deadline) -> Result<Vec<TaskId>, MessagingError> {
        Err(self.kept_by_the_server("ends tasks that are past their deadline"))
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
        revisions.collect::<Result<_, _>>().map_err(self.provider.garbled("revisions"))
    }

    async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, MessagingError> {
        let Some(detail) = self.detail("get", id, deadline).await? else { return Ok(None) };
        detail.into_task().map(Some).map_err(self.provider.garbled("get"))
    }

    async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError> {
        let Some(detail) = self.detail("attempts", id, deadline).await? else { return Ok(Vec::new()) };
        Ok(detail.attempts.into_iter().map(TaskAttempt::from).collect())
    }

    async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError> {
        self.provider.begin("list", deadline)?;
        query.check()?;
        // What means no task at all cannot be said in a query.
        if query.filter.within.as_ref().is_some_and(Vec::is_empty) {
            return Ok(TaskPage { tasks: Vec::new(), next: None });
        }
        let ask = Ask::get(format!("/v1/tasks?{}", wire::write_query(query)));
        let page: wire::Page = self.provider.look("list", ask, deadline).await?;
        page.try_into().map_err(self.provider.garbled("list"))
    }

    async fn counts(&self, deadline: Deadline) -> Result<Vec<TaskCount>, MessagingError> {
        self.provider.begin("count", deadline)?;
        let counts: wire::Counts = self.provider.look("count", Ask::get("/v1/tasks/counts"), deadline).await?;
        Ok(counts.by_type.into_iter().map(TaskCount::from).collect())
    }

    async fn enqueue_due(&self, _: usize, _: Deadline) -> Result<Enqueued, MessagingError> {
        Err(self.kept_by_the_server("sends due tasks on their way"))
    }

    async fn stranded(&self, _: Duration, _: Deadline) -> Result<Vec<Stranded>, MessagingError> {
        Err(self.kept_by_the_server("looks for lost messages of tasks"))
    }

    async fn resend(&self, _: &TaskType, _: usize, _: Duration, _: Deadline) -> Result<usize, MessagingError> {
        Err(self.kept_by_the_server("sends tasks again whose messages were lost"))
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
            return Err(self.kept_by_the_server("sends due tasks on their way"));
        };
        let types = types.iter().map(|task_type| ("type", task_type.as_str()));
        let path = format!("/v1/tasks/wake-ups?{}", url::query(types));
        let closing = self.provider.inner.under_way.closing();
        events::wake_ups(self.provider.transport().clone(), path, closing, deadline).await
    }
}
