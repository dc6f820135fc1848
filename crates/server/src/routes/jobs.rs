//! Jobs: how far they are, and ending them.

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
        Route::new((Verb::Get, "/v1/jobs/{id}"), (GROUP, "getJob"), READ, "How far a job is.", get).answers(
            200,
            "It",
            Content::Json(named("Job")),
        ),
        Route::new(
            (Verb::Delete, "/v1/jobs/{id}"),
            (GROUP, "cancelJob"),
            OPERATE,
            "Ends a job. What it has done stays done.",
            cancel,
        )
        .answers(200, "It", Content::Json(named("Job"))),
    ]
}

async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    let jobs = app.jobs.list().into_iter().filter(|job| job.is_for(&caller));
    answer(&Jobs { jobs: jobs.map(|job| job.view()).collect() })
}

fn find(app: &App, caller: &Caller, id: &str) -> Result<Job, ApiError> {
    let job = id.parse().ok().and_then(|id| app.jobs.find(id)).filter(|job| job.is_for(caller));
    job.ok_or_else(|| ApiError::not_found("there is no such job; this server forgets them after some time"))
}

async fn get(State(app): State<Arc<App>>, caller: Caller, IdPath(id): IdPath) -> Result<Response, ApiError> {
    answer(&find(&app, &caller, &id)?.view())
}

async fn cancel(State(app): State<Arc<App>>, caller: Caller, IdPath(id): IdPath) -> Result<Response, ApiError> {
    let job = find(&app, &caller, &id)?;
    let deed = app.audit.begin(&caller, "cancel_job", &id, json!({})).await?;
    job.stop.cancel();
    job.ended().await;
    app.audit.done(deed, json!(job.view().state)).await;
    answer(&job.view())
}
