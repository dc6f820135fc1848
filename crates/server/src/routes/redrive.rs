//! Dead letters: redrive and purge.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::{
    DeadLetterSelection, DeadLetters, Deadline, ErrorSource, MessageId, MessagingError, QueueName, Redrive,
    RedriveReport,
};
use postrider_wire::dead_letter::{Choice, PurgeRequest, RedriveJobRequest, RedriveRequest, Redriven};
use postrider_wire::job::JobKind;
use postrider_wire::queue::Purged;
use serde_json::json;
use tokio::time::Instant;

use super::OPERATE;
use super::find_dead_letters::{check, matching};
use crate::access::Caller;
use crate::api::schemas::named;
use crate::api::{ApiError, Content, JsonBody, QueuePath, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::audit::outcome;
use crate::in_flight::InFlight;
use crate::jobs::{Job, check_rate, chunk_size};

/// Dead letters redriven by one call to the store.
const CHUNK: usize = 100;

/// Dead letters purged by id in one call to the store.
const MAX_PURGED: usize = 500;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Dead letters";
    vec![
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/dead-letters/redrive"),
            (GROUP, "redriveDeadLetters"),
            OPERATE,
            "Redrives dead letters, all at once; with 'dry_run', only lists them.",
            redrive,
        )
        .takes(named("Redrive"))
        .answers(200, "The redriven and the skipped dead letters", Content::Json(named("Redriven"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/dead-letters/redrive-job"),
            (GROUP, "startRedrive"),
            OPERATE,
            "Starts a job that redrives dead letters, at most 'rate' per second.",
            start,
        )
        .takes(named("RedriveJob"))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/dead-letters/purge"),
            (GROUP, "purgeDeadLetters"),
            OPERATE,
            "Purges dead letters; with 'dry_run', only counts them.",
            purge,
        )
        .takes(named("Purge"))
        .answers(200, "The number of purged dead letters", Content::Json(named("Purged"))),
    ]
}

/// Returns the store's selection for a choice. Filters that stores do not support are resolved to ids here.
async fn selection(
    app: &App,
    queue: &QueueName,
    choice: &Choice,
    in_flight: &InFlight,
) -> Result<DeadLetterSelection, ApiError> {
    match choice {
        Choice::Filter(filter) if !filter.is_selection() => {
            Ok(DeadLetterSelection::Ids(matching(app, queue, filter, in_flight).await?))
        }
        choice => Ok(choice.selection()),
    }
}

/// Checks the filter of a choice.
fn checked(choice: Choice) -> Result<Choice, ApiError> {
    match choice {
        Choice::Filter(filter) => Ok(Choice::Filter(check(filter)?)),
        ids => Ok(ids),
    }
}

/// Returns the choice as the audit log shows it.
fn chosen(choice: &Choice, to: Option<&QueueName>) -> serde_json::Value {
    match choice {
        Choice::Ids(ids) => json!({ "ids": ids.len(), "to": to }),
        Choice::Filter(filter) => json!({
            "reason": filter.reason,
            "error": filter.error.as_ref().or(filter.error_contains.as_ref()).or(filter.fingerprint.as_ref()),
            "key": filter.ordering_key,
            "id": filter.id_contains,
            "since": filter.since,
            "before": filter.before,
            "text": filter.text,
            "to": to,
        }),
    }
}

fn check_target(caller: &Caller, to: Option<&QueueName>) -> Result<(), ApiError> {
    to.map_or(Ok(()), |to| caller.check_queue(to))
}

async fn redrive(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(request): JsonBody<RedriveRequest>,
) -> Result<Response, ApiError> {
    check_target(&caller, request.to.as_ref())?;
    let choice = checked(request.choice()?)?;
    let dry_run = request.dry_run.unwrap_or_default();
    let selection = selection(&app, &queue, &choice, &in_flight).await?;
    let redrive = Redrive { selection, to: request.to.clone(), dry_run };
    if dry_run {
        let report = app.provider.redrive_dead_letters(&queue, &redrive, Deadline::default()).await?;
        return answer(&Redriven { dry_run: true, ..Redriven::from(report) });
    }
    let audited =
        app.audit.begin(&caller, "redrive_dead_letters", queue.as_str(), chosen(&choice, request.to.as_ref())).await?;
    let done = app.provider.redrive_dead_letters(&queue, &redrive, Deadline::default()).await;
    let shown = |report: &RedriveReport| json!({ "redriven": report.redriven.len(), "skipped": report.skipped.len() });
    app.audit.finish(audited, outcome(&done, shown)).await;
    answer(&Redriven::from(done?))
}

