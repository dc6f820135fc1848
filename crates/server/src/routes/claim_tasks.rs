//! Tasks: the requests of workers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use futures_util::StreamExt;
use postrider::task::{
    ClaimAnswer, ClaimTasks, ClaimedTask, Finish, FinishedAndClaimed, Heartbeat, TaskNotice, TaskOutcome, TaskStanding,
};
use postrider::{Deadline, MessagingError, TaskId, TaskStore, TaskType, Timestamp};
use postrider_wire::receive::LONGEST_WAIT;
use postrider_wire::task::{
    self as wire, ClaimByIdAnswers, ClaimByIdRequest, ClaimRequest, ClaimRow, FinishRequest, Finished,
    HeartbeatRequest, MOST_BY_ID, Standing, Standings, StandingsRequest,
};
use postrider_wire::worker::WorkerKind;
use serde::Serialize;
use tokio::time::Instant;

use super::CONSUME;
use super::events::wake_stream;
use super::settle::split;
use crate::access::Caller;
use crate::api::schemas::{list, named, only, text};
use crate::api::{ApiError, Content, JsonBody, Params, Route, Verb, answer};
use crate::app::App;
use crate::edge::Peer;
use crate::in_flight::InFlight;
use crate::leases::{self, Handover, run_to_completion};
use crate::metrics::AttemptOutcome;
use crate::receipts::OpenedLease;
use crate::row_sizes::{AnswerSpace, BY_ID};
use crate::workers::{WorkerRequest, check_name};

/// Polling interval of a waiting claim without hints.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

const MAX_CLAIMED: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Working on tasks";
    vec![
        Route::new(
            (Verb::Post, "/v1/tasks/claim"),
            (GROUP, "claimTasks"),
            CONSUME,
            "Finishes attempts, if any are given, then claims due tasks; with 'wait', waits for the first one.",
            claim,
        )
        .takes(named("Claim"))
        .answers(200, "The results of the attempts, and the claimed tasks", Content::Json(named("Claimed"))),
        Route::new(
            (Verb::Post, "/v1/tasks/claim-by-id"),
            (GROUP, "claimTasksById"),
            CONSUME,
            "Claims tasks by id, for workers whose task queue delivers ids.",
            claim_by_id,
        )
        .takes(named("ClaimById"))
        .answers(200, "The result of each", Content::Json(only("answers", list(named("ClaimAnswer"))))),
        Route::new((Verb::Post, "/v1/tasks/finish"), (GROUP, "finishTasks"), CONSUME, "Finishes attempts.", finish)
            .takes(named("FinishTasks"))
            .answers(200, "Whether each was still held", Content::Json(only("finished", list(named("Standing"))))),
        Route::new(
            (Verb::Post, "/v1/tasks/heartbeat"),
            (GROUP, "heartbeatTasks"),
            CONSUME,
            "Extends leases of tasks to 'extend' from now, and records progress. A lost lease has its cause: the task may \
             have been canceled.",
            heartbeat,
        )
        .takes(named("Heartbeats"))
        .answers(200, "Whether each is still held", Content::Json(only("standings", list(named("Standing"))))),
        Route::new(
            (Verb::Post, "/v1/tasks/standings"),
            (GROUP, "checkTasks"),
            CONSUME,
            "Whether leases of tasks are still held. Changes nothing.",
            standings,
        )
        .takes(named("Leases"))
        .answers(200, "Whether each is still held", Content::Json(only("standings", list(named("Standing"))))),
        Route::new(
            (Verb::Get, "/v1/tasks/wake-ups"),
            (GROUP, "watchTasks"),
            CONSUME,
            "Hints that a task of one of these types may be claimable.",
            wake_ups,
        )
        .parameters("type", text(), "The task types of the worker")
        .answers(200, "An event 'wake' for each hint", Content::Events),
    ]
}

/// The end of an attempt, as a worker requests it.
#[derive(Debug)]
struct End {
    id: TaskId,
    task_type: TaskType,
    outcome: AttemptOutcome,
    /// Error of a failed attempt.
    error: Option<String>,
    /// Time of the claim.
    began: Option<Timestamp>,
}

/// Returns the types of the ended tasks.
fn types_of(ends: &[End]) -> BTreeSet<&TaskType> {
    ends.iter().map(|end| &end.task_type).collect()
}

