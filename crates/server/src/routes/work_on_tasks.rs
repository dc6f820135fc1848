//! Tasks: what their workers ask.

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
use super::events::wakes;
use super::settle::split;
use crate::access::Caller;
use crate::api::schemas::{list, named, only, text};
use crate::api::{ApiError, Content, JsonBody, Params, Route, Verb, answer};
use crate::app::App;
use crate::edge::Peer;
use crate::in_flight::InFlight;
use crate::leases::{self, Handover, to_its_end};
use crate::meter::Ended;
use crate::portions::{BY_ID, Room};
use crate::receipts::OpenedLease;
use crate::workers::{Asks, check_name};

/// How long a worker that waits goes without a look, when no hint comes.
const LOOK: Duration = Duration::from_secs(1);

const MOST_CLAIMED: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Working on tasks";
    vec![
        Route::new(
            (Verb::Post, "/v1/tasks/claim"),
            (GROUP, "claimTasks"),
            CONSUME,
            "Ends attempts if asked to, then claims tasks that are due, and waits for the first one if asked to.",
            claim,
        )
        .takes(named("Claim"))
        .answers(200, "What became of the attempts, and the tasks", Content::Json(named("Claimed"))),
        Route::new(
            (Verb::Post, "/v1/tasks/claim-by-id"),
            (GROUP, "claimTasksById"),
            CONSUME,
            "Claims these tasks: what a worker does whose queue delivers ids.",
            claim_by_id,
        )
        .takes(named("ClaimById"))
        .answers(200, "What became of each", Content::Json(only("answers", list(named("ClaimAnswer"))))),
        Route::new((Verb::Post, "/v1/tasks/finish"), (GROUP, "finishTasks"), CONSUME, "Ends attempts.", finish)
            .takes(named("FinishTasks"))
            .answers(200, "Whether each was still held", Content::Json(only("finished", list(named("Standing"))))),
        Route::new(
            (Verb::Post, "/v1/tasks/heartbeat"),
            (GROUP, "heartbeatTasks"),
            CONSUME,
            "Lets leases on tasks end so long from now, and tells of progress. A lease that is lost says why: the task \
             may have been canceled.",
            heartbeat,
        )
        .takes(named("Heartbeats"))
        .answers(200, "Whether each is still held", Content::Json(only("standings", list(named("Standing"))))),
        Route::new(
            (Verb::Post, "/v1/tasks/standings"),
            (GROUP, "checkTasks"),
            CONSUME,
            "Whether leases on tasks are still held. Changes nothing.",
            standings,
        )
        .takes(named("Leases"))
        .answers(200, "Whether each is", Content::Json(only("standings", list(named("Standing"))))),
        Route::new(
            (Verb::Get, "/v1/tasks/wake-ups"),
            (GROUP, "watchTasks"),
            CONSUME,
            "Hints that a task of one of these types may be claimable.",
            wake_ups,
        )
        .parameters("type", text(), "The types; all that a worker is for")
        .answers(200, "An event 'wake' for each hint", Content::Events),
    ]
}

/// The end of an attempt that a worker asks for.
#[derive(Debug)]
struct End {
    id: TaskId,
    task_type: TaskType,
    outcome: Ended,
    /// Why it failed.
    error: Option<String>,
    /// When the task was claimed.
    began: Option<Timestamp>,
}

/// The types of the tasks that a request changes.
fn types_of(ends: &[End]) -> BTreeSet<&TaskType> {
    ends.iter().map(|end| &end.task_type).collect()
}

fn check_count(leases: usize) -> Result<(), ApiError> {
    match leases <= MOST_CLAIMED {
        true => Ok(()),
        false => {
            Err(ApiError::malformed(format!("at most {MOST_CLAIMED} leases with one request; send the rest apart")))
        }
    }
}

impl App {
    /// The lease that a worker showed, if its token is for the task.
    fn lease(&self, caller: &Caller, shown: &str) -> Result<OpenedLease, MessagingError> {
        let opened = self.seal.open_lease(shown)?;
        let task_type = &opened.task_type;
        if !self.may_use_type(caller, task_type) {
            let why = format!("it is for a task of type '{task_type}', and the token is not; use one that is");
            return Err(MessagingError::invalid("lease", why));
        }
        Ok(opened)
    }

