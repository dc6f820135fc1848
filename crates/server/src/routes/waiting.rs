//! Actions on waiting messages, one or many: deliver now, dead-letter, delete.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::{
    DeadLetterReason, Deadline, Feature, MessageId, MessagingError, MessagingService, QueueAdmin, QueueName, waiting,
};
use postrider_wire::job::JobKind;
use postrider_wire::message::{BulkMessages, ChosenMessages, DeathRequest};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{OPERATE, find_waiting};
use crate::access::Caller;
use crate::api::schemas::named;
use crate::api::{ApiError, Content, JsonBody, MessagePath, QueuePath, Route, Verb, answer, answer_with, no_content};
use crate::app::App;
use crate::audit::outcome;
use crate::in_flight::InFlight;
use crate::jobs::{Job, check_rate, chunk_size};

/// Upper bound of the ids of one request.
const MAX_NAMED: usize = 10_000;

/// Messages between two checks whether the job is canceled.
const CHUNK: usize = 100;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Messages";
    vec![
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/{id}/deliver-now"),
            (GROUP, "deliverMessageNow"),
            OPERATE,
            "Makes a waiting message due. Behind the head of its ordering key it still waits for that one. A leased message \
             is refused.",
            deliver_now,
        )
        .answers(204, "The message is due", Content::Nothing),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/{id}/dead-letter"),
            (GROUP, "deadLetterWaitingMessage"),
            OPERATE,
            "Dead-letters a waiting message. A leased message is refused.",
            dead_letter,
        )
        .takes(named("Death"))
        .answers(204, "The message is a dead letter", Content::Nothing),
        Route::new(
            (Verb::Delete, "/v1/queues/{queue}/messages/{id}"),
            (GROUP, "deleteMessage"),
            OPERATE,
            "Deletes a waiting message. It is archived as a purged dead letter is. A leased message is refused.",
            delete,
        )
        .answers(204, "The message is deleted", Content::Nothing),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/deliver-now-job"),
            (GROUP, "startDeliverNow"),
            OPERATE,
            "Starts a job that makes waiting messages due, at most 'rate' per second; with 'dry_run', only counts them. \
             Leased messages are skipped.",
            start_deliver_now,
        )
        .takes(named("BulkMessages"))
        .answers(200, "The counts of a dry run", Content::Json(named("ChosenMessages")))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/dead-letter-job"),
            (GROUP, "startDeadLetter"),
            OPERATE,
            "Starts a job that dead-letters waiting messages, at most 'rate' per second; with 'dry_run', only counts them. \
             Leased messages are skipped.",
            start_dead_letter,
        )
        .takes(named("BulkMessages"))
        .answers(200, "The counts of a dry run", Content::Json(named("ChosenMessages")))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/delete-job"),
            (GROUP, "startDelete"),
            OPERATE,
            "Starts a job that deletes waiting messages, at most 'rate' per second; with 'dry_run', only counts them. Leased \
             messages are skipped.",
            start_delete,
        )
        .takes(named("BulkMessages"))
        .answers(200, "The counts of a dry run", Content::Json(named("ChosenMessages")))
        .answers(202, "The job", Content::Json(named("Job"))),
    ]
}

/// An action on a waiting message.
#[derive(Debug, Clone)]
enum Action {
    DeliverNow,
    DeadLetter { reason: DeadLetterReason, error: Option<String> },
    Delete,
}

impl From<DeathRequest> for Action {
    fn from(DeathRequest { reason, error }: DeathRequest) -> Self {
        Self::DeadLetter { reason: reason.into(), error }
    }
}

impl Action {
    async fn apply(&self, app: &App, queue: &QueueName, id: MessageId) -> Result<(), MessagingError> {
        let (provider, deadline) = (&app.provider, Deadline::default());
        match self.clone() {
            Self::DeliverNow => provider.deliver_now(queue, id, deadline).await,
            Self::DeadLetter { reason, error } => {
                provider.dead_letter_waiting(queue, id, reason, error, deadline).await
            }
            Self::Delete => provider.delete_waiting(queue, id, deadline).await,
        }
    }

    /// Name in the audit log.
    fn name(&self) -> &'static str {
        match self {
            Self::DeliverNow => "deliver_message_now",
            Self::DeadLetter { .. } => "dead_letter_message",
            Self::Delete => "delete_message",
        }
    }

    /// Name of the bulk action in the audit log.
    fn name_of_many(&self) -> &'static str {
        match self {
            Self::DeliverNow => "deliver_messages_now",
            Self::DeadLetter { .. } => "dead_letter_messages",
            Self::Delete => "delete_messages",
        }
    }

    fn kind(&self) -> JobKind {
        match self {
            Self::DeliverNow => JobKind::DeliverNow,
            Self::DeadLetter { .. } => JobKind::DeadLetter,
            Self::Delete => JobKind::Delete,
        }
    }

    fn detail(&self, mut detail: Value) -> Value {
        if let Self::DeadLetter { reason, .. } = self {
            detail["reason"] = json!(reason.as_str());
        }
        detail
    }
}

/// Takes an action on one message, with an entry in the audit log.
async fn act(
    app: &App,
    caller: &Caller,
    queue: &QueueName,
    id: MessageId,
    action: Action,
) -> Result<Response, ApiError> {
    let audited = app.audit.begin(caller, action.name(), queue.as_str(), action.detail(json!({ "id": id }))).await?;
    let done = action.apply(app, queue, id).await;
    app.audit.finish(audited, outcome(&done, |()| json!("done"))).await;
    done?;
    Ok(no_content())
}

