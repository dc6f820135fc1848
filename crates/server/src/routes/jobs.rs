//! Jobs: progress and cancellation.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use postrider_wire::job::Jobs;
use serde_json::json;

use super::{OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{list as listed, named, only};
use crate::api::{ApiError, Content, IdPath, Route, Verb, answer};
use crate::app::App;
use crate::jobs::Job;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Jobs";
    vec![
        Route::new((Verb::Get, "/v1/jobs"), (GROUP, "listJobs"), READ, "The jobs of this server, newest first.", list)
            .answers(200, "The jobs", Content::Json(only("jobs", listed(named("Job"))))),
        Route::new((Verb::Get, "/v1/jobs/{id}"), (GROUP, "getJob"), READ, "A job and its progress.", get).answers(
            200,
            "The job",
            Content::Json(named("Job")),
        ),
        Route::new(
            (Verb::Delete, "/v1/jobs/{id}"),
            (GROUP, "cancelJob"),
            OPERATE,
            "Cancels a job. Completed rows are not undone.",
            cancel,
        )
        .answers(200, "The canceled job", Content::Json(named("Job"))),
    ]
}

async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    let jobs = app.jobs.list().into_iter().filter(|job| job.is_visible_to(&caller));
    answer(&Jobs { jobs: jobs.map(|job| job.view()).collect() })
}

fn find(app: &App, caller: &Caller, id: &str) -> Result<Job, ApiError> {
    let job = id.parse().ok().and_then(|id| app.jobs.find(id)).filter(|job| job.is_visible_to(caller));
    job.ok_or_else(|| ApiError::not_found("no such job; the server lists recent jobs only, see GET /v1/jobs"))
}

async fn get(State(app): State<Arc<App>>, caller: Caller, IdPath(id): IdPath) -> Result<Response, ApiError> {
    answer(&find(&app, &caller, &id)?.view())
}

async fn cancel(State(app): State<Arc<App>>, caller: Caller, IdPath(id): IdPath) -> Result<Response, ApiError> {
    let job = find(&app, &caller, &id)?;
    let audited = app.audit.begin(&caller, "cancel_job", &id, json!({})).await?;
    job.stop.cancel();
    job.ended().await;
    app.audit.finish(audited, json!(job.view().state)).await;
    answer(&job.view())
}
