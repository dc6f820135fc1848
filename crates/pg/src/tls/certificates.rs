//! Verification of the server's certificate.

use std::sync::Arc;

use postrider_core::MessagingError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::Trust;

/// Returns the TLS configuration, with the authorities of a file or of the machine.
pub(super) fn client_config(trust: Trust, roots: Option<&str>) -> Result<ClientConfig, MessagingError> {
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |error: rustls::Error| MessagingError::invalid("TLS", error.to_string());
    let builder =
        ClientConfig::builder_with_provider(crypto.clone()).with_safe_default_protocol_versions().map_err(unusable)?;
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Unverified => Arc::new(Lenient { chain: None, crypto }),
        Trust::Authority | Trust::Name => {
            let chain = WebPkiServerVerifier::builder_with_provider(authorities(roots)?.into(), crypto.clone())
                .build()
                .map_err(|error| MessagingError::invalid("sslrootcert", error.to_string()))?;
            match trust {
                Trust::Name => chain,
                Trust::Authority | Trust::Unverified => Arc::new(Lenient { chain: Some(chain), crypto }),
            }
        }
    };
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Returns the authorities of a file, or of the machine.
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
                return Err(unusable("this machine has no authorities; name a file of certificates".into()));
            }
        }
    }
    Ok(store)
}

/// Verifies the authority at most, not the name.
#[derive(Debug)]
struct Lenient {
    /// `None` verifies nothing.
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
            // The name is checked last.
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
