//! Encrypted connections, with the meaning that `sslmode` and `sslrootcert` have for every client of PostgreSQL.

use std::sync::Arc;

use postrider_core::MessagingError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How far the server's certificate is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Whoever answers is the server.
    Anybody,
    /// A known authority has signed the certificate, for whatever name.
    Authority,
    /// A known authority has signed the certificate, for the name in the URL.
    Name,
}

/// Takes what the driver does not know out of a URL, and answers how to connect.
pub(crate) fn prepare(url: &str) -> Result<(String, MakeRustlsConnect), MessagingError> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let authority = base.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    if authority.matches('@').count() > 1 {
        return Err(MessagingError::invalid("URL", "it has two '@'; write one in a user's name or password as %40"));
    }
    let (mut trust, mut roots, mut kept) = (Trust::Anybody, None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", "verify-ca")) => {
                trust = Trust::Authority;
                kept.push("sslmode=require");
            }
            Some(("sslmode", "verify-full")) => {
                trust = Trust::Name;
                kept.push("sslmode=require");
            }
            Some(("sslmode", mode)) if !["disable", "prefer", "require"].contains(&mode) => {
                return Err(MessagingError::invalid(
                    "sslmode",
                    format!(
                        "'{}' is not known; use disable, prefer, require, verify-ca or verify-full",
                        mode.escape_debug()
                    ),
                ));
            }
            Some(("sslrootcert", path)) => roots = Some(decode(path)?),
            _ => kept.push(pair),
        }
    }
    if roots.is_some() && trust == Trust::Anybody {
        if !kept.contains(&"sslmode=require") {
            let why = "it is of no use without sslmode=require, verify-ca or verify-full";
            return Err(MessagingError::invalid("sslrootcert", why));
        }
        // As for other clients: who names an authority wants it to be asked.
        trust = Trust::Authority;
    }
    let url = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    Ok((url, MakeRustlsConnect::new(client_config(trust, roots.as_deref())?)))
}

/// A path may have any character, written as `%` and two digits.
fn decode(path: &str) -> Result<String, MessagingError> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match (byte, code.and_then(|code| u8::from_str_radix(code, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| MessagingError::invalid("sslrootcert", "it is no path in UTF-8"))
}

fn client_config(trust: Trust, roots: Option<&str>) -> Result<ClientConfig, MessagingError> {
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |error: rustls::Error| MessagingError::invalid("TLS", error.to_string());
    let builder =
        ClientConfig::builder_with_provider(crypto.clone()).with_safe_default_protocol_versions().map_err(unusable)?;
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anybody => Arc::new(Lenient { chain: None, crypto }),
        Trust::Authority | Trust::Name => {
            let chain = WebPkiServerVerifier::builder_with_provider(authorities(roots)?.into(), crypto.clone())
                .build()
                .map_err(|error| MessagingError::invalid("sslrootcert", error.to_string()))?;
            match trust {
                Trust::Name => chain,
                Trust::Authority | Trust::Anybody => Arc::new(Lenient { chain: Some(chain), crypto }),
            }
        }
    };
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// The authorities of a file, or those of the machine.
fn authorities(roots: Option<&str>) -> Result<RootCertStore, MessagingError> {
    let mut store = RootCertStore::empty();
    let unusable = |why: String| MessagingError::invalid("sslrootcert", why);
    match roots {
        Some(path) => {
            let unreadable = |error: rustls::pki_types::pem::Error| unusable(format!("'{path}': {error}"));
            for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
                let added = store.add(certificate.map_err(unreadable)?);
                added.map_err(|error| unusable(format!("'{path}': {error}")))?;
            }
            if store.is_empty() {
                return Err(unusable(format!("'{path}' holds no certificate")));
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(unusable("this machine knows no authorities; name a file of certificates".into()));
            }
        }
    }
    Ok(store)
}

/// Asks less of a certificate than its name.
#[derive(Debug)]
struct Lenient {
    /// `None` asks nothing.
    chain: Option<Arc<WebPkiServerVerifier>>,
    crypto: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is the last thing that is looked at.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.crypto.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.crypto.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_does_not_know_is_taken_out() {
        let rewritten = |url: &str| prepare(url).map(|(url, _)| url);
        assert_eq!(rewritten("postgres://h/d").unwrap(), "postgres://h/d");
        assert_eq!(
            rewritten("postgres://h/d?sslmode=prefer&connect_timeout=3").unwrap(),
            "postgres://h/d?sslmode=prefer&connect_timeout=3"
        );
        let refused = rewritten("postgres://h/d?sslmode=verify-all").unwrap_err().to_string();
        assert!(refused.contains("verify-full"), "{refused}");
        assert!(rewritten("postgres://u:p@ss@h/d").unwrap_err().to_string().contains("%40"));
        assert!(rewritten("postgres://h/d?sslrootcert=/x.pem").is_err());
        let missing = rewritten("postgres://h/d?sslmode=verify-full&sslrootcert=%2Fno%2Fsuch").unwrap_err().to_string();
        assert!(missing.contains("'/no/such'"), "{missing}");
    }
}
