//! Sessions of clients.

use std::fmt;

use postrider_core::Timestamp;
use serde::{Deserialize, Serialize};

use super::token::Role;

/// `GET /v1/session`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Session {
    /// Whether the server needs no token.
    pub open: bool,
    /// Whether the client is authenticated.
    pub authenticated: bool,
    /// Name of the client's token.
    pub name: Option<String>,
    /// Roles of the client.
    #[serde(default)]
    pub roles: Vec<Role>,
    /// Queue names and prefixes that it may use; null means all.
    pub queues: Option<Vec<String>>,
    /// Provider of the store.
    pub provider: Option<String>,
    /// URL of the store, without its password.
    pub store: Option<String>,
    /// The server's version.
    pub version: String,
    /// The server's time.
    pub now: Timestamp,
}

/// `POST /v1/session`
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "NewSession"))]
#[serde(deny_unknown_fields)]
pub struct LogInRequest {
    /// The token, a secret.
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
    use crate::testing::round_trip;

    #[test]
    fn sessions_round_trip() {
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
        assert_eq!(round_trip(&session), session);
        let request = LogInRequest { token: "prt_secret".into() };
        assert_eq!(round_trip(&request), request);
        assert!(!format!("{request:?}").contains("secret"));
    }
}
