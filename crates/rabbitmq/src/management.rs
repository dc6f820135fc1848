//! A client of the broker's management interface, for what AMQP does not report.

use std::fmt;

use data_encoding::BASE64;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use lapin::uri::{AMQPScheme, AMQPUri};
use postrider_core::{Deadline, MessagingError, QueueName};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use url::Url;

use crate::PROVIDER;
use crate::options::RabbitmqOptions;
#[cfg(feature = "tls")]
use crate::tls;

/// Default ports of the management interface.
const DEFAULT_PORT: u16 = 15672;
const DEFAULT_TLS_PORT: u16 = 15671;

/// The address of the management interface and the credentials.
pub(crate) struct Management {
    url: Url,
    vhost: String,
    authorization: String,
    #[cfg(feature = "tls")]
    ca_file: Option<String>,
}

impl fmt::Debug for Management {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = (self.url.host_str(), self.url.port_or_known_default());
        f.debug_struct("Management").field("address", &address).field("vhost", &self.vhost).finish_non_exhaustive()
    }
}

/// A queue.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct QueueInfo {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) messages_unacknowledged: Option<u64>,
    #[serde(default, rename = "type")]
    pub(crate) kind: Option<String>,
    #[serde(default)]
    pub(crate) arguments: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    pub(crate) effective_policy_definition: serde_json::Value,
    #[serde(default)]
    pub(crate) policy: Option<String>,
    #[serde(default)]
    pub(crate) operator_policy: Option<String>,
    #[serde(default)]
    pub(crate) durable: Option<bool>,
    #[serde(default)]
    pub(crate) auto_delete: Option<bool>,
}

/// A binding of an exchange.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Binding {
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) routing_key: String,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Health {
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    alarms: Vec<Alarm>,
}

#[derive(Debug, Deserialize)]
struct Alarm {
    node: String,
    resource: String,
}

/// The broker's versions.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Overview {
    pub(crate) rabbitmq_version: String,
    pub(crate) erlang_version: String,
}

