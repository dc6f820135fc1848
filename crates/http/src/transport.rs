//! Requests on their way to the server, over connections that are kept.
//!
//! What must be known of a request without an answer is whether it may have been carried out. The client below tells one
//! that never left (no connection could be made, or a kept one turned out to be closed before a byte was written) from one
//! that did; the former it also sends again by itself, on another connection.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{CaptureConnection, HttpConnector, capture_connection};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use postrider_core::{ErrorSource, MessagingError};

use crate::PROVIDER;
use crate::cause::cause;
use crate::failure::{Odd, TOKEN, Undone};
use crate::options::HttpOptions;
#[cfg(not(feature = "tls"))]
use crate::plain::{Connector, connector};
#[cfg(feature = "tls")]
use crate::tls::{Connector, connector};
use crate::url::Place;

/// A connection that was idle for longer is not used again: a server closes one after ten seconds, many a proxy does, and a
/// request that meets the close on its way has no certain outcome.
const IDLE: Duration = Duration::from_secs(5);

/// A silent connection is asked for a sign of life after that long, so that a wait notices that its server is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Upper bound of an answer. A server ends one after 16 MiB of bodies, which JSON makes six times as long at worst.
const LONGEST_ANSWER: usize = 128 * 1024 * 1024;

/// Upper bound of what a server says that refuses a request.
const LONGEST_REFUSAL: usize = 1024 * 1024;

/// So many rows a server lists, hands out or takes with one request.
pub(crate) const MOST_ROWS: usize = 1000;

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// From `/v1` on, with its query.
    pub(crate) path: String,
    /// JSON.
    pub(crate) body: Option<Bytes>,
    /// How long the server is asked to wait before it answers.
    pub(crate) wait: Duration,
}

/// An answer, whatever it says.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// The way to a server.
pub(crate) struct Transport {
    client: Client<Connector, Full<Bytes>>,
    place: Place,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

impl Transport {
    pub(crate) fn new(url: &str, options: &HttpOptions) -> Result<Self, MessagingError> {
        options.check()?;
        let place = Place::parse(url)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(options.connect_timeout));
        tcp.set_keepalive(Some(KEEP_ALIVE));
        tcp.set_keepalive_interval(Some(KEEP_ALIVE));
        let connector = connector(tcp, &place, options.ca_file.as_deref())?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self { client, place, authorization: authorization(options)?, timeout: options.request_timeout })
    }

    /// Where the server is.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Sends a request and waits for the whole answer.
    pub(crate) async fn exchange(&self, ask: Ask) -> Result<Answer, Undone> {
        let patience = self.timeout.saturating_add(ask.wait);
        let (request, connection) = self.request(ask, "application/json")?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| self.failed(&error))?;
            self.read_all(response).await
        };
        match tokio::time::timeout(patience, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(self.late(patience, &connection)),
        }
    }

    /// Sends a request and answers as soon as the answer begins: the rest comes as it happens.
    pub(crate) async fn stream(&self, path: &str) -> Result<Response<Incoming>, Undone> {
        let ask = Ask { method: Method::GET, path: path.to_owned(), body: None, wait: Duration::ZERO };
        let (request, connection) = self.request(ask, "text/event-stream")?;
        let opening = async {
            let response = self.client.request(request).await.map_err(|error| self.failed(&error))?;
            if response.status().is_success() {
                return Ok(response);
            }
            Err(self.refused(self.read_all(response).await?))
        };
        match tokio::time::timeout(self.timeout, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(self.late(self.timeout, &connection)),
        }
    }

    /// The whole answer, if it is no longer than an answer can be.
    async fn read_all(&self, response: Response<Incoming>) -> Result<Answer, Undone> {
        let status = response.status();
        let most = if status.is_success() { LONGEST_ANSWER } else { LONGEST_REFUSAL };
        match Limited::new(response.into_body(), most).collect().await {
            Ok(body) => Ok(Answer { status, body: body.to_bytes() }),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(Undone::Unknown(Odd::TooLong { place: self.place.to_string(), most }.into_source()))
            }
            Err(error) => Err(self.cut(&*error)),
        }
    }

    fn request(&self, ask: Ask, accept: &'static str) -> Result<(Request<Full<Bytes>>, CaptureConnection), Undone> {
        let mut request = Request::new(Full::new(ask.body.clone().unwrap_or_default()));
        *request.method_mut() = ask.method;
        *request.uri_mut() = self.place.uri(&ask.path).map_err(Undone::NotDone)?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if ask.body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let connection = capture_connection(&mut request);
        Ok((request, connection))
    }

    fn failed(&self, error: &ClientError) -> Undone {
        let below = std::error::Error::source(error).and_then(|source| source.downcast_ref::<hyper::Error>());
        // A request that a closed connection gave back was never begun.
        if error.is_connect() || below.is_some_and(hyper::Error::is_canceled) {
            return Undone::NotDone(self.unreachable(cause(error)));
        }
        self.cut(error)
    }

    fn cut(&self, error: &(dyn std::error::Error + 'static)) -> Undone {
        Undone::Unknown(Odd::Cut { place: self.place.to_string(), cause: cause(error) }.into_source())
    }

    fn late(&self, patience: Duration, connection: &CaptureConnection) -> Undone {
        let late = Odd::Late { place: self.place.to_string(), seconds: patience.as_secs_f64() };
        // Before there was a connection nothing can have been written to it.
        if connection.connection_metadata().is_none() {
            return Undone::NotDone(self.unreachable(late.to_string()));
        }
        Undone::Unknown(late.into_source())
    }

    /// The server cannot be reached. Nothing was done.
    pub(crate) fn unreachable(&self, why: impl fmt::Display) -> MessagingError {
        let source: Option<ErrorSource> = None;
        MessagingError::Connection { provider: PROVIDER, detail: format!("{}: {why}", self.place), source }
    }
}

fn authorization(options: &HttpOptions) -> Result<Option<HeaderValue>, MessagingError> {
    let Some(token) = &options.token else { return Ok(None) };
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| {
        MessagingError::invalid("token", format!("{TOKEN} has characters that no token has; copy it again"))
    })?;
    // Keeps it out of whatever prints headers.
    value.set_sensitive(true);
    Ok(Some(value))
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("place", &self.place).finish_non_exhaustive()
    }
}
