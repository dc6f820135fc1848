//! For whoever watches over the server: is it alive, is it ready, what has it counted.

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
use crate::leases::to_its_end;
use crate::meter::plain;

/// The formats of metrics: the older one, which every scraper reads, and the one that is asked for by its name.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether a scraper would rather have OpenMetrics.
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
            "What the server has counted, for Prometheus; as OpenMetrics if 'Accept' asks for it.",
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

/// How long the tasks that were counted for one scrape are shown to others.
const COUNTED_FOR: Duration = Duration::from_secs(5);

/// How long a scrape waits for the count. Prometheus gives up after ten seconds.
const COUNT_LIMIT: Duration = Duration::from_secs(5);

/// Has the meter show how many tasks there are. Without an answer of the store it shows none.
async fn count_tasks(app: &App) {
    let mut again = app.count_tasks_again.lock().await;
    let began = Instant::now();
    if again.is_some_and(|again| began < again) {
        return;
    }
    let deadline = Deadline::after(COUNT_LIMIT);
    let late = MessagingError::DeadlineExceeded { operation: "count tasks" };
    match deadline.limit(app.client().store().counts(deadline)).await.unwrap_or(Err(late)) {
        Ok(counts) => app.meter.tasks_counted(&counts),
        Err(error) => {
            tracing::warn!(%error, "the tasks could not be counted; the metrics are without them");
            app.meter.tasks_counted(&[]);
        }
    }
    // A store that takes long to count is not asked all the time.
    *again = Some(Instant::now() + COUNTED_FOR.max(began.elapsed() * 4));
}

async fn metrics(State(app): State<Arc<App>>, caller: Caller, headers: HeaderMap) -> Result<Response, ApiError> {
    // They name queues.
    caller.check_everywhere()?;
    count_tasks(&app).await;
    let text = app.meter.text();
    let (name, text) = match wants_open_metrics(&headers) {
        true => (OPEN_METRICS, text),
        false => (PLAIN, plain(&text)),
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
    fn the_format_is_the_one_that_is_asked_for() {
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
