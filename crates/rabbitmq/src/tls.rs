//! TLS configuration: the certificate authorities that a broker's certificate is verified against.

use std::sync::Arc;

use data_encoding::BASE64;
use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri};
use postrider_core::MessagingError;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::options::RabbitmqOptions;

/// Loads the authorities of a file only, or without a file those of this machine.
pub(crate) fn authorities(ca_file: Option<&str>) -> Result<Vec<CertificateDer<'static>>, MessagingError> {
    let invalid = |why: String| MessagingError::invalid("ca_file", why);
    let Some(file) = ca_file else {
        let found = rustls_native_certs::load_native_certs().certs;
        return match found.is_empty() {
            true => {
                Err(invalid("this machine has no certificate authorities; set ca_file to a file of them".to_owned()))
            }
            false => Ok(found),
        };
    };
    let shown = file.escape_debug();
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match read {
        Ok(found) if found.is_empty() => Err(invalid(format!("'{shown}' has no certificate in PEM"))),
        Ok(found) => Ok(found),
        Err(error) => Err(invalid(format!("'{shown}' cannot be read: {error}"))),
    }
}

/// Returns the TLS connector for the management interface.
pub(crate) fn connector(ca_file: Option<&str>) -> Result<TlsConnector, MessagingError> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities(ca_file)? {
        // A certificate that cannot be parsed is skipped: it is not trusted.
        let _ = roots.add(certificate);
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| MessagingError::invalid("TLS", error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns the TLS configuration for lapin, with the authorities in PEM; `None` for `amqp://`.
///
/// lapin is built without authorities of its own: it would add those of this machine to those of the file.
pub(crate) fn config(uri: &AMQPUri, options: &RabbitmqOptions) -> Result<Option<OwnedTLSConfig>, MessagingError> {
    if uri.scheme == AMQPScheme::AMQP {
        return Ok(None);
    }
    let of = |certificate: &CertificateDer<'_>| {
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64.encode(certificate))
    };
    let chain = authorities(options.ca_file.as_deref())?.iter().map(of).collect();
    Ok(Some(OwnedTLSConfig { identity: None, cert_chain: Some(chain) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_ca_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "nothing\n").unwrap();
        for (file, told) in [(folder.path().join("none.pem"), "cannot be read"), (empty, "has no certificate in PEM")] {
            let file = file.to_str().unwrap();
            let text = authorities(Some(file)).unwrap_err().to_string();
            assert!(text.contains(file) && text.contains(told) && text.contains("ca_file"), "{text}");
        }
    }
}
