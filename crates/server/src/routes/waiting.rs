//! Messages that wait, acted on by hand, one or many: delivered now, dead-lettered, deleted.

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
use crate::jobs::{Job, check_rate, chunk};

/// Messages that are named with one request.
const MOST_NAMED: usize = 10_000;

/// Messages between two looks whether a job goes on.
const CHUNK: usize = 100;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Messages";
    vec![
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/{id}/deliver-now"),
            (GROUP, "deliverMessageNow"),
            OPERATE,
            "Makes a waiting message due. Behind the head of its key it still waits for its turn. A leased message is \
             refused.",
            deliver_now,
        )
        .answers(204, "It is due", Content::Nothing),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/{id}/dead-letter"),
            (GROUP, "deadLetterWaitingMessage"),
            OPERATE,
            "Moves a waiting message to the dead letters. A leased message is refused.",
            dead_letter,
        )
        .takes(named("Death"))
        .answers(204, "It is a dead letter", Content::Nothing),
        Route::new(
            (Verb::Delete, "/v1/queues/{queue}/messages/{id}"),
            (GROUP, "deleteMessage"),
            OPERATE,
            "Removes a waiting message for good. It is archived as a purged dead letter is. A leased message is refused.",
            delete,
        )
        .answers(204, "It is gone", Content::Nothing),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/deliver-now-job"),
            (GROUP, "startDeliverNow"),
            OPERATE,
            "Begins to make waiting messages due, at most 'rate' a second; with 'dry_run', only tells how many. A leased \
             message is left to its worker. Watch or cancel the job.",
            start_deliver_now,
        )
        .takes(named("BulkMessages"))
        .answers(200, "How many it would be", Content::Json(named("ChosenMessages")))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/dead-letter-job"),
            (GROUP, "startDeadLetter"),
            OPERATE,
            "Begins to move waiting messages to the dead letters, at most 'rate' a second; with 'dry_run', only tells how \
             many. A leased message is left to its worker. Watch or cancel the job.",
            start_dead_letter,
        )
        .takes(named("BulkMessages"))
        .answers(200, "How many it would be", Content::Json(named("ChosenMessages")))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/messages/delete-job"),
            (GROUP, "startDelete"),
            OPERATE,
            "Begins to remove waiting messages for good, at most 'rate' a second; with 'dry_run', only tells how many. A \
             leased message is left to its worker. Watch or cancel the job.",
            start_delete,
        )
        .takes(named("BulkMessages"))
        .answers(200, "How many it would be", Content::Json(named("ChosenMessages")))
        .answers(202, "The job", Content::Json(named("Job"))),
    ]
}

/// What is done with a waiting message.
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
    async fn carry_out(&self, app: &App, queue: &QueueName, id: MessageId) -> Result<(), MessagingError> {
        let (provider, deadline) = (&app.provider, Deadline::default());
        match self.clone() {
            Self::DeliverNow => provider.deliver_now(queue, id, deadline).await,
            Self::DeadLetter { reason, error } => {
                provider.dead_letter_waiting(queue, id, reason, error, deadline).await
            }
            Self::Delete => provider.delete_waiting(queue, id, deadline).await,
        }
    }

    /// What the audit log calls it.
    fn name(&self) -> &'static str {
        match self {
            Self::DeliverNow => "deliver_message_now",
            Self::DeadLetter { .. } => "dead_letter_message",
            Self::Delete => "delete_message",
        }
    }

    /// What the audit log calls it when it is done with many.
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

/// Does something with one message, and keeps it in the audit log.
async fn act(
    app: &App,
    caller: &Caller,
    queue: &QueueName,
    id: MessageId,
    action: Action,
) -> Result<Response, ApiError> {
    let deed = app.audit.begin(caller, action.name(), queue.as_str(), action.detail(json!({ "id": id }))).await?;
    let done = action.carry_out(app, queue, id).await;
    app.audit.done(deed, outcome(&done, |()| json!("done"))).await;
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
    JsonBody(asked): JsonBody<DeathRequest>,
) -> Result<Response, ApiError> {
    act(&app, &caller, &queue, id, asked.into()).await
}

async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
) -> Result<Response, ApiError> {
    act(&app, &caller, &queue, id, Action::Delete).await
}

