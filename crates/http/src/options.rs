//! Options of a connection to a server.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use postrider_core::MessagingError;

/// Options of a connection to a server. The defaults are for a server on the same host without tokens.
#[derive(Clone)]
pub struct HttpOptions {
    /// The token that authenticates this client.
    pub token: Option<String>,
    /// PEM file with the certificates of trusted authorities; `None` trusts those of the machine. Only for `https`.
    pub ca_file: Option<PathBuf>,
    /// Name of this worker, sent with receives and recorded with failed attempts; `None` makes a unique one from the host,
    /// the process and a random part.
    pub worker: Option<String>,
    /// Time-out of a connection attempt.
    pub connect_timeout: Duration,
    /// Time-out of an answer, without the wait for messages.
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
    /// Refuses invalid options.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
        let zero = [("connect_timeout", self.connect_timeout), ("request_timeout", self.request_timeout)];
        match zero.into_iter().find(|(_, time)| time.is_zero()) {
            Some((name, _)) => Err(MessagingError::invalid(name, "it must be more than 0")),
            None => Ok(()),
        }
    }
}

/// A unique worker name, also if a process id is used again.
pub(crate) fn default_worker() -> String {
    let host = nix::sys::utsname::uname().map(|host| host.nodename().to_string_lossy().into_owned());
    let host: String = host.unwrap_or_else(|_| "unknown".into()).chars().filter(|c| !c.is_control()).take(64).collect();
    format!("{host}:{}:{:08x}", std::process::id(), rand::random::<u32>())
}

/// Without the token.
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
    fn workers_of_a_host_have_different_names() {
        let (one, other) = (default_worker(), default_worker());
        assert!(one != other && one.contains(&format!(":{}:", std::process::id())), "{one} {other}");
    }
}
