//! Whose certificates a broker's own is checked against.

use data_encoding::BASE64;
use lapin::tcp::OwnedTLSConfig;
use postrider_core::MessagingError;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

/// The authorities of a file and of nobody else, or without one those of this machine.
pub(crate) fn authorities(ca_file: Option<&str>) -> Result<Vec<CertificateDer<'static>>, MessagingError> {
    let invalid = |why: String| MessagingError::invalid("ca_file", why);
    let Some(file) = ca_file else {
        let found = rustls_native_certs::load_native_certs().certs;
        return match found.is_empty() {
            true => Err(invalid("this machine has no authorities for TLS; name a file of them".to_owned())),
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

/// The same for lapin, which reads text. It is built to trust nobody by itself: it would add this machine's authorities to
/// those of the file.
pub(crate) fn config(ca_file: Option<&str>) -> Result<OwnedTLSConfig, MessagingError> {
    let of = |certificate: &CertificateDer<'_>| {
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64.encode(certificate))
    };
    let chain = authorities(ca_file)?.iter().map(of).collect();
    Ok(OwnedTLSConfig { identity: None, cert_chain: Some(chain) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_of_no_use_is_named() {
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
