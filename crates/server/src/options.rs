//! How a server is run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use postrider::config::StoreUrl;

/// A certificate and its key, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those that vouch for it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// How a server is run. The defaults are those of the configuration's section `[server]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerOptions {
    /// Where it listens. Any address but loopback needs a token.
    pub listen: SocketAddr,
    /// With TLS.
    pub tls: Option<TlsFiles>,
    /// The largest body of a request.
    pub max_request_bytes: usize,
    /// The bytes of all bodies that are read and all answers that are written at once; more wait for room.
    pub max_bytes_in_flight: usize,
    /// So many connections at once; more wait until one ends.
    pub max_connections: usize,
    /// So many requests a second of each token, or address where there is none; `None` is no limit.
    pub requests_per_second: Option<f64>,
    /// How long the head of a request may take to arrive.
    pub head_timeout: Duration,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How long a client may read nothing of an answer.
    pub write_timeout: Duration,
    /// How long running requests have when the server stops.
    pub graceful_timeout: Duration,
    /// How often queues are looked at, for the charts, the metrics and the live page.
    pub sample_interval: Duration,
    /// Where traces are sent to by OTLP over HTTP, like `http://127.0.0.1:4318`.
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
