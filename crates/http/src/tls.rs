//! Encrypted connections.

use std::path::Path;
use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use postrider_core::MessagingError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::url::ServerUrl;

/// Opens connections.
pub(crate) type Connector = HttpsConnector<HttpConnector>;

/// Trusted authorities.
#[derive(Debug, Clone, Copy)]
enum Trust<'a> {
    /// None, for an unencrypted URL.
    None,
    /// Those of the machine.
    Machine,
    /// Those in a file.
    File(&'a Path),
}

/// The connector for a URL.
pub(crate) fn connector(
    tcp: HttpConnector,
    server: &ServerUrl,
    ca_file: Option<&Path>,
) -> Result<Connector, MessagingError> {
    let trust = match (server.is_encrypted(), ca_file) {
        (true, Some(path)) => Trust::File(path),
        (true, None) => Trust::Machine,
        (false, None) => Trust::None,
        (false, Some(_)) => {
            let why = "it needs an encrypted connection; write https:// or remove it";
            return Err(MessagingError::invalid("ca_file", why));
        }
    };
    let builder = HttpsConnectorBuilder::new().with_tls_config(config(trust)?);
    Ok(builder.https_or_http().enable_http1().wrap_connector(tcp))
}

fn config(trust: Trust<'_>) -> Result<ClientConfig, MessagingError> {
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |error: rustls::Error| MessagingError::invalid("TLS", error.to_string());
    let builder =
        ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions().map_err(unusable)?;
    Ok(builder.with_root_certificates(authorities(trust)?).with_no_client_auth())
}

fn authorities(trust: Trust<'_>) -> Result<RootCertStore, MessagingError> {
    let mut store = RootCertStore::empty();
    let unusable = |why: String| MessagingError::invalid("ca_file", why);
    match trust {
        Trust::None => {}
        Trust::File(path) => {
            let shown = path.display();
            let unreadable = |error: rustls::pki_types::pem::Error| unusable(format!("'{shown}': {error}"));
            for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
                let added = store.add(certificate.map_err(unreadable)?);
                added.map_err(|error| unusable(format!("'{shown}': {error}")))?;
            }
            if store.is_empty() {
                return Err(unusable(format!("'{shown}' has no certificate")));
            }
        }
        Trust::Machine => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(unusable("this machine has no trusted authorities; set a file of certificates".into()));
            }
        }
    }
    Ok(store)
}
