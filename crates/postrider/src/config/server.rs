//! Settings of a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::draft::Draft;
use super::error::Problem;
use super::keys;
use super::store_url::StoreUrl;

/// The default listening address.
pub(super) const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8025);

/// Settings of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// The listening address.
    pub listen: SocketAddr,
    /// The TLS certificate; set together with the key.
    pub tls_certificate: Option<PathBuf>,
    /// The key of the certificate.
    pub tls_key: Option<PathBuf>,
    /// The largest body of a request.
    pub max_request_bytes: u32,
    /// Upper bound of the bytes of all request bodies and answers in memory.
    pub max_bytes_in_flight: u32,
    /// Upper bound of connections.
    pub max_connections: u32,
    /// Requests per second of each token or address; `None` is no limit.
    pub requests_per_second: Option<f64>,
    /// Time limit of a request's head.
    pub head_timeout: Duration,
    /// Time limit of a request's body.
    pub body_timeout: Duration,
    /// Longest time in which a client reads nothing of an answer.
    pub write_timeout: Duration,
    /// Time for running requests when the server stops.
    pub graceful_timeout: Duration,
    /// Interval of queue samples.
    pub sample_interval: Duration,
    /// The target of traces.
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

/// Checks that an allowed request fits into the bytes in flight.
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

/// Checks that certificate and key are set together.
pub(super) fn check_tls(draft: &Draft) -> Result<(), Problem> {
    let (given, missing) = match (&draft.server.tls_certificate, &draft.server.tls_key) {
        (Some(_), None) => (keys::SERVER_TLS_CERTIFICATE, keys::SERVER_TLS_KEY),
        (None, Some(_)) => (keys::SERVER_TLS_KEY, keys::SERVER_TLS_CERTIFICATE),
        _ => return Ok(()),
    };
    Err(draft.refuse(given, format!("it is of no use without {missing}; give both, or none")))
}
