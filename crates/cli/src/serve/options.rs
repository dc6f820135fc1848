//! The server's options from the configuration.

use postrider::config::ServerConfig;
use postrider_server::{ServerOptions, TlsFiles};

/// Returns the server's options.
pub(super) fn options(server: &ServerConfig) -> ServerOptions {
    let files = server.tls_certificate.clone().zip(server.tls_key.clone());
    ServerOptions {
        listen: server.listen,
        tls: files.map(|(certificate, key)| TlsFiles { certificate, key }),
        max_request_bytes: server.max_request_bytes as usize,
        max_bytes_in_flight: server.max_bytes_in_flight as usize,
        max_connections: server.max_connections as usize,
        requests_per_second: server.requests_per_second,
        head_timeout: server.head_timeout,
        body_timeout: server.body_timeout,
        write_timeout: server.write_timeout,
        graceful_timeout: server.graceful_timeout,
        sample_interval: server.sample_interval,
        otlp_endpoint: server.otlp_endpoint.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_and_server_have_the_same_defaults() {
        assert_eq!(options(&ServerConfig::default()), ServerOptions::default());
    }
}
