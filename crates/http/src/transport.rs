//! HTTP requests over pooled connections.
//!
//! For a request without an answer it matters whether it may have been carried out. The HTTP client distinguishes requests
//! that were never sent (no connection, or a pooled one that was closed before the first byte was written) from those that
//! were; it repeats the former on another connection.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{CaptureConnection, HttpConnector, capture_connection};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use postrider_core::{ErrorSource, MessagingError};

use crate::PROVIDER;
use crate::cause::cause;
use crate::failure::{AnswerError, Failure, TOKEN};
use crate::options::HttpOptions;
#[cfg(not(feature = "tls"))]
use crate::plain::{Connector, connector};
#[cfg(feature = "tls")]
use crate::tls::{Connector, connector};
use crate::url::ServerUrl;

/// Idle time-out of pooled connections. Servers and proxies close idle ones, Postrider after ten seconds, and the outcome
/// of a request that crosses the close is unknown.
const IDLE: Duration = Duration::from_secs(5);

/// TCP keep-alive interval, so that a wait notices a dead server.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Upper bound of an answer. A server limits one to 16 MiB of bodies, which JSON makes at most six times as long.
const MAX_ANSWER: usize = 128 * 1024 * 1024;

/// Upper bound of an error answer.
const MAX_ERROR_ANSWER: usize = 1024 * 1024;

/// Upper bound of the rows of one request or answer.
pub(crate) const MAX_ROWS: usize = 1000;

/// A request to the API.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Path from `/v1` on, with the query.
    pub(crate) path: String,
    /// JSON body.
    pub(crate) body: Option<Bytes>,
    /// Wait of the server, added to the time-out.
    pub(crate) wait: Duration,
}

/// An answer with any status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// The HTTP client of one server.
pub(crate) struct Transport {
    client: Client<Connector, Full<Bytes>>,
    server: ServerUrl,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

impl Transport {
    pub(crate) fn new(url: &str, options: &HttpOptions) -> Result<Self, MessagingError> {
        options.check()?;
        let server = ServerUrl::parse(url)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(options.connect_timeout));
        tcp.set_keepalive(Some(KEEP_ALIVE));
        tcp.set_keepalive_interval(Some(KEEP_ALIVE));
        let connector = connector(tcp, &server, options.ca_file.as_deref())?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self { client, server, authorization: authorization(options)?, timeout: options.request_timeout })
    }

    /// URL of the server.
    pub(crate) fn server(&self) -> &ServerUrl {
        &self.server
    }

    /// Sends a request and waits for the whole answer.
    pub(crate) async fn exchange(&self, request: Request) -> Result<Answer, Failure> {
        let timeout = self.timeout.saturating_add(request.wait);
        let (request, connection) = self.build(request, "application/json")?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| self.failed(&error))?;
            self.read_all(response).await
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(self.timed_out(timeout, &connection)),
        }
    }

    /// Sends a request and returns the answer as a stream.
    pub(crate) async fn stream(&self, path: &str) -> Result<Response<Incoming>, Failure> {
        let request = Request { method: Method::GET, path: path.to_owned(), body: None, wait: Duration::ZERO };
        let (request, connection) = self.build(request, "text/event-stream")?;
        let opening = async {
            let response = self.client.request(request).await.map_err(|error| self.failed(&error))?;
            if response.status().is_success() {
                return Ok(response);
            }
            Err(self.refused(self.read_all(response).await?))
        };
        match tokio::time::timeout(self.timeout, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(self.timed_out(self.timeout, &connection)),
        }
    }

    /// Reads the whole answer, within the limits.
    async fn read_all(&self, response: Response<Incoming>) -> Result<Answer, Failure> {
        let status = response.status();
        let max_bytes = if status.is_success() { MAX_ANSWER } else { MAX_ERROR_ANSWER };
        match Limited::new(response.into_body(), max_bytes).collect().await {
            Ok(body) => Ok(Answer { status, body: body.to_bytes() }),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(Failure::Unknown(AnswerError::TooLong { server: self.server.to_string(), max_bytes }.into_source()))
            }
            Err(error) => Err(self.disconnected(&*error)),
        }
    }

    fn build(
        &self,
        request: Request,
        accept: &'static str,
    ) -> Result<(http::Request<Full<Bytes>>, CaptureConnection), Failure> {
        let mut built = http::Request::new(Full::new(request.body.clone().unwrap_or_default()));
        *built.method_mut() = request.method;
        *built.uri_mut() = self.server.uri(&request.path).map_err(Failure::NotDone)?;
        let headers = built.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if request.body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let connection = capture_connection(&mut built);
        Ok((built, connection))
    }

    fn failed(&self, error: &ClientError) -> Failure {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<hyper::Error>());
        // Canceled: a closed connection returned the request unsent.
        if error.is_connect() || source.is_some_and(hyper::Error::is_canceled) {
            return Failure::NotDone(self.unreachable(cause(error)));
        }
        self.disconnected(error)
    }

    fn disconnected(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        Failure::Unknown(
            AnswerError::Disconnected { server: self.server.to_string(), cause: cause(error) }.into_source(),
        )
    }

    fn timed_out(&self, timeout: Duration, connection: &CaptureConnection) -> Failure {
        let error = AnswerError::Timeout { server: self.server.to_string(), seconds: timeout.as_secs_f64() };
        // Without a connection nothing was sent.
        if connection.connection_metadata().is_none() {
            return Failure::NotDone(self.unreachable(error.to_string()));
        }
        Failure::Unknown(error.into_source())
    }

    /// The server cannot be reached. Nothing was done.
    pub(crate) fn unreachable(&self, why: impl fmt::Display) -> MessagingError {
        let source: Option<ErrorSource> = None;
        MessagingError::Connection { provider: PROVIDER, detail: format!("{}: {why}", self.server), source }
    }
}

fn authorization(options: &HttpOptions) -> Result<Option<HeaderValue>, MessagingError> {
    let Some(token) = &options.token else { return Ok(None) };
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| {
        MessagingError::invalid("token", format!("{TOKEN} has invalid characters; copy the token again"))
    })?;
    // Hidden when headers are printed.
    value.set_sensitive(true);
    Ok(Some(value))
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("server", &self.server).finish_non_exhaustive()
    }
}
