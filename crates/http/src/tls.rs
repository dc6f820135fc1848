//! Encrypted connections: whom the server's certificate is trusted by.

use std::path::Path;
use std::sync::Arc;

use postrider_core::MessagingError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Whose certificates are trusted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trust<'a> {
    /// Nobody's: for a URL that asks for no encryption, where none is ever shown.
    Nobody,
    /// The machine's authorities'.
    Machine,
    /// Those of the authorities in a file.
    File(&'a Path),
}

pub(crate) fn config(trust: Trust<'_>) -> Result<ClientConfig, MessagingError> {
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
        Trust::Nobody => {}
        Trust::File(path) => {
            let shown = path.display();
            let unreadable = |error: rustls::pki_types::pem::Error| unusable(format!("'{shown}': {error}"));
            for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
                let added = store.add(certificate.map_err(unreadable)?);
                added.map_err(|error| unusable(format!("'{shown}': {error}")))?;
            }
            if store.is_empty() {
                return Err(unusable(format!("'{shown}' holds no certificate")));
            }
        }
        Trust::Machine => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(unusable("this machine knows no authorities; name a file of certificates".into()));
            }
        }
    }
    Ok(store)
}
