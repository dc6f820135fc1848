//! Dead letters: bringing them back, and removing them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use postrider::{
    DeadLetterSelection, DeadLetters, Deadline, MessageId, MessagingError, QueueName, Redrive, RedriveReport,
};
use postrider_http::wire::dead_letter::{Choice, PurgeRequest, RedriveJobRequest, RedriveRequest, Redriven};
use postrider_http::wire::job::JobKind;
use postrider_http::wire::queue::Purged;
use serde_json::json;
use tokio::time::Instant;

use super::OPERATE;
use super::dead_letters::each;
use crate::access::Caller;
use crate::api::schemas::named;
use crate::api::{ApiError, Content, JsonBody, QueuePath, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::audit::outcome;
use crate::jobs::{Job, check_rate, chunk};

/// So many go back in one call to the store.
const CHUNK: usize = 100;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Dead letters";
    vec![
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/dead-letters/redrive"),
            (GROUP, "redriveDeadLetters"),
            OPERATE,
            "Brings dead letters back to life, all at once; with 'dry_run', only tells which.",
            redrive,
        )
        .takes(named("Redrive"))
        .answers(200, "Which went back, and which did not", Content::Json(named("Redriven"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/dead-letters/redrive-job"),
            (GROUP, "startRedrive"),
            OPERATE,
            "Begins to bring dead letters back, at most 'rate' a second. Watch or cancel the job.",
            start,
        )
        .takes(named("RedriveJob"))
        .answers(202, "The job", Content::Json(named("Job"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/dead-letters/purge"),
            (GROUP, "purgeDeadLetters"),
            OPERATE,
            "Removes dead letters for good; with 'dry_run', only counts them.",
            purge,
        )
        .takes(named("Purge"))
        .answers(200, "How many", Content::Json(named("Purged"))),
    ]
}

/// The store's selection for a choice. Errors are compared here, because no store looks for them.
async fn selection(app: &App, queue: &QueueName, choice: &Choice) -> Result<DeadLetterSelection, ApiError> {
    let Some(wanted) = &choice.error else { return Ok(choice.selection()) };
    let of_reason = Choice { error: None, ..choice.clone() }.selection();
    let mut ids = Vec::new();
    each(app, queue, of_reason, usize::MAX, |letter| {
        if letter.error.as_deref() == Some(wanted) {
            ids.push(letter.id);
        }
    })
    .await?;
    Ok(DeadLetterSelection::Ids(ids))
}

/// What the audit log says of a choice.
fn chosen(choice: &Choice, to: Option<&QueueName>) -> serde_json::Value {
    json!({ "ids": choice.ids.as_ref().map(Vec::len), "reason": choice.reason, "error": choice.error, "to": to })
}

fn check_target(caller: &Caller, to: Option<&QueueName>) -> Result<(), ApiError> {
    to.map_or(Ok(()), |to| caller.check_queue(to))
}

async fn redrive(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    JsonBody(asked): JsonBody<RedriveRequest>,
) -> Result<Response, ApiError> {
    check_target(&caller, asked.to.as_ref())?;
    let choice = asked.choice()?;
    let dry_run = asked.dry_run.unwrap_or_default();
    let selection = selection(&app, &queue, &choice).await?;
    let redrive = Redrive { selection, to: asked.to.clone(), dry_run };
    if dry_run {
        let report = app.provider.redrive_dead_letters(&queue, &redrive, Deadline::default()).await?;
        return answer(&Redriven::from(report));
    }
    let deed =
        app.audit.begin(&caller, "redrive_dead_letters", queue.as_str(), chosen(&choice, asked.to.as_ref())).await?;
    let done = app.provider.redrive_dead_letters(&queue, &redrive, Deadline::default()).await;
    let shown = |report: &RedriveReport| json!({ "redriven": report.redriven.len(), "skipped": report.skipped.len() });
    app.audit.done(deed, outcome(&done, shown)).await;
    answer(&Redriven::from(done?))
}

async fn start(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    JsonBody(asked): JsonBody<RedriveJobRequest>,
) -> Result<Response, ApiError> {
    check_target(&caller, asked.to.as_ref())?;
    check_rate(asked.rate)?;
    app.jobs.check_room()?;
    let choice = asked.choice()?;
    let selection = selection(&app, &queue, &choice).await?;
    // Those that are dead now are meant: one that dies again meanwhile is not brought back a second time.
    let dry = Redrive { selection, to: asked.to.clone(), dry_run: true };
    let report = app.provider.redrive_dead_letters(&queue, &dry, Deadline::default()).await?;
    let deed =
        app.audit.begin(&caller, "redrive_dead_letters", queue.as_str(), chosen(&choice, asked.to.as_ref())).await?;
    let (own, to, rate) = (app.clone(), asked.to, asked.rate);
    let origin = queue.origin();
    let job = app.jobs.begin(&caller, JobKind::Redrive, Some(origin), move |job| async move {
        let done = bring_back(&own, &queue, report, to, rate, &job).await;
        let view = job.view();
        let shown = |_: &()| json!({ "redriven": view.done, "skipped": view.skipped });
        own.audit.done(deed, outcome(&done, shown)).await;
        done
    })?;
    answer_with(StatusCode::ACCEPTED, &job)
}

/// Brings dead letters back, a few at a time.
async fn bring_back(
    app: &App,
    queue: &QueueName,
    report: RedriveReport,
    to: Option<QueueName>,
    rate: Option<f64>,
    job: &Job,
) -> Result<(), MessagingError> {
    let ids: Vec<MessageId> = report.redriven;
    let (mut done, mut skipped) = (0, report.skipped.len());
    job.of(ids.len() + skipped);
    job.progress(done, skipped);
    let began = Instant::now();
    for ids in ids.chunks(chunk(rate, CHUNK)) {
        if !job.goes_on(began, done, rate).await {
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
    JsonBody(asked): JsonBody<PurgeRequest>,
) -> Result<Response, ApiError> {
    let choice = asked.choice()?;
    let selection = selection(&app, &queue, &choice).await?;
    if asked.dry_run.unwrap_or_default() {
        let (purged, _) = match &selection {
            DeadLetterSelection::Ids(ids) => {
                let wanted: std::collections::HashSet<_> = ids.iter().collect();
                let mut found = 0;
                each(&app, &queue, DeadLetterSelection::All, usize::MAX, |letter| {
                    found += usize::from(wanted.contains(&letter.id));
                })
                .await?;
                (found, true)
            }
            other => each(&app, &queue, other.clone(), usize::MAX, |_| {}).await?,
        };
        return answer(&Purged { purged: purged as u64 });
    }
    let deed = app.audit.begin(&caller, "purge_dead_letters", queue.as_str(), chosen(&choice, None)).await?;
    let done = app.provider.purge_dead_letters(&queue, &selection, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |purged| json!({ "purged": purged }))).await;
    answer(&Purged { purged: done? })
}
