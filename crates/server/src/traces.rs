//! Traces: passed on from sender to handler, and exported to a collector if one is configured.
//!
//! Messages that a request with a `traceparent` sends belong to that trace, unless they name one themselves; a handler
//! finds it in the message's headers. Spans of requests are exported by OTLP over HTTP, as JSON, in the background: if
//! the collector is slow or down, spans are lost, and no request is delayed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::http::{HeaderMap, Request, Uri, header};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use postrider::masked_url::masked_url;
use postrider::subscriber::layers::TraceContext;
use postrider::{Headers, MessagingError};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Upper bound of the spans that wait for export; further ones are dropped.
const MAX_WAITING: usize = 4096;

/// Upper bound of the spans of one export.
const BATCH: usize = 512;

/// The trace of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestTrace {
    span: TraceContext,
    /// Whether the request named it.
    is_given: bool,
}

impl RequestTrace {
    pub(crate) fn begin(headers: &HeaderMap) -> Self {
        let mut given = Headers::new();
        for name in ["traceparent", "tracestate"] {
            if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) {
                // An invalid value is ignored.
                let _ = given.insert(name, value);
            }
        }
        match TraceContext::from_headers(&given) {
            Some(caller) => Self { span: caller.child(), is_given: true },
            None => Self { span: TraceContext::root(), is_given: false },
        }
    }

    /// Adds the trace to a message's headers, unless they name one or traces are not in use.
    pub(crate) fn inject(&self, headers: &mut Headers, is_traced: bool) -> Result<(), MessagingError> {
        if (self.is_given || is_traced) && headers.get("traceparent").is_none() {
            self.span.inject_into(headers)?;
        }
        Ok(())
    }
}

/// The collector that receives spans.
#[derive(Debug)]
struct Collector {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
}

impl Collector {
    fn new(endpoint: &str) -> Result<Self, MessagingError> {
        let url: Option<Uri> = format!("{}/v1/traces", endpoint.trim_end_matches('/')).parse().ok();
        let url = url.filter(|url| url.scheme_str() == Some("http") && url.host().is_some()).ok_or_else(|| {
            let why = format!(
                "invalid collector URL '{}'; use http://host:4318. For TLS, run a collector on this machine that forwards",
                masked_url(endpoint).escape_debug()
            );
            MessagingError::invalid("server.otlp_endpoint", why)
        })?;
        Ok(Self { client: Client::builder(TokioExecutor::new()).build_http(), url })
    }

    async fn post(&self, body: String, timeout: Duration) -> Result<(), String> {
        let request = Request::post(self.url.clone()).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        match tokio::time::timeout(timeout, self.client.request(request)).await {
            Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
            Ok(Ok(answer)) => Err(format!("the collector answered {}", answer.status())),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the collector did not answer in time".to_owned()),
        }
    }
}

/// Exports spans to a collector.
#[derive(Debug)]
pub(crate) struct Traces {
    spans: mpsc::Sender<Value>,
}

impl Traces {
    /// Exports to the collector at `endpoint`, like `http://127.0.0.1:4318`.
    pub(crate) fn new(endpoint: &str) -> Result<Self, MessagingError> {
        let client = Collector::new(endpoint)?;
        let (spans, waiting) = mpsc::channel(MAX_WAITING);
        tokio::spawn(send(client, waiting));
        Ok(Self { spans })
    }

    /// Queues the span of a request for export.
    pub(crate) fn request(&self, trace: &RequestTrace, method: &str, route: &str, status: u16, took: Duration) {
        if !trace.span.is_sampled() {
            return;
        }
        let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begin = end.saturating_sub(took);
        let attribute = |key: &str, value: Value| json!({ "key": key, "value": value });
        let mut span = json!({
            "traceId": trace.span.trace_id(),
            "spanId": trace.span.span_id(),
            "name": format!("{method} {route}"),
            // SPAN_KIND_SERVER.
            "kind": 2,
            "startTimeUnixNano": begin.as_nanos().to_string(),
            "endTimeUnixNano": end.as_nanos().to_string(),
            "attributes": [
                attribute("http.request.method", json!({ "stringValue": method })),
                attribute("http.route", json!({ "stringValue": route })),
                attribute("http.response.status_code", json!({ "intValue": status.to_string() })),
            ],
            "status": if status >= 500 { json!({ "code": 2 }) } else { json!({}) },
        });
        if let Some(parent) = trace.span.parent_id() {
            span["parentSpanId"] = json!(parent);
        }
        // If the channel is full, the span is dropped.
        let _ = self.spans.try_send(span);
    }
}

async fn send(client: Collector, mut waiting: mpsc::Receiver<Value>) {
    let mut spans = Vec::with_capacity(BATCH);
    while waiting.recv_many(&mut spans, BATCH).await > 0 {
        let body = json!({
            "resourceSpans": [{
                "resource": { "attributes": [
                    { "key": "service.name", "value": { "stringValue": "postrider" } },
                    { "key": "service.version", "value": { "stringValue": env!("CARGO_PKG_VERSION") } },
                ] },
                "scopeSpans": [{ "scope": { "name": "postrider-server" }, "spans": std::mem::take(&mut spans) }],
            }],
        });
        if let Err(error) = client.post(body.to_string(), Duration::from_secs(10)).await {
            tracing::warn!(%error, "spans could not be exported to the collector");
        }
        // Collects the spans of a short interval into one export.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