    /// The end of an attempt, if it can be meant. It is added to those that are counted when they are carried out.
    fn end(&self, caller: &Caller, asked: wire::Finish, ends: &mut Vec<End>) -> Result<Finish, MessagingError> {
        let (lease, outcome) = asked.into_outcome()?;
        let OpenedLease { lease, task_type, began } = self.lease(caller, &lease)?;
        let finish = Finish { lease, outcome };
        finish.check(self.client().store().max_payload_bytes())?;
        let outcome = match &finish.outcome {
            TaskOutcome::Succeeded { .. } => Ended::Succeeded,
            TaskOutcome::Retry { .. } => Ended::Retried,
            TaskOutcome::Dead { .. } => Ended::Dead,
            TaskOutcome::Released => Ended::Released,
        };
        let error = match &finish.outcome {
            TaskOutcome::Retry { error, .. } | TaskOutcome::Dead { error, .. } => Some(error.clone()),
            TaskOutcome::Succeeded { .. } | TaskOutcome::Released => None,
        };
        ends.push(End { id: lease.id, task_type, outcome, error, began });
        Ok(finish)
    }

    /// Counts the attempts that were ended, and logs those that failed as a worker does: a retry is a warning, a death an
    /// error.
    fn note_ends(&self, ends: &[End], standings: &[TaskStanding]) {
        let now = Timestamp::now();
        for (End { id, task_type, outcome, error, began }, standing) in ends.iter().zip(standings) {
            let outcome = match standing {
                TaskStanding::Held => *outcome,
                // The retry that was asked for would have been one too many.
                TaskStanding::Spent => Ended::Dead,
                TaskStanding::Lost(_) => continue,
            };
            self.meter.task_ended(task_type, outcome, began.map(|began| now.since(began)));
            match outcome {
                Ended::Retried => tracing::warn!(%task_type, %id, error, "a task failed and is tried again"),
                Ended::Dead => tracing::error!(%task_type, %id, error, "a task is dead"),
                Ended::Succeeded | Ended::Released => {}
            }
        }
    }

    /// How many tasks of those that are wanted are claimed at once.
    fn portion_of_tasks(&self, types: &[TaskType], wanted: usize, answer: &Room) -> usize {
        let most = self.client().store().max_payload_bytes();
        self.portions_of_tasks.rows(types.iter().map(TaskType::as_str), wanted, most, answer)
    }

    /// The bytes that so many tasks are expected to have.
    fn expected_of_tasks(&self, types: &[TaskType], rows: usize) -> usize {
        let most = self.client().store().max_payload_bytes();
        rows.saturating_mul(self.portions_of_tasks.size(types.iter().map(TaskType::as_str), most))
    }

    /// The bytes that a task is expected to have whose id alone is known.
    pub(super) fn size_by_id(&self) -> usize {
        self.portions_of_tasks.size([BY_ID], self.client().store().max_payload_bytes())
    }

    fn claimed(&self, task: ClaimedTask) -> wire::Claimed {
        wire::Claimed::new(self.seal.seal_lease(&task.lease, &task.task_type), task)
    }
}

/// Puts what the store said of leases between those that it was not asked about.
fn standings_of(asked: Vec<Result<(), MessagingError>>, said: Vec<TaskStanding>) -> Vec<Standing> {
    let mut said = said.into_iter();
    let lost = || MessagingError::OutcomeUnknown { operation: "finish", ids: Vec::new(), source: None };
    let row = |asked: Result<(), MessagingError>| match asked.and_then(|()| said.next().ok_or_else(lost)) {
        Ok(standing) => Standing::from(standing),
        Err(error) => Standing::refused(&error),
    };
    asked.into_iter().map(row).collect()
}

/// An answer whose leases are the worker's once it is written; otherwise the tasks go back, and the attempt is not
/// counted.
fn leased<T: Serialize>(value: &T, handover: Handover, peer: &Peer) -> Result<Response, ApiError> {
    let written = serde_json::to_vec(value).map_err(|error| ApiError::malformed(error.to_string()))?;
    Ok(leases::response(vec![written.into()], handover, peer.unflushed.clone()))
}