/// The messages that a request means. Named ones are looked for in a dry run only: an action on them tells which it skips.
async fn meant(
    app: &App,
    queue: &QueueName,
    asked: &BulkMessages,
    in_flight: &InFlight,
) -> Result<(Vec<MessageId>, ChosenMessages), ApiError> {
    let filter = asked.filter()?;
    let Some(named) = &asked.ids else {
        let (ids, complete) = find_waiting::chosen(app, queue, &filter, in_flight).await?;
        let messages = ids.len() as u64;
        return Ok((ids, ChosenMessages { messages, skipped: 0, complete }));
    };
    if named.len() > MOST_NAMED {
        return Err(ApiError::malformed(format!("ids: name at most {MOST_NAMED}")));
    }
    let mut seen = HashSet::new();
    let mut ids: Vec<MessageId> = named.iter().copied().filter(|id| seen.insert(*id)).collect();
    let all = ids.len();
    let mut complete = true;
    if asked.dry_run.unwrap_or_default() {
        let (waiting, is_complete) = find_waiting::chosen(app, queue, &filter, in_flight).await?;
        let waiting: HashSet<MessageId> = waiting.into_iter().collect();
        ids.retain(|id| waiting.contains(id));
        complete = is_complete;
    }
    let (messages, skipped) = (ids.len() as u64, (all - ids.len()) as u64);
    Ok((ids, ChosenMessages { messages, skipped, complete }))
}

async fn start(
    app: &Arc<App>,
    caller: &Caller,
    queue: QueueName,
    in_flight: &InFlight,
    (action, asked): (Action, BulkMessages),
) -> Result<Response, ApiError> {
    app.provider.capabilities().require(Feature::WaitingMessages)?;
    check_rate(asked.rate)?;
    if asked.dry_run.unwrap_or_default() {
        return answer(&meant(app, &queue, &asked, in_flight).await?.1);
    }
    app.jobs.check_room()?;
    let (ids, _) = meant(app, &queue, &asked, in_flight).await?;
    let detail = action.detail(json!({
        "messages": ids.len(),
        "state": asked.state,
        "key": asked.key,
        "header": asked.header,
        "since": asked.since,
        "before": asked.before,
    }));
    let deed = app.audit.begin(caller, action.name_of_many(), queue.as_str(), detail).await?;
    let (own, rate, of) = (app.clone(), asked.rate, queue.clone());
    let job = app.jobs.begin(caller, action.kind(), Some(queue), move |job| async move {
        job.of(ids.len());
        let done = act_on_all(&own, &of, &action, &ids, rate, &job).await;
        let view = job.view();
        own.audit.done(deed, outcome(&done, |()| json!({ "done": view.done, "skipped": view.skipped }))).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Does something with messages, one after the other.
async fn act_on_all(
    app: &App,
    queue: &QueueName,
    action: &Action,
    ids: &[MessageId],
    rate: Option<f64>,
    job: &Job,
) -> Result<(), MessagingError> {
    let (mut done, mut skipped, began) = (0, 0, Instant::now());
    for ids in ids.chunks(chunk(rate, CHUNK)) {
        if !job.goes_on(began, done + skipped, rate).await {
            break;
        }
        for id in ids {
            match action.carry_out(app, queue, *id).await {
                Ok(()) => done += 1,
                // A worker has it, or it is no more.
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

/// Refuses the words of a death where there is none.
fn check_no_death(asked: &BulkMessages) -> Result<(), ApiError> {
    match asked.reason.is_some() || asked.error.is_some() {
        true => Err(MessagingError::invalid("reason", "only dead-lettering takes reason and error").into()),
        false => Ok(()),
    }
}

async fn start_deliver_now(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(asked): JsonBody<BulkMessages>,
) -> Result<Response, ApiError> {
    check_no_death(&asked)?;
    start(&app, &caller, queue, &in_flight, (Action::DeliverNow, asked)).await
}

async fn start_dead_letter(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(mut asked): JsonBody<BulkMessages>,
) -> Result<Response, ApiError> {
    let reason = asked.reason.take().ok_or_else(|| MessagingError::invalid("reason", "say why, in a word"))?;
    let (reason, error) = waiting::check_death(reason.into(), asked.error.take())?;
    start(&app, &caller, queue, &in_flight, (Action::DeadLetter { reason, error }, asked)).await
}

async fn start_delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(asked): JsonBody<BulkMessages>,
) -> Result<Response, ApiError> {
    check_no_death(&asked)?;
    start(&app, &caller, queue, &in_flight, (Action::Delete, asked)).await
}
