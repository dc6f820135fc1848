//! A client that does as little as it can: one connection, one request at a time.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::Failure;

/// A connection that is kept open.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends with its sender; whatever goes wrong with it is told there.
        tokio::spawn(connection);
        Ok(Self { sender, host: address.to_string() })
    }

    async fn ask(&mut self, method: Method, path: &str, body: String, status: u16) -> Result<Value, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let got = answer.status().as_u16();
        let bytes = answer.into_body().collect().await?.to_bytes();
        if got != status {
            return Err(format!("{path} answered {got}: {}", String::from_utf8_lossy(&bytes)).into());
        }
        Ok(serde_json::from_slice(&bytes)?)
    }

    pub(super) async fn post(&mut self, path: &str, body: String, status: u16) -> Result<Value, Failure> {
        self.ask(Method::POST, path, body, status).await
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::GET, path, String::new(), 200).await
    }
}
