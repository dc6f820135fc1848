//! Liveness, readiness and metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use postrider::{Deadline, MessagingError, TaskStore};
use serde_json::json;
use tokio::time::Instant;

use super::READ;
use crate::access::Caller;
use crate::api::schemas::named;
use crate::api::{ApiError, Content, Need, Route, Verb, answer, answer_with};
use crate::app::App;
use crate::leases::run_to_completion;
use crate::metrics::to_text_format;

/// Content types of metrics: the text format 0.0.4, which every scraper reads, and OpenMetrics on request.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether a scraper prefers OpenMetrics.
fn wants_open_metrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let (mut open, mut plain) = (0.0_f32, 0.0_f32);
    for one in accepted.flat_map(|value| value.split(',')) {
        let mut parts = one.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight: f32 =
            parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
        match name.as_str() {
            "application/openmetrics-text" => open = weight.max(open),
            "text/plain" | "text/*" => plain = weight.max(plain),
            _ => {}
        }
    }
    open > 0.0 && open >= plain
}

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Operations";
    vec![
        Route::new((Verb::Get, "/healthz"), (GROUP, "isAlive"), Need::Unidentified, "Whether the server runs.", alive)
            .answers(200, "It runs", Content::Json(named("Status"))),
        Route::new(
            (Verb::Get, "/readyz"),
            (GROUP, "isReady"),
            Need::Unidentified,
            "Whether the server is ready for requests: its store answers, and it is not stopping.",
            ready,
        )
        .answers(200, "It is ready", Content::Json(named("Status")))
        .answers(503, "It is not ready", Content::Json(named("Status"))),
        Route::new(
            (Verb::Get, "/metrics"),
            (GROUP, "getMetrics"),
            READ,
            "Metrics for Prometheus; as OpenMetrics if 'Accept' prefers it.",
            metrics,
        )
        .answers(200, "The metrics", Content::Other(PLAIN)),
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
    let is_up = run_to_completion(&app, async move { own.readiness.is_up(&*own.provider).await }).await;
    match is_up.unwrap_or(false) {
        true => answer(&json!({ "status": "ok" })),
        // The route needs no token, so it does not return the store's error.
        false => {
            let why = "the store does not answer; see the server's log";
            answer_with(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "store_unreachable", "why": why }))
        }
    }
}

/// Time for which a count of tasks is reused by further scrapes.
const COUNT_LIFE: Duration = Duration::from_secs(5);

/// Time-out of the count. Prometheus itself gives up after ten seconds.
const COUNT_LIMIT: Duration = Duration::from_secs(5);

/// Updates the gauge of tasks; removes it if the store does not answer.
async fn count_tasks(app: &App) {
    let mut again = app.count_tasks_again.lock().await;
    let began = Instant::now();
    if again.is_some_and(|again| began < again) {
        return;
    }
    let deadline = Deadline::after(COUNT_LIMIT);
    let late = MessagingError::DeadlineExceeded { operation: "count tasks" };
    match deadline.limit(app.client().store().counts(deadline)).await.unwrap_or(Err(late)) {
        Ok(counts) => app.metrics.set_task_counts(&counts),
        Err(error) => {
            tracing::warn!(%error, "tasks could not be counted; the metrics do not contain them");
            app.metrics.set_task_counts(&[]);
        }
    }
    // A slow count is repeated less often.
    *again = Some(Instant::now() + COUNT_LIFE.max(began.elapsed() * 4));
}

async fn metrics(State(app): State<Arc<App>>, caller: Caller, headers: HeaderMap) -> Result<Response, ApiError> {
    // Metrics contain the names of all queues.
    caller.check_everywhere()?;
    count_tasks(&app).await;
    let text = app.metrics.text();
    let (name, text) = match wants_open_metrics(&headers) {
        true => (OPEN_METRICS, text),
        false => (PLAIN, to_text_format(&text)),
    };
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(name));
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_preferred_one() {
        for (accept, is_open) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text", true),
            ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", true),
            ("application/openmetrics-text;version=1.0.0;q=0.3, text/plain;version=0.0.4;q=0.5", false),
            ("application/openmetrics-text;q=0", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(accept).unwrap())]);
            assert_eq!(wants_open_metrics(&headers), is_open, "{accept}");
        }
        assert!(!wants_open_metrics(&HeaderMap::new()));
    }
}
