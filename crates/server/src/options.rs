//! Options of a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use postrider::config::StoreUrl;

/// A certificate and its key, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Options of a server. The defaults are those of the configuration's section `[server]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerOptions {
    /// Address to listen on. Any address but loopback needs a token.
    pub listen: SocketAddr,
    /// Certificate and key; `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Upper bound of a request's body.
    pub max_request_bytes: usize,
    /// Upper bound of the bytes of all requests and answers in flight; further ones wait for room.
    pub max_bytes_in_flight: usize,
    /// Upper bound of open connections; further ones wait until one closes.
    pub max_connections: usize,
    /// Request rate of each token, or of each address without a token; `None` is no limit.
    pub requests_per_second: Option<f64>,
    /// Time-out of a request's head.
    pub head_timeout: Duration,
    /// Time-out of a request's body.
    pub body_timeout: Duration,
    /// Time after which a client that reads nothing of an answer is disconnected.
    pub write_timeout: Duration,
    /// Time that running requests have when the server stops.
    pub graceful_timeout: Duration,
    /// Interval at which queues are sampled for charts, metrics and the live page.
    pub sample_interval: Duration,
    /// Collector for traces by OTLP over HTTP, like `http://127.0.0.1:4318`.
    pub otlp_endpoint: Option<StoreUrl>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8025)),
            tls: None,
            max_request_bytes: 16 * 1024 * 1024,
            max_bytes_in_flight: 256 * 1024 * 1024,
            max_connections: 4096,
            requests_per_second: None,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            graceful_timeout: Duration::from_secs(10),
            sample_interval: Duration::from_secs(5),
            otlp_endpoint: None,
        }
    }
}
