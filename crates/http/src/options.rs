//! How a server is used.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use postrider_core::MessagingError;

/// How a server is used. The defaults are for a server on the same host, which needs no token.
#[derive(Clone)]
pub struct HttpOptions {
    /// The token that the server knows this client by.
    pub token: Option<String>,
    /// A file of certificates, in PEM, of the authorities that the server's certificate is trusted by; without it those of
    /// the machine are. For `https` alone.
    pub ca_file: Option<PathBuf>,
    /// What this worker calls itself when it receives, and what its failed attempts are signed with; without it a name that
    /// no other has, of the host, the process and a random part.
    pub worker: Option<String>,
    /// How long it may take to be connected.
    pub connect_timeout: Duration,
    /// How long the server may take to answer, the wait for messages not counted.
    pub request_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            token: None,
            ca_file: None,
            worker: None,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
        }
    }
}

impl HttpOptions {
    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
        let zero = [("connect_timeout", self.connect_timeout), ("request_timeout", self.request_timeout)];
        match zero.into_iter().find(|(_, time)| time.is_zero()) {
            Some((name, _)) => Err(MessagingError::invalid(name, "it is 0, and nothing could ever be done")),
            None => Ok(()),
        }
    }
}

/// A name that no other worker has, also when processes follow each other under one number.
pub(crate) fn own_name() -> String {
    let host = nix::sys::utsname::uname().map(|host| host.nodename().to_string_lossy().into_owned());
    let host: String = host.unwrap_or_else(|_| "unknown".into()).chars().filter(|c| !c.is_control()).take(64).collect();
    format!("{host}:{}:{:08x}", std::process::id(), rand::random::<u32>())
}

/// Without the secret.
impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions")
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("ca_file", &self.ca_file)
            .field("worker", &self.worker)
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_refused_and_tokens_are_not_shown() {
        assert!(HttpOptions::default().check().is_ok());
        assert!(HttpOptions { request_timeout: Duration::ZERO, ..Default::default() }.check().is_err());
        let options = HttpOptions { token: Some("prt_secret".into()), ..Default::default() };
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn workers_of_a_host_have_names_of_their_own() {
        let (one, other) = (own_name(), own_name());
        assert!(one != other && one.contains(&format!(":{}:", std::process::id())), "{one} {other}");
    }
}
