//! A minimal HTTP client: one connection, one request at a time, answers parsed only as far as needed. It runs on the same
//! machine as the server, so its own cost must be small.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Failure;

/// A keep-alive connection.
pub(super) struct Connection {
    stream: TcpStream,
    host: String,
    read: Vec<u8>,
}

/// An encoded request that can be sent repeatedly.
pub(super) struct Prepared {
    bytes: Vec<u8>,
    status: String,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host: address.to_string(), read: Vec::with_capacity(4096) })
    }

    pub(super) fn prepare(&self, method: &str, path: &str, body: &str, status: u16) -> Prepared {
        let (host, length) = (&self.host, body.len());
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: \
             {length}\r\n\r\n{body}"
        );
        Prepared { bytes: text.into_bytes(), status: format!("HTTP/1.1 {status} ") }
    }

    /// Sends a request and returns the body of its answer; fails on another status than the prepared one.
    pub(super) async fn exchange(&mut self, request: &Prepared) -> Result<&[u8], Failure> {
        self.stream.write_all(&request.bytes).await?;
        self.read.clear();
        loop {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err("the server closed the connection".into());
            }
            let Some(end) = self.read.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.read[..end])?;
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            let whole = end + 4 + length.ok_or("the answer has no content-length")?;
            if self.read.len() < whole {
                continue;
            }
            let is_expected = self.read.starts_with(request.status.as_bytes());
            let body = &self.read[end + 4..whole];
            return match is_expected {
                true => Ok(body),
                false => Err(format!("expected {}: {}", request.status, String::from_utf8_lossy(body)).into()),
            };
        }
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value, status: u16) -> Result<Value, Failure> {
        let request = self.prepare("POST", path, &body.to_string(), status);
        Ok(serde_json::from_slice(self.exchange(&request).await?)?)
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Value, Failure> {
        let request = self.prepare("GET", path, "", 200);
        Ok(serde_json::from_slice(self.exchange(&request).await?)?)
    }
}
