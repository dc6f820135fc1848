//! The tokens of a server, asked for over its API.
//!
//! The client of the API is for stores, and a store has no tokens; so these three requests are made here. Whether the
//! server is there, and knows whoever asks, that client has found out before.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use postrider::config::{HttpConfig, StoreUrl};
use postrider::http::wire::token::{NewToken as Made, NewTokenRequest, TokenInfo, Tokens};
use postrider::http::wire::{Code, Problem};
use postrider::{Bytes, Config, Deadline, MessagingService};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::failure::Failure;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tokens of a server.
pub(super) struct Remote {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: StoreUrl,
    authorization: Option<HeaderValue>,
}

impl Remote {
    /// Those of the server that the configuration names.
    pub(super) async fn new(config: &Config) -> Result<Self, Failure> {
        config.endpoint()?.connect().await?.close(Deadline::default()).await?;
        let http = &config.common().messaging.http;
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let tls =
            ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions().map_err(unusable)?;
        let tls = tls.with_root_certificates(authorities(http)?).with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(http.connection_timeout));
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(connector.wrap_connector(tcp));
        let authorization = http.token.as_ref().map(|token| format!("Bearer {}", token.reveal().trim()));
        let authorization = authorization.map(HeaderValue::try_from).transpose().map_err(unusable)?;
        Ok(Self { client, url: config.url().clone(), authorization })
    }

    pub(super) async fn create(&self, asked: &NewTokenRequest) -> Result<Made, Failure> {
        self.ask(Method::POST, "/v1/tokens", serde_json::to_vec(asked).map_err(unusable)?).await?.map_err(refused)
    }

    pub(super) async fn list(&self) -> Result<Vec<TokenInfo>, Failure> {
        let tokens: Tokens = self.ask(Method::GET, "/v1/tokens", Vec::new()).await?.map_err(refused)?;
        Ok(tokens.tokens)
    }

    /// Takes one back; answers whether it was there.
    pub(super) async fn revoke(&self, id: Uuid) -> Result<bool, Failure> {
        match self.ask::<()>(Method::DELETE, &format!("/v1/tokens/{id}"), Vec::new()).await? {
            Ok(()) => Ok(true),
            Err(problem) if problem.code == Code::NotFound => Ok(false),
            Err(problem) => Err(refused(problem)),
        }
    }

    /// Makes a request; the answer, or why the server refused it.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Result<T, Box<Problem>>, Failure> {
        let url = format!("{}{path}", self.url.as_str().trim_end_matches('/'));
        let mut request = Request::builder().method(method).uri(url).header(ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(body.into())).map_err(unusable)?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| self.lost(error))?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|error| self.lost(error))?;
            Ok::<_, Failure>((status, body.to_bytes()))
        };
        let answer = tokio::time::timeout(PATIENCE, exchange).await;
        let (status, body) = answer.map_err(|_| self.lost("it did not answer in time"))??;
        self.read(status, &body)
    }

    fn read<T: DeserializeOwned>(&self, status: StatusCode, body: &[u8]) -> Result<Result<T, Box<Problem>>, Failure> {
        let garbled =
            |error| Failure::failed(format!("the answer of {}, {status}, cannot be understood: {error}", self.url));
        if !status.is_success() {
            return Ok(Err(serde_json::from_slice(body).map_err(garbled)?));
        }
        // An answer that says nothing but that it was done.
        let body = if body.is_empty() { b"null" } else { body };
        Ok(Ok(serde_json::from_slice(body).map_err(garbled)?))
    }

    fn lost(&self, why: impl std::fmt::Display) -> Failure {
        Failure::failed(format!("{}: {why}; see with 'postrider token list' whether it was done", self.url))
    }
}

/// Whom the server's certificate is trusted by.
fn authorities(http: &HttpConfig) -> Result<RootCertStore, Failure> {
    let mut store = RootCertStore::empty();
    match &http.ca_file {
        Some(file) => {
            for certificate in CertificateDer::pem_file_iter(file).map_err(unusable)? {
                store.add(certificate.map_err(unusable)?).map_err(unusable)?;
            }
        }
        None => drop(store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    Ok(store)
}

fn unusable(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the server cannot be asked: {error}"))
}

fn refused(problem: Box<Problem>) -> Failure {
    match problem.code {
        Code::Unauthorized | Code::Forbidden => {
            let detail = problem.detail.trim_end_matches('.');
            Failure::failed(format!("{detail}; give one that may do this as POSTRIDER_TOKEN"))
        }
        _ => problem.into_error("http").into(),
    }
}