async fn claim(
    State(app): State<Arc<App>>,
    caller: Caller,
    peer: Option<Extension<Peer>>,
    in_flight: InFlight,
    JsonBody(asked): JsonBody<ClaimRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    check_name(&asked.worker)?;
    if asked.max > MOST_CLAIMED {
        return Err(ApiError::malformed(format!("max: at most {MOST_CLAIMED} tasks are claimed at once")));
    }
    if asked.wait > LONGEST_WAIT {
        return Err(ApiError::malformed(format!("wait: at most {} s with one request", LONGEST_WAIT.as_secs())));
    }
    for task_type in &asked.types {
        app.check_type(&caller, task_type)?;
    }
    let (types, until) = (asked.types.clone(), Instant::now() + asked.wait);
    let does_wait = !asked.wait.is_zero() && asked.max > 0;
    let wanted = asked.max;
    let claim = ClaimTasks { max: app.portion_of_tasks(&types, wanted, &Room::default()), ..asked.claim() };
    let mut ends = Vec::new();
    let (finished, refused) = split(asked.finish.into_iter().map(|end| app.end(&caller, end, &mut ends)).collect());
    let has_ended = !refused.is_empty();
    let queues: Vec<_> = types.iter().filter_map(|one| app.client().store().routes().queue(one).ok()).collect();
    let asks = Asks { kind: WorkerKind::Task, caller: &caller.key, name: &claim.worker, address: &peer.address };
    // Also while it finds nothing: it is there, and idle.
    let _waiting = app.workers.asks(asks, &queues);
    // Before the look, so that what comes between look and wait is not missed.
    let mut hints = match does_wait {
        true => app.client().store().subscribe_tasks(TaskNotice::Claimable(types), Deadline::default()).await.ok(),
        false => None,
    };
    let expected = app.expected_of_tasks(&claim.types, claim.max);
    let first = match in_flight.grow(expected).await {
        Ok(()) => Claiming { claim: claim.clone(), wanted, expected, in_flight: in_flight.clone() },
        Err(error) if finished.is_empty() => return Err(error),
        // What is done is done all the same: it makes room.
        Err(_) => {
            let nothing = ClaimTasks { max: 0, ..claim.clone() };
            Claiming { claim: nothing, wanted: 0, expected: 0, in_flight: in_flight.clone() }
        }
    };
    let (finished, mut got) = take(&app, finished, first).await?;
    app.note_ends(&ends, &finished);
    while does_wait && got.tasks.is_empty() {
        let now = Instant::now();
        let due = got.next_due.map_or(LOOK, |due| due.clamp(Duration::from_millis(1), LOOK));
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
            // What was ended stays ended, and must be told; the next claim meets the trouble again.
            Err(error) if has_ended => {
                tracing::warn!(%error, "tasks could not be claimed after others were ended");
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if does_wait && let Err(refusal) = app.check_still(&caller, asked.wait).await {
        if !has_ended {
            return Err(refusal);
        }
        // What was ended must be told; the next request is refused as a whole.
        got = Gathered { tasks: Vec::new(), next_due: None, handover: Handover::tasks(Vec::new(), &app) };
    }
    let Gathered { tasks, next_due, handover } = got;
    if has_ended || !tasks.is_empty() {
        let now = Timestamp::now();
        tasks.iter().for_each(|task| app.meter.task_claimed(&task.task_type, now.since(task.scheduled_for)));
        let mut changed = types_of(&ends);
        changed.extend(tasks.iter().map(|task| &task.task_type));
        app.live.tell_of_tasks(changed);
    }
    let finished = standings_of(refused, finished);
    let tasks = tasks.into_iter().map(|task| app.claimed(task)).collect();
    leased(&wire::Claims { finished, tasks, next_due }, handover, &peer)
}

/// Ends attempts and claims tasks. What is claimed for a worker that leaves meanwhile goes back.
async fn take(
    app: &Arc<App>,
    finished: Vec<Finish>,
    claiming: Claiming,
) -> Result<(Vec<TaskStanding>, Gathered), MessagingError> {
    let own = app.clone();
    let taken = to_its_end(app, async move {
        let asked = (claiming.claim.max > 0).then(|| claiming.claim.clone());
        let mut got = own.client().store().finish_and_claim(finished, asked, Deadline::default()).await?;
        let standings = std::mem::take(&mut got.finished);
        Ok((standings, gather(&own, claiming, got).await))
    });
    taken.await.unwrap_or_else(|| Err(lost_claim()))
}

fn lost_claim() -> MessagingError {
    MessagingError::OutcomeUnknown { operation: "claim", ids: Vec::new(), source: None }
}

/// What is claimed, of how many that are wanted, and the bytes that are kept room for.
struct Claiming {
    claim: ClaimTasks,
    wanted: usize,
    expected: usize,
    in_flight: InFlight,
}

/// Tasks that were claimed for a worker, and their leases.
struct Gathered {
    tasks: Vec<ClaimedTask>,
    next_due: Option<Duration>,
    handover: Handover,
}

/// Adds to the tasks that were claimed first until there are as many as are wanted, as fit into an answer or as there are.
async fn gather(app: &Arc<App>, claiming: Claiming, mut got: FinishedAndClaimed) -> Gathered {
    let Claiming { mut claim, wanted, mut expected, in_flight } = claiming;
    let (mut tasks, mut room, store) = (Vec::new(), Room::default(), app.client().store());
    let handover = |tasks: &[ClaimedTask]| Handover::tasks(tasks.iter().map(|task| task.lease).collect(), app);
    loop {
        let is_last = got.claimed.len() < claim.max;
        in_flight.correct(expected, got.claimed.iter().map(|task| task.payload.len()).sum());
        app.portions_of_tasks.saw(got.claimed.iter().map(|task| (task.task_type.as_str(), task.payload.len())));
        let surplus = room.take(&mut got.claimed, |task| task.payload.len());
        drop(handover(&surplus));
        tasks.append(&mut got.claimed);
        let is_full = !surplus.is_empty() || room.is_full();
        if is_last || is_full || tasks.len() >= wanted || app.stop.is_cancelled() {
            break;
        }
        claim.max = app.portion_of_tasks(&claim.types, wanted - tasks.len(), &room);
        expected = app.expected_of_tasks(&claim.types, claim.max);
        if claim.max == 0 || !in_flight.try_grow(expected) {
            break;
        }
        match store.claim(claim.clone(), Deadline::default()).await {
            Ok(more) => got = more,
            Err(error) => {
                tracing::debug!(%error, "a claim has fewer tasks than there may be");
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
        return Err(ApiError::malformed(format!("ids: at most {MOST_BY_ID} tasks are claimed at once by their ids")));
    }
    if caller.queues.is_some() {
        for id in &ids {
            app.check_task(&caller, *id).await?;
        }
    }
    let expected = ids.len().saturating_mul(app.size_by_id());
    in_flight.grow(expected).await?;
    let own = app.clone();
    let taken = to_its_end(&app, async move {
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
    app.portions_of_tasks.saw(claimed.iter().map(|task| (BY_ID, task.payload.len())));
    let now = Timestamp::now();
    claimed.iter().for_each(|task| app.meter.task_claimed(&task.task_type, now.since(task.scheduled_for)));
    app.live.tell_of_tasks(claimed.iter().map(|task| &task.task_type));
    let row = |answer| ClaimRow::new(answer, |task| app.seal.seal_lease(&task.lease, &task.task_type));
    leased(&ClaimByIdAnswers { answers: answers.into_iter().map(row).collect() }, handover, &peer)
}

async fn finish(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<FinishRequest>,
) -> Result<Response, ApiError> {
    check_count(asked.finish.len())?;
    let mut ends = Vec::new();
    let (finished, refused) = split(asked.finish.into_iter().map(|end| app.end(&caller, end, &mut ends)).collect());
    let standings = app.client().store().finish(finished, Deadline::default()).await?;
    app.note_ends(&ends, &standings);
    app.live.tell_of_tasks(types_of(&ends));
    answer(&Finished { finished: standings_of(refused, standings) })
}

async fn heartbeat(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<HeartbeatRequest>,
) -> Result<Response, ApiError> {
    check_count(asked.heartbeats.len())?;
    let mut changed = BTreeSet::new();
    let beat = |asked: wire::Heartbeat| {
        let OpenedLease { lease, task_type, .. } = app.lease(&caller, &asked.lease)?;
        changed.insert(task_type);
        Ok(Heartbeat { lease, progress: asked.checked_progress()? })
    };
    let (beats, refused) = split(asked.heartbeats.into_iter().map(beat).collect());
    let standings = app.client().store().heartbeat(beats, asked.extend, Deadline::default()).await?;
    app.live.tell_of_tasks(&changed);
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
        return Err(ApiError::malformed("parameter 'type': name the types that are waited for"));
    }
    for task_type in &types {
        app.check_type(&caller, task_type)?;
    }
    let hints = app.client().store().subscribe_tasks(TaskNotice::Claimable(types), Deadline::default()).await?;
    Ok(wakes(&app, caller, hints.boxed()))
}
