//! Tokens and roles.

use std::fmt;
use std::time::Duration;

use postrider_core::{Timestamp, duration_text};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::object;

/// Role of a token. Admin includes all roles, operate includes read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    Read,
    /// Sends messages and creates tasks.
    Produce,
    /// Receives and settles.
    Consume,
    /// Pauses, purges, redrives, replays and schedules.
    Operate,
    /// Does everything, including the administration of tokens.
    Admin,
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Token"))]
pub struct TokenInfo {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Its roles.
    pub roles: Vec<Role>,
    /// Queues that it allows: names, or prefixes with a trailing `*`; null means all.
    pub queues: Option<Vec<String>>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    /// When it was last used.
    pub last_used_at: Option<Timestamp>,
}

/// `GET /v1/tokens`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// The tokens.
    pub tokens: Vec<TokenInfo>,
}

/// `POST /v1/tokens`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "NewToken"))]
#[serde(deny_unknown_fields)]
pub struct NewTokenRequest {
    /// Its name.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100), regex(pattern = "^[!-~]+$")))]
    pub name: String,
    /// Its roles.
    #[serde(deserialize_with = "object::values")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub roles: Vec<Role>,
    /// Queues that it allows; all if absent.
    #[serde(default, deserialize_with = "object::optional_values", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<Vec<crate::schema::Line<81>>>", length(min = 1, max = 100))
    )]
    pub queues: Option<Vec<String>>,
    /// Time until it expires; never if absent.
    #[serde(default, with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Duration>,
}

/// A new token with its secret, which is shown only once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CreatedToken"))]
pub struct NewToken {
    /// The secret.
    pub token: String,
    /// The token.
    #[serde(flatten)]
    pub info: TokenInfo,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").field("info", &self.info).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_refused, round_trip};

    #[test]
    fn tokens_round_trip_and_their_secret_is_not_shown() {
        let info = TokenInfo {
            id: Uuid::now_v7(),
            name: "anna".into(),
            roles: vec![Role::Read, Role::Admin],
            queues: Some(vec!["orders".into(), "mail.*".into()]),
            created_at: Timestamp::from_micros(1),
            expires_at: None,
            last_used_at: None,
        };
        let tokens = Tokens { tokens: vec![info.clone()] };
        assert_eq!(round_trip(&tokens), tokens);
        let new = NewToken { token: "prt_secret".into(), info };
        assert_eq!(round_trip(&new), new);
        assert!(!format!("{new:?}").contains("secret"));
    }

    #[test]
    fn requests_round_trip() {
        let expires_in = Some(Duration::from_secs(3600));
        let request = NewTokenRequest { name: "ci".into(), roles: vec![Role::Produce], queues: None, expires_in };
        assert_eq!(round_trip(&request), request);
        assert!(is_refused::<NewTokenRequest>(r#"{"name":"a","roles":["root"]}"#));
        assert!(is_refused::<NewTokenRequest>(r#"{"name":"a","roles":[],"queue":"b"}"#));
    }
}
