//! Whom the server talks to.

use std::fmt;

use postrider_core::Timestamp;
use serde::{Deserialize, Serialize};

use super::token::Role;

/// `GET /v1/session`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Whether the server needs no token.
    pub open: bool,
    /// Whether whoever asks is known.
    pub authenticated: bool,
    /// By what name.
    pub name: Option<String>,
    /// What they may do.
    #[serde(default)]
    pub roles: Vec<Role>,
    /// Where; null is everywhere.
    pub queues: Option<Vec<String>>,
    /// The store.
    pub provider: Option<String>,
    /// Where the store is, without its password.
    pub store: Option<String>,
    /// The server's version.
    pub version: String,
    /// The server's time.
    pub now: Timestamp,
}

/// `POST /v1/session`
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogInRequest {
    /// The secret.
    pub token: String,
}

impl fmt::Debug for LogInRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogInRequest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_trip::over;

    #[test]
    fn sessions_come_over_whole() {
        let session = Session {
            open: false,
            authenticated: true,
            name: Some("anna".into()),
            roles: vec![Role::Operate],
            queues: None,
            provider: Some("sqlite".into()),
            store: Some("sqlite:/x/y.db".into()),
            version: "0.1.0".into(),
            now: Timestamp::from_micros(1),
        };
        assert_eq!(over(&session), session);
        let request = LogInRequest { token: "prt_secret".into() };
        assert_eq!(over(&request), request);
        assert!(!format!("{request:?}").contains("secret"));
    }
}
