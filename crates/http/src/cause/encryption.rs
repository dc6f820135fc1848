//! The causes of TLS failures.

use std::error::Error;
use std::io;

use rustls::{CertificateError, Error as TlsError};

/// The cause, if it is a TLS error.
pub(super) fn cause(error: &(dyn Error + 'static)) -> Option<String> {
    tls_error(error).map(describe)
}

/// The TLS error, directly or inside an I/O error.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e TlsError> {
    let inside = |error: &'e io::Error| error.get_ref().and_then(|inner| tls_error(inner));
    error.downcast_ref::<TlsError>().or_else(|| error.downcast_ref::<io::Error>().and_then(inside))
}

fn describe(error: &TlsError) -> String {
    use CertificateError as C;
    let certificate = match error {
        TlsError::InvalidCertificate(certificate) => certificate,
        TlsError::InvalidMessage(_) => {
            return "the answer is not encrypted; write http:// instead of https://".to_owned();
        }
        other => return other.to_string(),
    };
    match certificate {
        C::Expired | C::ExpiredContext { .. } => "its certificate has expired; renew it".to_owned(),
        C::NotValidYet | C::NotValidYetContext { .. } => {
            "its certificate is not valid yet; check the clocks of both machines".to_owned()
        }
        C::NotValidForName => "its certificate is for another name; use that one in the URL".to_owned(),
        C::NotValidForNameContext { presented, .. } => {
            // Each is a variant name with the name in quotes.
            let name = |name: &String| name.split('"').nth(1).unwrap_or(name).to_owned();
            let names: Vec<_> = presented.iter().map(name).collect();
            format!("its certificate is for {}; use one of these in the URL", names.join(", "))
        }
        C::Revoked => "its certificate was revoked; use another".to_owned(),
        C::BadEncoding => "its certificate cannot be read".to_owned(),
        // rustls has no variant for it.
        C::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority, not of a server; make one with basicConstraints CA:FALSE"
                .to_owned()
        }
        _ => "its certificate is not signed by a trusted authority; if it is genuine, set the option 'ca_file' \
              (common.messaging.http.ca_file) to the certificate of its authority, or to itself if it is self-signed"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::cause;

    fn text_of(error: CertificateError) -> String {
        // As connections report it.
        cause(&io::Error::new(io::ErrorKind::InvalidData, TlsError::InvalidCertificate(error)))
    }

    #[test]
    fn certificate_errors_say_what_to_do() {
        assert!(text_of(CertificateError::UnknownIssuer).contains("common.messaging.http.ca_file"));
        assert!(text_of(CertificateError::Expired).contains("renew it"));
        let other = CertificateError::NotValidForNameContext {
            expected: rustls::pki_types::ServerName::try_from("localhost").unwrap().to_owned(),
            presented: vec!["DnsName(\"a.example\")".into(), "IpAddress(10.0.0.1)".into()],
        };
        let text = text_of(other);
        assert!(text.starts_with("its certificate is for a.example, IpAddress(10.0.0.1)"), "{text}");
    }
}
