//! The outermost middleware: request id, trace, metrics, access log, and the headers of every answer.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body::Body as _;
use uuid::Uuid;

use super::connection::Peer;
use crate::api::ApiError;
use crate::app::App;
use crate::traces::RequestTrace;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Content security policy of the dashboard: resources of this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// The id of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

impl RequestId {
    /// Returns the client's id if it is safe to log; else a new one.
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

/// Name of the caller's token, set once the caller is identified.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallerName(pub(crate) Arc<OnceLock<Arc<str>>>);

/// A method's label in metrics. Unknown methods share one, as clients can invent them.
fn method_label(method: &Method) -> &'static str {
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
pub(crate) async fn outermost(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = RequestId::of(request.headers());
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let route = path.as_ref().map_or("none", MatchedPath::as_str);
    let trace = RequestTrace::begin(request.headers());
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
    let who = CallerName::default();
    request.extensions_mut().insert(who.clone());
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(trace.clone());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = error.response(&id.0);
    }
    let status = response.status();
    let label = method_label(&method);
    app.metrics.request(route, label, status.as_u16(), began.elapsed());
    if let Some(traces) = &app.traces {
        traces.request(&trace, method.as_str(), route, status.as_u16(), began.elapsed());
    }
    // A stream has no known length.
    let bytes = response.body().size_hint().exact().unwrap_or_default();
    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let who = who.0.get().unwrap_or(&peer.address);
    let (method, status) = (method.as_str(), status.as_u16());
    tracing::info!(
        target: "postrider::access",
        method, route, status, bytes, ms, %who, from = %peer.address, request_id = %id.0, "request"
    );
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id.0) {
        headers.insert(REQUEST_ID.clone(), id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if headers.get(header::CONTENT_TYPE).is_some_and(|name| name.as_bytes().starts_with(b"text/html")) {
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    }
    // Messages must not stay in caches.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::Mutex;

    use axum::body::Body;
    use tower::ServiceExt;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// Collects the lines of the access log.
    struct Kept(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            let _ = write!(self.0, "{field}={value:?} ");
        }
    }

    impl Subscriber for Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "postrider::access"
        }

        fn event(&self, event: &Event<'_>) {
            assert_eq!(*event.metadata().level(), Level::INFO);
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test]
    async fn every_request_is_logged_with_caller_route_and_status() {
        let (app, _folder) = crate::app::test_app().await;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let _kept = tracing::subscriber::set_default(Kept(lines.clone()));
        let router = crate::routes::router(&app);
        let peer = Peer { address: "127.0.0.9".into(), ..Peer::default() };
        let ask = async |method: Method, path: &str| {
            let request = Request::builder().method(method).uri(path).header("host", "localhost");
            let request = request.header("x-request-id", "r-1").header("authorization", "Bearer prt_secret");
            let mut request = request.body(Body::empty()).unwrap();
            if path.starts_with("/v1/queues/") {
                request.headers_mut().remove(header::AUTHORIZATION);
            }
            request.extensions_mut().insert(peer.clone());
            router.clone().oneshot(request).await.unwrap()
        };
        ask(Method::PUT, "/v1/queues/orders").await;
        ask(Method::GET, "/v1/queues?prefix=private").await;
        ask(Method::GET, "/nowhere").await;
        let lines = lines.lock().unwrap().clone();
        let begins = [
            "message=request method=\"PUT\" route=\"/v1/queues/{queue}\" status=204 bytes=0 ms=",
            "message=request method=\"GET\" route=\"/v1/queues\" status=401 bytes=",
            "message=request method=\"GET\" route=\"none\" status=404 bytes=",
        ];
        assert_eq!(lines.len(), begins.len(), "{lines:?}");
        for (line, begin) in lines.iter().zip(begins) {
            assert!(line.starts_with(begin), "{line}");
            assert!(line.ends_with("who=127.0.0.9 from=127.0.0.9 request_id=r-1 "), "{line}");
            assert!(!line.contains("secret") && !line.contains("private"), "{line}");
        }
    }

    #[test]
    fn a_request_id_that_could_forge_a_log_line_is_replaced() {
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