async fn start(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(request): JsonBody<RedriveJobRequest>,
) -> Result<Response, ApiError> {
    check_target(&caller, request.to.as_ref())?;
    check_rate(request.rate)?;
    app.jobs.check_room()?;
    let choice = checked(request.choice()?)?;
    let selection = selection(&app, &queue, &choice, &in_flight).await?;
    // The ids are fixed now, so that a message that dies again during the job is not redriven a second time.
    let dry = Redrive { selection, to: request.to.clone(), dry_run: true };
    let report = app.provider.redrive_dead_letters(&queue, &dry, Deadline::default()).await?;
    let audited =
        app.audit.begin(&caller, "redrive_dead_letters", queue.as_str(), chosen(&choice, request.to.as_ref())).await?;
    let (own, to, rate) = (app.clone(), request.to, request.rate);
    let origin = queue.origin();
    let job = app.jobs.begin(&caller, JobKind::Redrive, Some(origin), move |job| async move {
        let done = redrive_all(&own, &queue, report, to, rate, &job).await;
        let view = job.view();
        let shown = |_: &()| json!({ "redriven": view.done, "skipped": view.skipped });
        own.audit.finish(audited, outcome(&done, shown)).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Redrives dead letters in chunks.
async fn redrive_all(
    app: &App,
    queue: &QueueName,
    report: RedriveReport,
    to: Option<QueueName>,
    rate: Option<f64>,
    job: &Job,
) -> Result<(), MessagingError> {
    let ids: Vec<MessageId> = report.redriven;
    let (mut done, mut skipped) = (0, report.skipped.len());
    job.set_total(ids.len() + skipped);
    job.progress(done, skipped);
    let began = Instant::now();
    for ids in ids.chunks(chunk_size(rate, CHUNK)) {
        if !job.wait_for_rate(began, done, rate).await {
            break;
        }
        let redrive = Redrive { selection: DeadLetterSelection::Ids(ids.to_vec()), to: to.clone(), dry_run: false };
        let report = app.provider.redrive_dead_letters(queue, &redrive, Deadline::default()).await?;
        done += report.redriven.len();
        skipped += report.skipped.len();
        job.progress(done, skipped);
    }
    Ok(())
}

async fn purge(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    JsonBody(request): JsonBody<PurgeRequest>,
) -> Result<Response, ApiError> {
    let choice = checked(request.choice()?)?;
    if request.dry_run.unwrap_or_default() {
        let found = match &choice {
            Choice::Filter(filter) if !filter.is_selection() => matching(&app, &queue, filter, &in_flight).await?,
            choice => app.provider.find_dead_letters(&queue, &choice.selection(), None, Deadline::default()).await?,
        };
        return answer(&Purged { purged: found.len() as u64, dry_run: true });
    }
    let selection = selection(&app, &queue, &choice, &in_flight).await?;
    let audited = app.audit.begin(&caller, "purge_dead_letters", queue.as_str(), chosen(&choice, None)).await?;
    let done = purge_all(&app, &queue, selection).await;
    app.audit.finish(audited, outcome(&done, |purged| json!({ "purged": purged }))).await;
    answer(&Purged { purged: done?, dry_run: false })
}

/// Purges the selected dead letters, ids in chunks.
async fn purge_all(app: &App, queue: &QueueName, selection: DeadLetterSelection) -> Result<u64, MessagingError> {
    let DeadLetterSelection::Ids(ids) = selection else {
        return app.provider.purge_dead_letters(queue, &selection, Deadline::default()).await;
    };
    let mut purged = 0;
    for ids in ids.chunks(MAX_PURGED) {
        let selection = DeadLetterSelection::Ids(ids.to_vec());
        purged += match app.provider.purge_dead_letters(queue, &selection, Deadline::default()).await {
            Ok(some) => some,
            Err(error) if purged == 0 => return Err(error),
            // A part is purged already, so the outcome is unknown to the client.
            Err(error) => {
                let source = Some(Arc::new(error) as ErrorSource);
                return Err(MessagingError::OutcomeUnknown {
                    operation: "purge dead letters",
                    ids: Vec::new(),
                    source,
                });
            }
        };
    }
    Ok(purged)
}
