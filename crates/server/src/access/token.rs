//! Tokens and their storage.

use std::collections::HashMap;
use std::time::Duration;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use postrider::message::MAX_DURATION;
use postrider::state_records::{MAX_RECORD_BYTES, Put, RecordKey, RecordKind, RecordQuery, StateRecord, StateRecords};
use postrider::{Bytes, Deadline, MessagingError, StateStorage, Timestamp};
use postrider_wire::token::{NewTokenRequest, TokenInfo};
use rand::RngCore;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::queue_pattern::QueuePattern;
use super::role::Role;
use crate::audit::{Audit, outcome};

static KIND: RecordKind = RecordKind::constant("token");

/// Last use of a token, by its id. A record of its own, as a new version of the token's record would move its expiry.
static USE: RecordKind = RecordKind::constant("token_use");

/// Exists once a token has been created.
static CLOSED: RecordKind = RecordKind::constant("closed");
const PREFIX: &str = "prt_";
const LONGEST_NAME: usize = 100;
const PAGE: usize = 500;

/// A token to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// Name of the token, as shown in the audit log.
    pub name: String,
    /// Granted roles.
    pub roles: Vec<Role>,
    /// Queues it is limited to; `None` is all.
    pub queues: Option<Vec<QueuePattern>>,
    /// Validity; `None` is until it is revoked.
    pub expires_in: Option<Duration>,
}

impl NewToken {
    fn check(&self) -> Result<(), MessagingError> {
        let name = self.name.trim();
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            let why = format!("it must be 1 to {LONGEST_NAME} bytes of text in one line");
            return Err(MessagingError::invalid("name of a token", why));
        }
        if self.roles.is_empty() {
            return Err(MessagingError::invalid("roles of a token", "the token has no role; give it at least one"));
        }
        if self.queues.as_ref().is_some_and(Vec::is_empty) {
            let why = "the list is empty; name at least one queue, or omit the list";
            return Err(MessagingError::invalid("queues of a token", why));
        }
        if self.queues.is_some() && self.roles.contains(&Role::Admin) {
            let why = "an admin can create tokens for all queues, so a limit has no effect; use other roles";
            return Err(MessagingError::invalid("queues of a token", why));
        }
        if self.expires_in.is_some_and(|time| time.is_zero()) {
            return Err(MessagingError::invalid("expiry of a token", "it is zero; use a positive duration"));
        }
        if self.expires_in.is_some_and(|time| time > MAX_DURATION) {
            let why = "it is more than a hundred years; omit it for a token that does not expire";
            return Err(MessagingError::invalid("expiry of a token", why));
        }
        Ok(())
    }
}

impl TryFrom<NewTokenRequest> for NewToken {
    type Error = MessagingError;

    fn try_from(request: NewTokenRequest) -> Result<Self, Self::Error> {
        let NewTokenRequest { name, roles, queues, expires_in } = request;
        let pattern = |queue: String| queue.parse();
        let queues = queues.map(|queues| queues.into_iter().map(pattern).collect::<Result<_, _>>()).transpose()?;
        Ok(Self { name, roles, queues, expires_in })
    }
}

/// A token as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    name: String,
    roles: Vec<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queues: Option<Vec<QueuePattern>>,
    /// Hash of the secret, which has 256 random bits: a slow hash is not needed.
    sha256: String,
}

/// A token that was read from the state.
#[derive(Debug, Clone)]
pub(crate) struct KnownToken {
    pub(crate) info: TokenInfo,
    pub(crate) queues: Option<Vec<QueuePattern>>,
    hash: Vec<u8>,
}

impl KnownToken {
    fn read(record: &StateRecord) -> Option<Self> {
        let stored: Stored = serde_json::from_slice(&record.value).ok()?;
        let hash = HEXLOWER.decode(stored.sha256.as_bytes()).ok()?;
        let info = TokenInfo {
            id: Uuid::parse_str(record.key.as_str()).ok()?,
            name: stored.name.clone(),
            roles: stored.roles.clone(),
            queues: stored.queues.as_ref().map(|queues| queues.iter().map(ToString::to_string).collect()),
            created_at: record.created_at,
            expires_at: record.expires_at,
            last_used_at: None,
        };
        Some(Self { info, queues: stored.queues, hash })
    }

    /// Whether this is the token's secret, in constant time.
    pub(crate) fn has_secret(&self, secret: &str) -> bool {
        let hash = Sha256::digest(secret.as_bytes());
        bool::from(hash.as_slice().ct_eq(&self.hash))
    }
}