fn check_count(leases: usize) -> Result<(), ApiError> {
    match leases <= MAX_CLAIMED {
        true => Ok(()),
        false => Err(ApiError::malformed(format!("too many leases; send at most {MAX_CLAIMED} with one request"))),
    }
}

impl App {
    /// Opens a worker's lease, if the token covers the task.
    fn lease(&self, caller: &Caller, shown: &str) -> Result<OpenedLease, MessagingError> {
        let opened = self.seal.open_lease(shown)?;
        let task_type = &opened.task_type;
        if !self.may_use_type(caller, task_type) {
            let why =
                format!("it is for a task of type '{task_type}', which the token does not cover; use one that does");
            return Err(MessagingError::invalid("lease", why));
        }
        Ok(opened)
    }

    /// Checks the end of an attempt and adds it to `ends`, from which it is counted once it is done.
    fn end(&self, caller: &Caller, request: wire::Finish, ends: &mut Vec<End>) -> Result<Finish, MessagingError> {
        let (lease, outcome) = request.into_outcome()?;
        let OpenedLease { lease, task_type, began } = self.lease(caller, &lease)?;
        let finish = Finish { lease, outcome };
        finish.check(self.client().store().max_payload_bytes())?;
        let outcome = match &finish.outcome {
            TaskOutcome::Succeeded { .. } => AttemptOutcome::Succeeded,
            TaskOutcome::Retry { .. } => AttemptOutcome::Retried,
            TaskOutcome::Dead { .. } => AttemptOutcome::Dead,
            TaskOutcome::Released => AttemptOutcome::Released,
        };
        let error = match &finish.outcome {
            TaskOutcome::Retry { error, .. } | TaskOutcome::Dead { error, .. } => Some(error.clone()),
            TaskOutcome::Succeeded { .. } | TaskOutcome::Released => None,
        };
        ends.push(End { id: lease.id, task_type, outcome, error, began });
        Ok(finish)
    }

    /// Counts ended attempts, and logs failed ones as a worker does: a retry as a warning, a dead task as an error.
    fn record_ends(&self, ends: &[End], standings: &[TaskStanding]) {
        let now = Timestamp::now();
        for (End { id, task_type, outcome, error, began }, standing) in ends.iter().zip(standings) {
            let outcome = match standing {
                TaskStanding::Held => *outcome,
                // A retry was requested, but the attempts are used up.
                TaskStanding::Spent => AttemptOutcome::Dead,
                TaskStanding::Lost(_) => continue,
            };
            self.metrics.task_ended(task_type, outcome, began.map(|began| now.since(began)));
            match outcome {
                AttemptOutcome::Retried => tracing::warn!(%task_type, %id, error, "a task failed and is retried"),
                AttemptOutcome::Dead => tracing::error!(%task_type, %id, error, "a task is dead"),
                AttemptOutcome::Succeeded | AttemptOutcome::Released => {}
            }
        }
    }

    /// Number of tasks to claim next.
    fn task_chunk_rows(&self, types: &[TaskType], wanted: usize, answer: &AnswerSpace) -> usize {
        let most = self.client().store().max_payload_bytes();
        self.task_sizes.rows_to_claim(types.iter().map(TaskType::as_str), wanted, most, answer)
    }

    /// Expected bytes of a number of tasks.
    fn expected_of_tasks(&self, types: &[TaskType], rows: usize) -> usize {
        let most = self.client().store().max_payload_bytes();
        rows.saturating_mul(self.task_sizes.size(types.iter().map(TaskType::as_str), most))
    }

    /// Expected bytes of a task of an unknown type.
    pub(super) fn size_by_id(&self) -> usize {
        self.task_sizes.size([BY_ID], self.client().store().max_payload_bytes())
    }

    fn claimed(&self, task: ClaimedTask) -> wire::Claimed {
        wire::Claimed::new(self.seal.seal_lease(&task.lease, &task.task_type), task)
    }
}

