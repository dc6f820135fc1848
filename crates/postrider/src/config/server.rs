//! How a server is run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::draft::Draft;
use super::error::Problem;
use super::keys;
use super::store_url::StoreUrl;

/// Where a server listens when nobody says it.
pub(super) const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8025);

/// How a server is run.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The certificate of a server with TLS; there is a key then too.
    pub tls_certificate: Option<PathBuf>,
    /// Its key.
    pub tls_key: Option<PathBuf>,
    /// The largest body of a request.
    pub max_request_bytes: u32,
    /// The bytes of all bodies that are read and all answers that are written at once.
    pub max_bytes_in_flight: u32,
    /// So many connections at once.
    pub max_connections: u32,
    /// So many requests a second of each token or address; `None` is no limit.
    pub requests_per_second: Option<f64>,
    /// How long the head of a request may take to arrive.
    pub head_timeout: Duration,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How long a client may read nothing of an answer.
    pub write_timeout: Duration,
    /// How long running requests have when the server stops.
    pub graceful_timeout: Duration,
    /// How often queues are looked at.
    pub sample_interval: Duration,
    /// Where traces are sent to.
    pub otlp_endpoint: Option<StoreUrl>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: LISTEN,
            tls_certificate: None,
            tls_key: None,
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

/// A request that is allowed must have room.
pub(super) fn check_memory(draft: &Draft) -> Result<(), Problem> {
    let ServerConfig { max_request_bytes, max_bytes_in_flight, .. } = draft.server;
    match max_request_bytes <= max_bytes_in_flight {
        true => Ok(()),
        false => {
            let why = format!(
                "a request of {max_request_bytes} bytes, as {} allows, would have no room",
                keys::SERVER_REQUEST_BYTES
            );
            Err(draft.refuse(keys::SERVER_BYTES_IN_FLIGHT, why))
        }
    }
}

/// A certificate is of no use without its key, nor a key without its certificate.
pub(super) fn check_tls(draft: &Draft) -> Result<(), Problem> {
    let (given, missing) = match (&draft.server.tls_certificate, &draft.server.tls_key) {
        (Some(_), None) => (keys::SERVER_TLS_CERTIFICATE, keys::SERVER_TLS_KEY),
        (None, Some(_)) => (keys::SERVER_TLS_KEY, keys::SERVER_TLS_CERTIFICATE),
        _ => return Ok(()),
    };
    Err(draft.refuse(given, format!("it is of no use without {missing}; give both, or none")))
}