async fn deliver_now(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
) -> Result<Response, ApiError> {
    act(&app, &caller, &queue, id, Action::DeliverNow).await
}

async fn dead_letter(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
    JsonBody(request): JsonBody<DeathRequest>,
) -> Result<Response, ApiError> {
    act(&app, &caller, &queue, id, request.into()).await
}

async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
) -> Result<Response, ApiError> {
    act(&app, &caller, &queue, id, Action::Delete).await
}

/// Returns the selected messages. Ids are looked up in a dry run only: a job itself counts the ones it skips.
async fn selected(
    app: &App,
    queue: &QueueName,
    request: &BulkMessages,
    in_flight: &InFlight,
) -> Result<(Vec<MessageId>, ChosenMessages), ApiError> {
    let filter = request.filter()?;
    let Some(named) = &request.ids else {
        let (ids, complete) = find_waiting::chosen(app, queue, &filter, in_flight).await?;
        let messages = ids.len() as u64;
        return Ok((ids, ChosenMessages { messages, complete, ..ChosenMessages::default() }));
    };
    if named.len() > MAX_NAMED {
        return Err(ApiError::malformed(format!("too many ids; send at most {MAX_NAMED}")));
    }
    let mut seen = HashSet::new();
    let mut ids: Vec<MessageId> = named.iter().copied().filter(|id| seen.insert(*id)).collect();
    let all = ids.len();
    let mut complete = true;
    if request.dry_run.unwrap_or_default() {
        let (waiting, is_complete) = find_waiting::chosen(app, queue, &filter, in_flight).await?;
        let waiting: HashSet<MessageId> = waiting.into_iter().collect();
        ids.retain(|id| waiting.contains(id));
        complete = is_complete;
    }
    let (messages, skipped) = (ids.len() as u64, (all - ids.len()) as u64);
    Ok((ids, ChosenMessages { messages, skipped, complete, dry_run: false }))
}

async fn start(
    app: &Arc<App>,
    caller: &Caller,
    queue: QueueName,
    in_flight: &InFlight,
    (action, request): (Action, BulkMessages),
) -> Result<Response, ApiError> {
    app.provider.capabilities().require(Feature::WaitingMessages)?;
    check_rate(request.rate)?;
    if request.dry_run.unwrap_or_default() {
        let (_, chosen) = selected(app, &queue, &request, in_flight).await?;
        return answer(&ChosenMessages { dry_run: true, ..chosen });
    }
    app.jobs.check_room()?;
    let (ids, _) = selected(app, &queue, &request, in_flight).await?;
    let detail = action.detail(json!({
        "messages": ids.len(),
        "state": request.state,
        "key": request.key,
        "header": request.header,
        "since": request.since,
        "before": request.before,
    }));
    let audited = app.audit.begin(caller, action.name_of_many(), queue.as_str(), detail).await?;
    let (own, rate, of) = (app.clone(), request.rate, queue.clone());
    let job = app.jobs.begin(caller, action.kind(), Some(queue), move |job| async move {
        job.set_total(ids.len());
        let done = act_on_all(&own, &of, &action, &ids, rate, &job).await;
        let view = job.view();
        own.audit.finish(audited, outcome(&done, |()| json!({ "done": view.done, "skipped": view.skipped }))).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Takes an action on messages, one after the other.
async fn act_on_all(
    app: &App,
    queue: &QueueName,
    action: &Action,
    ids: &[MessageId],
    rate: Option<f64>,
    job: &Job,
) -> Result<(), MessagingError> {
    let (mut done, mut skipped, began) = (0, 0, Instant::now());
    for ids in ids.chunks(chunk_size(rate, CHUNK)) {
        if !job.wait_for_rate(began, done + skipped, rate).await {
            break;
        }
        for id in ids {
            match action.apply(app, queue, *id).await {
                Ok(()) => done += 1,
                // It is leased, or was removed.
                Err(MessagingError::MessageLeased { .. } | MessagingError::MessageNotFound { .. }) => skipped += 1,
                Err(error) => {
                    job.progress(done, skipped);
                    return Err(error);
                }
            }
        }
        job.progress(done, skipped);
    }
    Ok(())
}

/// Fails on a reason or an error if the action is not dead-lettering.
fn check_no_reason(request: &BulkMessages) -> Result<(), ApiError> {
    match request.reason.is_some() || request.error.is_some() {
        true => Err(MessagingError::invalid("reason", "only dead-lettering takes reason and error").into()),
        false => Ok(()),
    }
}

async fn start_deliver_now(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(request): JsonBody<BulkMessages>,
) -> Result<Response, ApiError> {
    check_no_reason(&request)?;
    start(&app, &caller, queue, &in_flight, (Action::DeliverNow, request)).await
}

async fn start_dead_letter(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(mut request): JsonBody<BulkMessages>,
) -> Result<Response, ApiError> {
    let reason =
        request.reason.take().ok_or_else(|| MessagingError::invalid("reason", "it is missing; use one word"))?;
    let (reason, error) = waiting::check_death(reason.into(), request.error.take())?;
    start(&app, &caller, queue, &in_flight, (Action::DeadLetter { reason, error }, request)).await
}

async fn start_delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(request): JsonBody<BulkMessages>,
) -> Result<Response, ApiError> {
    check_no_reason(&request)?;
    start(&app, &caller, queue, &in_flight, (Action::Delete, request)).await
}
