//! What is around every request: its id, its trace, its count, and the headers that every answer has.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

use crate::api::ApiError;
use crate::app::App;
use crate::traces::RequestTrace;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a page of the dashboard may do: use what this server serves, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// The id of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

impl RequestId {
    /// The caller's, if it is a word that does no harm in a log; else a new one.
    fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(&REQUEST_ID).and_then(|id| id.to_str().ok());
        let is_fine = |id: &&str| {
            (1..=100).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte))
        };
        match given.filter(is_fine) {
            Some(id) => Self(id.into()),
            None => Self(Uuid::now_v7().to_string().into()),
        }
    }
}

/// A method's name in metrics. A client may make up others.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

/// The outermost layer.
pub(crate) async fn frame(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = RequestId::of(request.headers());
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let route = path.as_ref().map_or("none", MatchedPath::as_str);
    let trace = RequestTrace::begin(request.headers());
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(trace.clone());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = error.response(&id.0);
    }
    let status = response.status();
    let verb = verb(&method);
    app.meter.request(route, verb, status.as_u16(), began.elapsed());
    if let Some(traces) = &app.traces {
        traces.request(&trace, method.as_str(), route, status.as_u16(), began.elapsed());
    }
    tracing::debug!(request_id = %id.0, %method, route, status = status.as_u16(), took = ?began.elapsed(), "request");
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id.0) {
        headers.insert(REQUEST_ID.clone(), id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // What a page may do; JSON does nothing.
    if headers.get(header::CONTENT_TYPE).is_some_and(|name| name.as_bytes().starts_with(b"text/html")) {
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    }
    // Messages are nobody else's to keep.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_could_forge_a_log_is_not_taken() {
        let id = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID.clone(), HeaderValue::from_static(value));
            RequestId::of(&headers).0
        };
        assert_eq!(&*id("abc-1:2"), "abc-1:2");
        for odd in ["", "a b", "a\tb", "\"x\""] {
            assert!(Uuid::parse_str(&id(odd)).is_ok(), "{odd}");
        }
    }
}
