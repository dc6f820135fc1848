//! Encrypted connections and trusted authorities.

use std::sync::Arc;

use postrider_core::MessagingError;
use postrider_http::{HttpOptions, HttpStore};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::fake::{Reply, serve_stream};

/// A server with a self-signed certificate for 127.0.0.1: its URL and the certificate.
async fn server() -> (String, rcgen::Certificate) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve_stream(stream, |_| Reply::Cut).await;
                }
            });
        }
    });
    (url, cert)
}

#[tokio::test]
async fn a_server_is_trusted_only_with_its_own_authority() {
    let (url, certificate) = server().await;
    let (_, other) = server().await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        HttpOptions { ca_file: Some(path), ..HttpOptions::default() }
    };
    let store = HttpStore::open(&url, write("own.pem", certificate.pem())).await.unwrap();
    assert!(store.server().starts_with("https://127.0.0.1:"), "{}", store.server());
    for options in [write("other.pem", other.pem()), HttpOptions::default()] {
        match HttpStore::open(&url, options).await {
            Err(error @ MessagingError::Connection { .. }) => {
                assert!(error.to_string().contains("certificate"), "{error}");
            }
            // A machine without trusted authorities.
            Err(MessagingError::InvalidInput { what: "ca_file", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    for bad in [write("empty.pem", String::new()), write("odd.pem", "-----BEGIN CERTIFICATE-----\nx".into())] {
        let opened = HttpStore::open(&url, bad).await;
        assert!(matches!(opened, Err(MessagingError::InvalidInput { what: "ca_file", .. })), "{opened:?}");
    }
}

#[tokio::test]
async fn a_ca_file_without_encryption_is_refused() {
    let options = HttpOptions { ca_file: Some("/authority.pem".into()), ..HttpOptions::default() };
    let opened = HttpStore::open("http://127.0.0.1:1", options).await;
    assert!(matches!(opened, Err(MessagingError::InvalidInput { what: "ca_file", .. })), "{opened:?}");
}
