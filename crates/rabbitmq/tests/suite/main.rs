//! Tests of the provider against a running broker.

// A failure in a shared function is the failure of a test.
#![allow(clippy::unwrap_used)]

mod closed;
mod crash_loop;
mod cut_off;
mod dead_letters;
mod delays;
mod doctor;
mod keyed;
mod killed;
mod lawful;
mod memory;
mod queues;
#[cfg(feature = "tls")]
mod tls;

use postrider_core::Deadline;
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider, RabbitmqStore};

/// A unique prefix for the queue names of a test.
fn prefix() -> String {
    format!("t{:012x}", rand::random::<u64>() >> 16)
}

fn options() -> RabbitmqOptions {
    RabbitmqOptions { management_url: Some(management_url()), ..RabbitmqOptions::default() }
}

/// The broker under test.
fn url() -> String {
    setting("POSTRIDER_AMQP_URL")
}

fn management_url() -> String {
    setting("POSTRIDER_AMQP_MANAGEMENT_URL")
}

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start a broker with `scripts/services up rabbitmq`, then `eval \"$(scripts/services env)\"`"
        )
    })
}

async fn connect_with(options: RabbitmqOptions) -> RabbitmqProvider {
    RabbitmqStore::new(&url(), options).unwrap().connect().await.expect("the broker can be reached")
}

/// Closes the connections of that name through the management interface.
async fn end_connections(name: &str) {
    let all = manage("GET", "/api/connections").await;
    for connection in serde_json::from_slice::<Vec<serde_json::Value>>(&all).unwrap() {
        if connection["user_provided_name"] == name {
            let id = connection["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
            manage("DELETE", &format!("/api/connections/{id}")).await;
        }
    }
}

/// Sends a request to the management interface.
async fn manage(method: &str, path: &str) -> Vec<u8> {
    manage_with(method, path, "").await
}

/// Sends a request with a body to the management interface.
async fn manage_with(method: &str, path: &str, body: &str) -> Vec<u8> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let url = url::Url::parse(&management_url()).unwrap();
    let user = format!("{}:{}", url.username(), url.password().unwrap());
    let login = data_encoding::BASE64.encode(user.as_bytes());
    let (host, port) = (url.host_str().unwrap(), url.port().unwrap());
    let mut stream = tokio::net::TcpStream::connect((host, port)).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nhost: {host}\r\nauthorization: Basic {login}\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let body = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    answer.split_off(body)
}

/// Whether POSTRIDER_LONG selects the long runs.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}

fn soon() -> Deadline {
    Deadline::default()
}
