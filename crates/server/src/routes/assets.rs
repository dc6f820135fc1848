//! The dashboard and the static pages, embedded in the program.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;

use crate::api::ApiError;
use crate::app::App;

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

fn file(content_type: &'static str, bytes: &'static [u8]) -> Response {
    let mut response = bytes.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    // A newer program has newer pages. They are small, so browsers may fetch them each time.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

fn asset(name: &str) -> Result<Response, ApiError> {
    let found = ASSETS.iter().find(|(own, _)| *own == name);
    let (name, bytes) = found.ok_or_else(|| ApiError::not_found("no such asset; the dashboard is at /"))?;
    Ok(file(content_type(name), bytes))
}

/// Adds the pages to the router. They contain no data of the store, so they need no token.
pub(super) fn add(router: Router<Arc<App>>, document: &Value, reference: String) -> Router<Arc<App>> {
    let (description, reference) = (Bytes::from(document.to_string()), Bytes::from(reference));
    let page = || async { asset("index.html") };
    router
        .route("/", get(page))
        .route("/ui", get(page))
        .route("/ui/{*path}", get(page))
        .route("/assets/{*name}", get(|Path(name): Path<String>| async move { asset(&name) }))
        .route("/favicon.ico", get(|| async { asset("favicon.svg") }))
        .route(
            "/openapi.json",
            get(move || async move {
                ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], description).into_response()
            }),
        )
        .route(
            "/reference",
            get(move || async move {
                ([(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))], reference)
                    .into_response()
            }),
        )
}
