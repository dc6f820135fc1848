//! A server whose certificate is not trusted.

use std::error::Error;

/// Without TLS no server shows a certificate.
#[cfg(not(feature = "tls"))]
pub fn is_distrust(_: &(dyn Error + 'static)) -> bool {
    false
}

/// Whether an error, or what caused it, is that the server's certificate is not trusted: nothing will mend it but
/// another certificate or another URL.
#[cfg(feature = "tls")]
pub fn is_distrust(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // What an error of the system carries is not told as its cause.
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
    fn a_certificate_is_told_from_a_connection_that_broke() {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(is_distrust(&unknown()));
        assert!(is_distrust(&io::Error::new(io::ErrorKind::InvalidData, unknown())));
        let broken = rustls::Error::HandshakeNotComplete;
        assert!(!is_distrust(&io::Error::new(io::ErrorKind::InvalidData, broken)));
        assert!(!is_distrust(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}
