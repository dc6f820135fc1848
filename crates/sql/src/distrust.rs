//! Detection of untrusted server certificates.

use std::error::Error;

/// Without TLS no server presents a certificate.
#[cfg(not(feature = "tls"))]
pub fn is_distrust(_: &(dyn Error + 'static)) -> bool {
    false
}

/// Whether an error or one of its causes is an untrusted server certificate. Only another certificate or another URL
/// helps.
#[cfg(feature = "tls")]
pub fn is_distrust(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // `io::Error::source` skips the error that it wraps.
        let carried = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let carried = carried.and_then(|error| error.downcast_ref());
        if matches!(carried.or(error.downcast_ref()), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use std::io;

    use rustls::CertificateError;

    use super::*;

    #[test]
    fn an_untrusted_certificate_is_told_from_a_broken_connection() {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(is_distrust(&unknown()));
        assert!(is_distrust(&io::Error::new(io::ErrorKind::InvalidData, unknown())));
        let broken = rustls::Error::HandshakeNotComplete;
        assert!(!is_distrust(&io::Error::new(io::ErrorKind::InvalidData, broken)));
        assert!(!is_distrust(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}