/// Splits a token into id and secret; `None` if it is malformed.
pub(crate) fn split(token: &str) -> Option<(Uuid, &str)> {
    let (id, secret) = token.strip_prefix(PREFIX)?.split_once('_')?;
    let id = Uuid::parse_str(id).ok().filter(|parsed| parsed.simple().to_string() == id)?;
    (1..=128).contains(&secret.len()).then_some((id, secret))
}

fn key(id: Uuid) -> Result<RecordKey, MessagingError> {
    RecordKey::new(id.simple().to_string())
}

/// Returns cryptographically random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// Creates, lists and revokes tokens, with entries in the audit log.
#[derive(Debug, Clone)]
pub struct Tokens {
    records: StateStorage,
    audit: Audit,
}

impl Tokens {
    /// The tokens of that state.
    pub fn new(records: StateStorage) -> Self {
        // Creating and revoking wait for the audit log, so nothing runs in the background.
        Self { audit: Audit::new(records.clone(), TaskTracker::default()), records }
    }

    /// Creates a token; `who` is the actor in the audit log. The token's text is returned here only.
    pub async fn create(
        &self,
        mut new: NewToken,
        who: &str,
        deadline: Deadline,
    ) -> Result<(TokenInfo, String), MessagingError> {
        new.check()?;
        let roles = std::mem::take(&mut new.roles);
        for role in roles {
            if !new.roles.contains(&role) {
                new.roles.push(role);
            }
        }
        if !new.roles.contains(&Role::Admin) && !self.list(deadline).await?.iter().any(is_admin) {
            let why = "there is no token with the role 'admin' yet; create it first: `postrider token create NAME --role \
                       admin`";
            return Err(MessagingError::invalid("roles of a token", why));
        }
        let detail = json!({ "roles": new.roles, "queues": new.queues });
        let audited = self.audit.begin_as(who, "create_token", &new.name, detail).await?;
        let created = self.insert(new, deadline).await;
        self.audit.finish(audited, outcome(&created, |(info, _)| json!({ "id": info.id }))).await;
        created
    }

    async fn insert(&self, new: NewToken, deadline: Deadline) -> Result<(TokenInfo, String), MessagingError> {
        let id = Uuid::new_v4();
        let secret = BASE64URL_NOPAD.encode(&random::<32>());
        let stored = Stored {
            name: new.name.trim().to_owned(),
            roles: new.roles,
            queues: new.queues,
            sha256: HEXLOWER.encode(&Sha256::digest(secret.as_bytes())),
        };
        let value = encoded(&stored)?;
        if value.len() > MAX_RECORD_BYTES {
            let why = format!("its record would have more than {MAX_RECORD_BYTES} bytes; name fewer queues");
            return Err(MessagingError::invalid("queues of a token", why));
        }
        // First: from now on every request needs a token, even if the next write fails.
        let _ = self.records.put_new(&CLOSED, &RecordKey::new("tokens")?, Bytes::new(), None, deadline).await?;
        match self.records.put_new(&KIND, &key(id)?, value, new.expires_in, deadline).await? {
            Put::Made(record) => {
                let known = KnownToken::read(&record)
                    .ok_or_else(|| MessagingError::invalid("token", "it could not be read back; create another"))?;
                Ok((known.info, format!("{PREFIX}{}_{secret}", id.simple())))
            }
            // Two of 2^122 random ids are equal: practically impossible.
            Put::Taken(_) => Err(MessagingError::busy("the id of the new token is in use; try again")),
        }
    }

    /// Returns all tokens, oldest first.
    pub async fn list(&self, deadline: Deadline) -> Result<Vec<TokenInfo>, MessagingError> {
        let used = self.all(&USE, deadline).await?;
        let used: HashMap<&str, Timestamp> = used
            .iter()
            .filter_map(|record| {
                let time = std::str::from_utf8(&record.value).ok()?.parse().ok()?;
                Some((record.key.as_str(), time))
            })
            .collect();
        let tokens = self.all(&KIND, deadline).await?;
        let info = |record: &StateRecord| {
            let info = KnownToken::read(record)?.info;
            Some(TokenInfo { last_used_at: used.get(record.key.as_str()).copied(), ..info })
        };
        Ok(tokens.iter().filter_map(info).collect())
    }

