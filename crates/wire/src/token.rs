//! Tokens: who may do what.

use std::fmt;
use std::time::Duration;

use postrider_core::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::duration;
use super::object;

/// What a token allows. Admin has all, operate has read too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// To look.
    Read,
    /// To send messages and make tasks.
    Produce,
    /// To receive and settle.
    Consume,
    /// To pause, purge, redrive, replay and schedule.
    Operate,
    /// Everything, tokens included.
    Admin,
}

/// A token, but for its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// What it is removed by.
    pub id: Uuid,
    /// What people call it.
    pub name: String,
    /// What it allows.
    pub roles: Vec<Role>,
    /// Where: names, or prefixes with a trailing `*`; null is everywhere.
    pub queues: Option<Vec<String>>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
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
#[serde(deny_unknown_fields)]
pub struct NewTokenRequest {
    /// What people call it.
    pub name: String,
    /// What it allows.
    #[serde(deserialize_with = "object::values")]
    pub roles: Vec<Role>,
    /// Where; everywhere without it.
    #[serde(default, deserialize_with = "object::optional_values", skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    /// How long it lasts; for ever without it.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Duration>,
}

/// A token that was made, with its secret, which is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// The secret.
    pub token: String,
    /// Everything else.
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
    use crate::round_trip::{is_refused, over};

    #[test]
    fn tokens_come_over_whole_and_their_secret_is_not_shown() {
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
        assert_eq!(over(&tokens), tokens);
        let new = NewToken { token: "prt_secret".into(), info };
        assert_eq!(over(&new), new);
        assert!(!format!("{new:?}").contains("secret"));
    }

    #[test]
    fn requests_come_over_whole() {
        let expires_in = Some(Duration::from_secs(3600));
        let request = NewTokenRequest { name: "ci".into(), roles: vec![Role::Produce], queues: None, expires_in };
        assert_eq!(over(&request), request);
        assert!(is_refused::<NewTokenRequest>(r#"{"name":"a","roles":["root"]}"#));
        assert!(is_refused::<NewTokenRequest>(r#"{"name":"a","roles":[],"queue":"b"}"#));
    }
}