impl Management {
    pub(crate) fn new(uri: &AMQPUri, options: &RabbitmqOptions) -> Result<Self, MessagingError> {
        let authority = &uri.authority;
        let text = match &options.management_url {
            Some(url) => url.clone(),
            None => {
                let (scheme, port) = match uri.scheme {
                    AMQPScheme::AMQP => ("http", DEFAULT_PORT),
                    AMQPScheme::AMQPS => ("https", DEFAULT_TLS_PORT),
                };
                format!("{scheme}://{}:{port}", authority.host)
            }
        };
        let invalid = |why: String| MessagingError::invalid("management_url", why);
        let url = Url::parse(&text).map_err(|error| invalid(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(invalid("it must be http://host:port or https://host:port".to_owned()));
        }
        let decoded = |text: &str| percent_decoded(text);
        let (user, password) = match url.username() {
            "" => (authority.userinfo.username.clone(), authority.userinfo.password.clone()),
            user => (decoded(user), decoded(url.password().unwrap_or_default())),
        };
        let authorization = format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()));
        Ok(Self {
            url,
            vhost: uri.vhost.clone(),
            authorization,
            #[cfg(feature = "tls")]
            ca_file: options.ca_file.clone(),
        })
    }

    /// Lists all queues whose names a Postrider queue may have.
    pub(crate) async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        let queues = self.queues(deadline).await?;
        let mut names: Vec<_> = queues.iter().filter_map(|queue| QueueName::new(&queue.name).ok()).collect();
        names.sort();
        Ok(names)
    }

    /// Returns the queues of the virtual host.
    pub(crate) async fn queues(&self, deadline: Deadline) -> Result<Vec<QueueInfo>, MessagingError> {
        self.get(&["api", "queues", &self.vhost], deadline).await
    }

    /// Returns one queue.
    pub(crate) async fn queue(&self, name: &str, deadline: Deadline) -> Result<QueueInfo, MessagingError> {
        self.get(&["api", "queues", &self.vhost, name], deadline).await
    }

    /// Returns how many messages of these queues were unacknowledged some seconds ago.
    pub(crate) async fn unacknowledged(&self, names: &[String], deadline: Deadline) -> Result<u64, MessagingError> {
        let mut total = 0;
        for name in names {
            let queue = self.queue(name, deadline).await?;
            let count = queue.messages_unacknowledged;
            total += count.ok_or_else(|| self.unreachable("it has not counted the queue's messages yet".to_owned()))?;
        }
        Ok(total)
    }

    /// Returns the broker's versions.
    pub(crate) async fn overview(&self, deadline: Deadline) -> Result<Overview, MessagingError> {
        self.get(&["api", "overview"], deadline).await
    }

    /// Returns the bindings of the virtual host.
    pub(crate) async fn bindings(&self, deadline: Deadline) -> Result<Vec<Binding>, MessagingError> {
        self.get(&["api", "bindings", &self.vhost], deadline).await
    }

    /// The names of the exchanges of the virtual host.
    pub(crate) async fn exchanges(&self, deadline: Deadline) -> Result<Vec<String>, MessagingError> {
        let exchanges: Vec<Named> = self.get(&["api", "exchanges", &self.vhost], deadline).await?;
        Ok(exchanges.into_iter().map(|exchange| exchange.name).collect())
    }

    /// What the nodes lack, each with its node's name; empty when nothing.
    pub(crate) async fn alarms(&self, deadline: Deadline) -> Result<Vec<String>, MessagingError> {
        let health: Health = self.get(&["api", "health", "checks", "alarms"], deadline).await?;
        if health.status == "ok" {
            return Ok(Vec::new());
        }
        let told: Vec<_> = health.alarms.iter().map(|alarm| format!("{} on {}", alarm.resource, alarm.node)).collect();
        Ok(if told.is_empty() { vec![health.reason] } else { told })
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str], deadline: Deadline) -> Result<T, MessagingError> {
        // Boxed: the futures of all callers would contain it otherwise.
        let fetch = Box::pin(self.fetch(path));
        let body = deadline.limit(fetch).await.unwrap_or_else(|| Err(self.unreachable("no answer in time".into())))?;
        serde_json::from_slice(&body).map_err(|error| self.unreachable(format!("the answer is not JSON: {error}")))
    }

    async fn fetch(&self, path: &[&str]) -> Result<Bytes, MessagingError> {
        let failed = |why: &dyn std::fmt::Display| self.unreachable(why.to_string());
        let mut url = self.url.clone();
        url.path_segments_mut().map_err(|()| failed(&"the URL has no path"))?.pop_if_empty().extend(path);
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port_or_known_default().unwrap_or(DEFAULT_PORT);
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|error| failed(&error))?;
        let request = Request::get(url.path())
            .header("host", format!("{host}:{port}"))
            .header("authorization", &self.authorization)
            .body(Empty::<Bytes>::new())
            .map_err(|error| failed(&error))?;
        let answer = match url.scheme() {
            // A build without TLS refuses such a URL earlier.
            #[cfg(feature = "tls")]
            "https" => {
                let name = host.clone().try_into().map_err(|error| failed(&error))?;
                let stream = tls::connector(self.ca_file.as_deref())?
                    .connect(name, stream)
                    .await
                    .map_err(|error| failed(&error))?;
                exchange(TokioIo::new(stream), request).await
            }
            _ => exchange(TokioIo::new(stream), request).await,
        };
        let (status, body) = answer.map_err(|error| failed(&error))?;
        match status {
            // A health check that fails says so in the body of a 503.
            200 | 503 => Ok(body),
            401 => Err(failed(&"wrong user or password, or the user lacks the tag 'management' or 'monitoring'")),
            404 => Err(failed(&"no such object")),
            status => Err(failed(&format!("it await_answer {status}"))),
        }
    }

    fn unreachable(&self, why: String) -> MessagingError {
        let (host, port) = (self.url.host_str().unwrap_or_default(), self.url.port_or_known_default().unwrap_or(0));
        MessagingError::Connection {
            provider: PROVIDER,
            detail: format!(
                "the management interface at {host}:{port}: {why}. AMQP alone does not report this; enable the plugin \
                 rabbitmq_management and set management_url"
            ),
            source: None,
        }
    }
}

fn percent_decoded(text: &str) -> String {
    // As in the path of a URL; the broker has no name that is not UTF-8.
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<(u16, Bytes), hyper::Error>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    // Ends when the sender is dropped.
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let uri: AMQPUri = "amqp://rider:secret@host/mail".parse().unwrap();
        for management_url in [None, Some("http://rider:secret@host:1".to_owned())] {
            let options = RabbitmqOptions { management_url, ..RabbitmqOptions::default() };
            let management = Management::new(&uri, &options).unwrap();
            let shown = format!("{management:?}");
            assert!(shown.contains("host") && shown.contains("mail"), "{shown}");
            assert!(!shown.contains("secret") && !shown.contains(&management.authorization), "{shown}");
        }
    }
}
