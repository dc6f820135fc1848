//! The HTTP client of the SDK: HTTP/1.1, with the same rustls as every other connection.
//!
//! The SDK's own client has more features (HTTP/2, proxies, other TLS libraries) and adds a megabyte to a program.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use futures_util::future::BoxFuture;
use http::{Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use postrider_core::MessagingError;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tower_service::Service;

/// The source of a connection error.
type Cause = Box<dyn Error + Send + Sync>;

/// Provides the SDK's HTTP clients.
#[derive(Clone)]
pub(crate) struct Transport {
    connector: HttpsConnector<Tcp>,
    /// One client for each pair of time-outs: SQS and the credentials provider have different ones. The SDK requests a client
    /// for every call.
    clients: Arc<Mutex<Vec<(Timeouts, SharedHttpConnector)>>>,
}

/// Time limits of a connect and of the beginning of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Timeouts {
    connect: Option<Duration>,
    read: Option<Duration>,
}

impl Transport {
    pub(crate) fn new() -> Result<Self, MessagingError> {
        let mut roots = RootCertStore::empty();
        // Without certificate authorities the first TLS connection fails, with an error that names the server.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| MessagingError::invalid("TLS", error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = Tcp::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().wrap_connector(tcp);
        Ok(Self { connector, clients: Arc::default() })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}

impl HttpClient for Transport {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        let timeouts = Timeouts { connect: settings.connect_timeout(), read: settings.read_timeout() };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = clients.iter().find(|(of, _)| *of == timeouts) {
            return client.clone();
        }
        let timed = TimedConnector { connector: self.connector.clone(), limit: timeouts.connect };
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(timed);
        let client = SharedHttpConnector::new(TimedClient { client, read_timeout: timeouts.read });
        clients.push((timeouts, client.clone()));
        client
    }
}

/// Opens connections, TLS included, within a time limit.
#[derive(Clone)]
struct TimedConnector {
    connector: HttpsConnector<Tcp>,
    limit: Option<Duration>,
}

impl Service<Uri> for TimedConnector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = Cause;
    type Future = BoxFuture<'static, Result<Self::Response, Cause>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Cause>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let address = to.authority().map(ToString::to_string).unwrap_or_default();
        let (opened, limit) = (self.connector.call(to), self.limit);
        Box::pin(async move {
            let opened = match limit {
                None => opened.await,
                Some(limit) => tokio::time::timeout(limit, opened).await.unwrap_or_else(|_| {
                    Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}")).into())
                }),
            };
            opened.map_err(|source| ConnectFailed { address, source }.into())
        })
    }
}

/// A failed connect: the address and the source.
#[derive(Debug, thiserror::Error)]
#[error("{address}")]
struct ConnectFailed {
    address: String,
    source: Cause,
}

/// A client with a time limit for answers.
#[derive(Debug)]
struct TimedClient {
    client: Client<TimedConnector, SdkBody>,
    read_timeout: Option<Duration>,
}

impl HttpConnector for TimedClient {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let request: Request<SdkBody> = match request.try_into_http1x() {
            Ok(request) => request,
            Err(error) => return HttpConnectorFuture::ready(Err(ConnectorError::user(error.into()))),
        };
        let (answer, limit) = (self.client.request(request), self.read_timeout);
        HttpConnectorFuture::new(async move {
            let answer = match limit {
                Some(limit) => {
                    tokio::time::timeout(limit, answer).await.map_err(|late| ConnectorError::timeout(late.into()))?
                }
                None => answer.await,
            };
            let answer = answer.map_err(|error| ConnectorError::io(error.into()))?;
            HttpResponse::try_from(answer.map(SdkBody::from_body_1_x))
                .map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}
