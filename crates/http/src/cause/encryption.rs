//! Why encryption failed.

use std::error::Error;
use std::io;

use rustls::{CertificateError, Error as TlsError};

/// The reason, if it is one of encryption.
pub(super) fn cause(error: &(dyn Error + 'static)) -> Option<String> {
    of_tls(error).map(told)
}

/// What encryption failed by, if it did.
fn of_tls<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e TlsError> {
    let below = |error: &'e io::Error| error.get_ref().and_then(|below| of_tls(below));
    error.downcast_ref::<TlsError>().or_else(|| error.downcast_ref::<io::Error>().and_then(below))
}

fn told(error: &TlsError) -> String {
    use CertificateError as C;
    let certificate = match error {
        TlsError::InvalidCertificate(certificate) => certificate,
        TlsError::InvalidMessage(_) => {
            return "what came is not encrypted; write http:// instead of https://".to_owned();
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
            // Each is a kind of name around the name in quotes.
            let name = |name: &String| name.split('"').nth(1).unwrap_or(name).to_owned();
            let names: Vec<_> = presented.iter().map(name).collect();
            format!("its certificate is for {}; use such a name in the URL", names.join(", "))
        }
        C::Revoked => "its certificate was revoked; use another".to_owned(),
        C::BadEncoding => "its certificate cannot be read".to_owned(),
        // The libraries have no other way to say so.
        C::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is one of an authority, which no server may show; make one with basicConstraints CA:FALSE"
                .to_owned()
        }
        _ => "its certificate was signed by nobody who is trusted here; if it is the right one, name its authority's (its \
              own, if it is self-signed) by the option 'ca_file' (common.messaging.http.ca_file)"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::cause;

    fn of_certificate(error: CertificateError) -> String {
        // As connections give it.
        cause(&io::Error::new(io::ErrorKind::InvalidData, TlsError::InvalidCertificate(error)))
    }

    #[test]
    fn certificates_are_judged_in_plain_words() {
        assert!(of_certificate(CertificateError::UnknownIssuer).contains("common.messaging.http.ca_file"));
        assert!(of_certificate(CertificateError::Expired).contains("renew it"));
        let other = CertificateError::NotValidForNameContext {
            expected: rustls::pki_types::ServerName::try_from("localhost").unwrap().to_owned(),
            presented: vec!["DnsName(\"a.example\")".into(), "IpAddress(10.0.0.1)".into()],
        };
        let text = of_certificate(other);
        assert!(text.starts_with("its certificate is for a.example, IpAddress(10.0.0.1)"), "{text}");
    }
}