/// Merges the store's standings with the refused rows.
fn standings_of(rows: Vec<Result<(), MessagingError>>, standings: Vec<TaskStanding>) -> Vec<Standing> {
    let mut standings = standings.into_iter();
    let lost = || MessagingError::OutcomeUnknown { operation: "finish", ids: Vec::new(), source: None };
    let row = |row: Result<(), MessagingError>| match row.and_then(|()| standings.next().ok_or_else(lost)) {
        Ok(standing) => Standing::from(standing),
        Err(error) => Standing::refused(&error),
    };
    rows.into_iter().map(row).collect()
}

/// Returns an answer that hands the leases over once it is flushed; otherwise they are released uncounted.
fn leased<T: Serialize>(value: &T, handover: Handover, peer: &Peer) -> Result<Response, ApiError> {
    let written = serde_json::to_vec(value).map_err(|error| ApiError::malformed(error.to_string()))?;
    Ok(leases::response(vec![written.into()], handover, peer.unflushed.clone()))
}

async fn claim(
    State(app): State<Arc<App>>,
    caller: Caller,
    peer: Option<Extension<Peer>>,
    in_flight: InFlight,
    JsonBody(request): JsonBody<ClaimRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    check_name(&request.worker)?;
    if request.max > MAX_CLAIMED {
        return Err(ApiError::malformed(format!("invalid 'max'; claim at most {MAX_CLAIMED} tasks at once")));
    }
    if request.wait > LONGEST_WAIT {
        return Err(ApiError::malformed(format!("invalid 'wait'; use at most {} s", LONGEST_WAIT.as_secs())));
    }
    for task_type in &request.types {
        app.check_type(&caller, task_type)?;
    }
    let (types, until) = (request.types.clone(), Instant::now() + request.wait);
    let does_wait = !request.wait.is_zero() && request.max > 0;
    let wanted = request.max;
    let claim = ClaimTasks { max: app.task_chunk_rows(&types, wanted, &AnswerSpace::default()), ..request.claim() };
    let mut ends = Vec::new();
    let (finished, refused) = split(request.finish.into_iter().map(|end| app.end(&caller, end, &mut ends)).collect());
    let has_ended = !refused.is_empty();
    let queues: Vec<_> = types.iter().filter_map(|one| app.client().store().routes().queue(one).ok()).collect();
    let worker =
        WorkerRequest { kind: WorkerKind::Task, caller: &caller.key, name: &claim.worker, address: &peer.address };
    // Recorded even if no task is due, so that the idle worker is listed.
    let _waiting = app.workers.begin_request(worker, &queues);
    // Before the claim, so that a hint between claim and wait is not missed.
    let mut hints = match does_wait {
        true => app.client().store().subscribe_tasks(TaskNotice::Claimable(types), Deadline::default()).await.ok(),
        false => None,
    };
    let expected = app.expected_of_tasks(&claim.types, claim.max);
    let first = match in_flight.grow(expected).await {
        Ok(()) => Claiming { claim: claim.clone(), wanted, expected, in_flight: in_flight.clone() },
        Err(error) if finished.is_empty() => return Err(error),
        // Finished without room all the same, as it frees memory.
        Err(_) => {
            let nothing = ClaimTasks { max: 0, ..claim.clone() };
            Claiming { claim: nothing, wanted: 0, expected: 0, in_flight: in_flight.clone() }
        }
    };
    let (finished, mut got) = take(&app, finished, first).await?;
    app.record_ends(&ends, &finished);
    while does_wait && got.tasks.is_empty() {
        let now = Instant::now();
        let due = got.next_due.map_or(POLL_INTERVAL, |due| due.clamp(Duration::from_millis(1), POLL_INTERVAL));
        let next = until.min(now + due);
        if now >= until || app.stop.is_cancelled() {
            break;
        }
        let hint = async {
            match &mut hints {
                Some(hints) => hints.next().await,
                None => std::future::pending().await,
            }
        };
        let is_over = tokio::select! {
            hint = hint => hint.is_none(),
            () = tokio::time::sleep_until(next) => false,
            () = app.stop.cancelled() => false,
        };
        if is_over {
            hints = None;
        }
        if !in_flight.try_grow(expected) {
            got.next_due = None;
            continue;
        }
        let again = Claiming { claim: claim.clone(), wanted, expected, in_flight: in_flight.clone() };
        match take(&app, Vec::new(), again).await {
            Ok((_, again)) => got = again,
            // Results of finished attempts must be returned; the next claim fails with the same error.
            Err(error) if has_ended => {
                tracing::warn!(%error, "tasks could not be claimed after attempts were finished");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if does_wait && let Err(refusal) = app.check_still(&caller, request.wait).await {
        if !has_ended {
            return Err(refusal);
        }
        // Results of finished attempts must be returned; the next request is refused.
        got = Gathered { tasks: Vec::new(), next_due: None, handover: Handover::tasks(Vec::new(), &app) };
    }
    let Gathered { tasks, next_due, handover } = got;
    if has_ended || !tasks.is_empty() {
        let now = Timestamp::now();
        tasks.iter().for_each(|task| app.metrics.task_claimed(&task.task_type, now.since(task.scheduled_for)));
        let mut changed = types_of(&ends);
        changed.extend(tasks.iter().map(|task| &task.task_type));
        app.live.tasks_changed(changed);
    }
    let finished = standings_of(refused, finished);
    let tasks = tasks.into_iter().map(|task| app.claimed(task)).collect();
    leased(&wire::Claims { finished, tasks, next_due }, handover, &peer)
}

/// Finishes attempts and claims tasks. Tasks claimed for a worker that has left are released.
async fn take(
    app: &Arc<App>,
    finished: Vec<Finish>,
    claiming: Claiming,
) -> Result<(Vec<TaskStanding>, Gathered), MessagingError> {
    let own = app.clone();
    let taken = run_to_completion(app, async move {
        let claim = (claiming.claim.max > 0).then(|| claiming.claim.clone());
        let mut got = own.client().store().finish_and_claim(finished, claim, Deadline::default()).await?;
        let standings = std::mem::take(&mut got.finished);
        Ok((standings, gather(&own, claiming, got).await))
    });
    taken.await.unwrap_or_else(|| Err(lost_claim()))
}

fn lost_claim() -> MessagingError {
    MessagingError::OutcomeUnknown { operation: "claim", ids: Vec::new(), source: None }
}

/// A claim: its first chunk, the requested number of tasks, and the reserved bytes.
struct Claiming {
    claim: ClaimTasks,
    wanted: usize,
    expected: usize,
    in_flight: InFlight,
}

/// Claimed tasks with the handover of their leases.
struct Gathered {
    tasks: Vec<ClaimedTask>,
    next_due: Option<Duration>,
    handover: Handover,
}

/// Claims more after the first chunk, until there are as many tasks as requested, as fit into an answer or as are due.
async fn gather(app: &Arc<App>, claiming: Claiming, mut got: FinishedAndClaimed) -> Gathered {
    let Claiming { mut claim, wanted, mut expected, in_flight } = claiming;
    let (mut tasks, mut space, store) = (Vec::new(), AnswerSpace::default(), app.client().store());
    let handover = |tasks: &[ClaimedTask]| Handover::tasks(tasks.iter().map(|task| task.lease).collect(), app);
    loop {
        let is_last = got.claimed.len() < claim.max;
        in_flight.correct(expected, got.claimed.iter().map(|task| task.payload.len()).sum());
        app.task_sizes.record(got.claimed.iter().map(|task| (task.task_type.as_str(), task.payload.len())));
        let surplus = space.take(&mut got.claimed, |task| task.payload.len());
        drop(handover(&surplus));
        tasks.append(&mut got.claimed);
        let is_full = !surplus.is_empty() || space.is_full();
        if is_last || is_full || tasks.len() >= wanted || app.stop.is_cancelled() {
            break;
        }
        claim.max = app.task_chunk_rows(&claim.types, wanted - tasks.len(), &space);
        expected = app.expected_of_tasks(&claim.types, claim.max);
        if claim.max == 0 || !in_flight.try_grow(expected) {
            break;
        }
        match store.claim(claim.clone(), Deadline::default()).await {
            Ok(more) => got = more,
            Err(error) => {
                tracing::debug!(%error, "a claim ended early and may have missed due tasks");
                break;
            }
        }
    }
    Gathered { handover: handover(&tasks), tasks, next_due: got.next_due }
}

async fn claim_by_id(
    State(app): State<Arc<App>>,
    caller: Caller,
    peer: Option<Extension<Peer>>,
    in_flight: InFlight,
    JsonBody(ClaimByIdRequest { ids, lease, worker }): JsonBody<ClaimByIdRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    check_name(&worker)?;
    if ids.len() > MOST_BY_ID {
        return Err(ApiError::malformed(format!("too many ids; claim at most {MOST_BY_ID} tasks by id at once")));
    }
    if caller.queues.is_some() {
        for id in &ids {
            app.check_task(&caller, *id).await?;
        }
    }
    let expected = ids.len().saturating_mul(app.size_by_id());
    in_flight.grow(expected).await?;
    let own = app.clone();
    let taken = run_to_completion(&app, async move {
        let answers = own.client().store().claim_by_id(&ids, lease, &worker, Deadline::default()).await?;
        let claimed = |answer: &ClaimAnswer| match answer {
            ClaimAnswer::Claimed(task) => Some(task.lease),
            ClaimAnswer::NotDue(_) | ClaimAnswer::NotClaimable => None,
        };
        let handover = Handover::tasks(answers.iter().filter_map(claimed).collect(), &own);
        Ok((answers, handover))
    });
    let (answers, handover) = taken.await.unwrap_or_else(|| Err(lost_claim()))?;
    let claimed = answers.iter().filter_map(|answer| match answer {
        ClaimAnswer::Claimed(task) => Some(task),
        ClaimAnswer::NotDue(_) | ClaimAnswer::NotClaimable => None,
    });
    let claimed: Vec<_> = claimed.collect();
    in_flight.correct(expected, claimed.iter().map(|task| task.payload.len()).sum());
    app.task_sizes.record(claimed.iter().map(|task| (BY_ID, task.payload.len())));
    let now = Timestamp::now();
    claimed.iter().for_each(|task| app.metrics.task_claimed(&task.task_type, now.since(task.scheduled_for)));
    app.live.tasks_changed(claimed.iter().map(|task| &task.task_type));
    let row = |answer| ClaimRow::new(answer, |task| app.seal.seal_lease(&task.lease, &task.task_type));
    leased(&ClaimByIdAnswers { answers: answers.into_iter().map(row).collect() }, handover, &peer)
}

async fn finish(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<FinishRequest>,
) -> Result<Response, ApiError> {
    check_count(request.finish.len())?;
    let mut ends = Vec::new();
    let (finished, refused) = split(request.finish.into_iter().map(|end| app.end(&caller, end, &mut ends)).collect());
    let standings = app.client().store().finish(finished, Deadline::default()).await?;
    app.record_ends(&ends, &standings);
    app.live.tasks_changed(types_of(&ends));
    answer(&Finished { finished: standings_of(refused, standings) })
}

async fn heartbeat(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<HeartbeatRequest>,
) -> Result<Response, ApiError> {
    check_count(request.heartbeats.len())?;
    let mut changed = BTreeSet::new();
    let beat = |request: wire::Heartbeat| {
        let OpenedLease { lease, task_type, .. } = app.lease(&caller, &request.lease)?;
        changed.insert(task_type);
        Ok(Heartbeat { lease, progress: request.checked_progress()? })
    };
    let (beats, refused) = split(request.heartbeats.into_iter().map(beat).collect());
    let standings = app.client().store().heartbeat(beats, request.extend, Deadline::default()).await?;
    app.live.tasks_changed(&changed);
    answer(&Standings { standings: standings_of(refused, standings) })
}

async fn standings(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(StandingsRequest { leases }): JsonBody<StandingsRequest>,
) -> Result<Response, ApiError> {
    check_count(leases.len())?;
    let own = |lease: &String| app.lease(&caller, lease).map(|opened| opened.lease);
    let (leases, refused) = split(leases.iter().map(own).collect());
    let standings = app.client().store().standings(&leases, Deadline::default()).await?;
    answer(&Standings { standings: standings_of(refused, standings) })
}

async fn wake_ups(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    let types = params.all("type").map(TaskType::new).collect::<Result<Vec<_>, _>>()?;
    if types.is_empty() {
        return Err(ApiError::malformed("missing parameter 'type'; name the task types to wait for"));
    }
    for task_type in &types {
        app.check_type(&caller, task_type)?;
    }
    let hints = app.client().store().subscribe_tasks(TaskNotice::Claimable(types), Deadline::default()).await?;
    Ok(wake_stream(&app, caller, hints.boxed()))
}