    async fn all(&self, kind: &RecordKind, deadline: Deadline) -> Result<Vec<StateRecord>, MessagingError> {
        let mut query = RecordQuery { limit: PAGE, ..RecordQuery::default() };
        let mut all = Vec::new();
        loop {
            let page = self.records.list(kind, &query, deadline).await?;
            all.extend(page.records);
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Revokes a token; `who` is the actor in the audit log. Returns whether it existed.
    pub async fn revoke(&self, id: Uuid, who: &str, deadline: Deadline) -> Result<bool, MessagingError> {
        let audited = self.audit.begin_as(who, "revoke_token", &id.to_string(), json!({})).await?;
        let done = self.remove(id, deadline).await;
        self.audit.finish(audited, outcome(&done, |was_there| json!({ "was_there": was_there }))).await;
        done
    }

    async fn remove(&self, id: Uuid, deadline: Deadline) -> Result<bool, MessagingError> {
        self.records.remove(&USE, &key(id)?, deadline).await?;
        self.records.remove(&KIND, &key(id)?, deadline).await
    }

    /// Whether a token exists or has ever existed: a server does not become open again when its last token expires.
    pub async fn any(&self, deadline: Deadline) -> Result<bool, MessagingError> {
        Ok(self.records.get(&CLOSED, &RecordKey::new("tokens")?, deadline).await?.is_some())
    }

    pub(crate) async fn find(&self, id: Uuid, deadline: Deadline) -> Result<Option<KnownToken>, MessagingError> {
        Ok(self.records.get(&KIND, &key(id)?, deadline).await?.as_ref().and_then(KnownToken::read))
    }

    /// Writes the last use of a token. A concurrent write of another process is as good.
    pub(crate) async fn used(&self, id: Uuid, deadline: Deadline) -> Result<(), MessagingError> {
        let (key, now) = (key(id)?, Bytes::from(Timestamp::now().to_string()));
        if let Put::Taken(before) = self.records.put_new(&USE, &key, now.clone(), None, deadline).await? {
            self.records.replace(&USE, &key, before.version, now, None, deadline).await?;
        }
        Ok(())
    }
}

/// Whether the token can create and revoke others.
fn is_admin(token: &TokenInfo) -> bool {
    token.roles.contains(&Role::Admin)
}

fn encoded(stored: &Stored) -> Result<Bytes, MessagingError> {
    let bytes = serde_json::to_vec(stored).map_err(|error| {
        let source: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
        MessagingError::Serialization { content_type: "application/json", source: source.into() }
    })?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_an_id_and_a_secret() {
        let id = Uuid::new_v4();
        let hex = id.simple();
        assert_eq!(split(&format!("prt_{hex}_x_y-z")), Some((id, "x_y-z")));
        let refused = ["", "prt_", "prt__x", "prt_ab12_x"].map(str::to_owned);
        let others =
            [format!("prt_{hex}"), format!("prt_{hex}_"), format!("prt_{id}_x"), format!("Bearer prt_{hex}_x")];
        for refused in refused.into_iter().chain(others) {
            assert_eq!(split(&refused), None, "{refused}");
        }
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_stored_leaves_the_server_open() {
        let (_context, state, _folder) = crate::app::test_store().await;
        let (tokens, until) = (Tokens::new(state), Deadline::default());
        let admin = NewToken { name: "ci".into(), roles: vec![Role::Admin; 500_000], queues: None, expires_in: None };
        let (info, _) = tokens.create(admin.clone(), "test", until).await.unwrap();
        assert_eq!(info.roles, [Role::Admin]);
        let (_context, state, _folder) = crate::app::test_store().await;
        let tokens = Tokens::new(state);
        let queues = (0..20_000).map(|number| format!("{number}{}", "q".repeat(70)).parse().unwrap()).collect();
        let large = NewToken { roles: vec![Role::Read], queues: Some(queues), ..admin };
        let error = tokens.insert(large, until).await.unwrap_err().to_string();
        assert!(error.contains("name fewer queues"), "{error}");
        assert!(!tokens.any(until).await.unwrap());
    }

    #[test]
    fn tokens_that_allow_nothing_are_refused() {
        let new = NewToken { name: "ci".into(), roles: vec![Role::Read], queues: None, expires_in: None };
        assert!(new.check().is_ok());
        assert!(NewToken { name: " ".into(), ..new.clone() }.check().is_err());
        assert!(NewToken { roles: vec![], ..new.clone() }.check().is_err());
        assert!(NewToken { queues: Some(vec![]), ..new.clone() }.check().is_err());
        assert!(NewToken { expires_in: Some(Duration::ZERO), ..new.clone() }.check().is_err());
        assert!(NewToken { expires_in: Some(MAX_DURATION), ..new.clone() }.check().is_ok());
        assert!(NewToken { expires_in: Some(MAX_DURATION + Duration::from_secs(1)), ..new.clone() }.check().is_err());
        let limited = Some(vec!["orders".parse().unwrap()]);
        assert!(NewToken { queues: limited.clone(), ..new.clone() }.check().is_ok());
        assert!(NewToken { queues: limited, roles: vec![Role::Admin], ..new }.check().is_err());
    }
}
