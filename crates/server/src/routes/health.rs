//! For whoever watches over the server: is it alive, is it ready, what has it counted.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::READ;
use crate::access::Caller;
use crate::api::schemas::named;
use crate::api::{ApiError, Content, Need, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::leases::to_its_end;

/// As Prometheus reads it.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Operations";
    vec![
        Route::new((Verb::Get, "/healthz"), (GROUP, "isAlive"), Need::Unasked, "Whether the server runs.", alive)
            .answers(200, "It does", Content::Json(named("Status"))),
        Route::new(
            (Verb::Get, "/readyz"),
            (GROUP, "isReady"),
            Need::Unasked,
            "Whether the server can be sent requests: its store answers, and it is not stopping.",
            ready,
        )
        .answers(200, "It can", Content::Json(named("Status")))
        .answers(503, "It can not", Content::Json(named("Status"))),
        Route::new(
            (Verb::Get, "/metrics"),
            (GROUP, "getMetrics"),
            READ,
            "What the server has counted, for Prometheus.",
            metrics,
        )
        .answers(200, "The metrics", Content::Other(METRICS)),
    ]
}

async fn alive() -> Result<Response, ApiError> {
    answer(&json!({ "status": "ok" }))
}

async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if app.stop.is_cancelled() {
        return answer_with(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "stopping" }));
    }
    let own = app.clone();
    let is_up = to_its_end(&app, async move { own.readiness.is_up(&*own.provider).await }).await;
    match is_up.unwrap_or(false) {
        true => answer(&json!({ "status": "ok" })),
        // Anybody may ask; only that it is away is for everybody.
        false => {
            let why = "the store does not answer; the server's log says more";
            answer_with(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "store_unreachable", "why": why }))
        }
    }
}

async fn metrics(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    // They name queues.
    caller.check_everywhere()?;
    let mut response = app.meter.text().into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(METRICS));
    Ok(response)
}
