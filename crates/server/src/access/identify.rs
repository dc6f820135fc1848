//! Identifying the caller of a request.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, header};
use postrider::{Deadline, MessagingError, StateStorage};
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use super::caller::{Caller, Proof};
use super::origin;
use super::rate::Rate;
use super::session;
use super::token::{KnownToken, Tokens, split};
use crate::api::{ApiError, Code};

/// Life of a cache entry: how long a revoked token stays usable at most.
const CACHE_LIFE: Duration = Duration::from_secs(1);

/// Interval at which the last use of a token is written.
const USE_WRITE_INTERVAL: Duration = Duration::from_secs(300);

/// Upper bound of cached tokens, and of cached sessions.
const MAX: usize = 10_000;

/// Time-out of a lookup in the state.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Upper bound of concurrent lookups of uncached tokens and sessions. Without it, guesses that are sent together would
/// all be looked up before the first of them counts as wrong.
const MAX_LOOKUPS: usize = 4;

#[derive(Debug, Clone)]
struct Cached<T> {
    what: T,
    until: Instant,
}

impl<T> Cached<T> {
    fn new(what: T) -> Self {
        Self { what, until: Instant::now() + CACHE_LIFE }
    }

    fn is_fresh(&self) -> bool {
        Instant::now() < self.until
    }
}

/// Results of lookups by their key.
type Cache<K, T> = Mutex<HashMap<K, Cached<Option<T>>>>;

/// Identifies callers. Lookups are cached for a second, so that a busy client does not read the state each time.
#[derive(Debug)]
pub(crate) struct Access {
    tokens: Tokens,
    records: StateStorage,
    /// Whether the server listens on loopback only; otherwise it is never open.
    is_loopback: bool,
    /// Whether cookies are limited to TLS.
    is_secure: bool,
    /// The locks are held briefly.
    any: Mutex<Option<Cached<bool>>>,
    known: Cache<Uuid, KnownToken>,
    sessions: Cache<String, Uuid>,
    written: Mutex<HashMap<Uuid, Instant>>,
    /// Rate of wrong tokens and sessions, by address.
    wrong: Rate,
    lookups: Semaphore,
    /// Permit for lookups from addresses with too many wrong ones.
    throttled_lookups: Semaphore,
}

fn get<K: Hash + Eq, T: Clone>(map: &Cache<K, T>, key: &K) -> Option<Cached<Option<T>>> {
    map.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

fn put<K: Hash + Eq, T>(map: &Cache<K, T>, key: K, what: Option<T>) {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    if map.len() >= MAX {
        // Valid entries stay as long as there is room: they need no lookup permit.
        map.retain(|_, cached| cached.is_fresh() || cached.what.is_some());
    }
    if map.len() >= MAX {
        map.retain(|_, cached| cached.is_fresh());
    }
    map.insert(key, Cached::new(what));
}

fn too_many(seconds: u64) -> ApiError {
    let why = "too many wrong tokens or sessions from this address; wait as Retry-After says";
    ApiError::new(Code::TooManyRequests, why).retry_after(seconds)
}

impl Access {
    pub(crate) fn new(records: StateStorage, is_loopback: bool, is_secure: bool) -> Self {
        Self {
            tokens: Tokens::new(records.clone()),
            records,
            is_loopback,
            is_secure,
            any: Mutex::default(),
            known: Mutex::default(),
            sessions: Mutex::default(),
            written: Mutex::default(),
            // Ten in a row, then one in six seconds: enough for typing errors, too few for guessing.
            wrong: Rate::new(1.0 / 6.0, 10.0),
            lookups: Semaphore::new(MAX_LOOKUPS),
            throttled_lookups: Semaphore::new(1),
        }
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Whether the server is open: on loopback and without any token.
    pub(crate) async fn is_open(&self) -> Result<bool, MessagingError> {
        if !self.is_loopback {
            return Ok(false);
        }
        let cached = self.any.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let any = match cached.filter(Cached::is_fresh) {
            Some(cached) => cached.what,
            None => {
                let any = self.tokens.any(Deadline::after(TIMEOUT)).await?;
                *self.any.lock().unwrap_or_else(PoisonError::into_inner) = Some(Cached::new(any));
                any
            }
        };
        Ok(!any)
    }

    /// Expires the cache after a token was created or revoked here.
    pub(crate) fn expire_cache(&self) {
        *self.any.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let now = Instant::now();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).values_mut().for_each(|known| known.until = now);
    }

    /// Returns the caller of a request with these headers.
    pub(crate) async fn identify(&self, headers: &HeaderMap, address: &str) -> Result<Caller, ApiError> {
        if let Some(line) = headers.get(header::AUTHORIZATION) {
            let token = line.to_str().ok().and_then(|line| {
                let (scheme, token) = line.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
            });
            let Some(token) = token else {
                return Err(ApiError::new(Code::Unauthorized, "send 'Authorization: Bearer prt_…'"));
            };
            let known = self.of_token(token, address).await?;
            return Ok(self.caller(known, Proof::Token));
        }
        if self.is_open().await? {
            if !origin::is_local(headers) {
                let why = "a server without tokens answers only to local names (localhost, 127.0.0.1); create a token with \
                           `postrider token create` to use another name";
                return Err(ApiError::forbidden(why));
            }
            return Ok(Caller::open(address));
        }
        if let Some(id) = session::shown(headers, self.is_secure)
            && let Some(known) = self.of_session(id, address).await?
        {
            let session = Some(session::key(id).into());
            return Ok(Caller { session, ..self.caller(known, Proof::Session) });
        }
        Ok(Caller::unknown(address))
    }

    fn caller(&self, known: KnownToken, proof: Proof) -> Caller {
        self.note_use(&known);
        Caller {
            name: known.info.name.as_str().into(),
            key: known.info.id.to_string().into(),
            roles: known.info.roles.into(),
            queues: known.queues.map(Into::into),
            proof,
            session: None,
        }
    }

    async fn find(&self, id: Uuid) -> Result<Option<KnownToken>, MessagingError> {
        if let Some(known) = get(&self.known, &id).filter(Cached::is_fresh) {
            return Ok(known.what);
        }
        let known = self.tokens.find(id, Deadline::after(TIMEOUT)).await?;
        put(&self.known, id, known.clone());
        Ok(known)
    }

    /// Waits for a permit to look up an uncached token or session; one at a time for addresses with too many wrong
    /// ones. A valid token passes, whatever other clients at its address send.
    async fn lookup_permit(&self, address: &str) -> Result<SemaphorePermit<'_>, ApiError> {
        let permits = if self.wrong.check(address).is_ok() { &self.lookups } else { &self.throttled_lookups };
        match Deadline::after(TIMEOUT).limit(permits.acquire()).await {
            Some(Ok(permit)) => Ok(permit),
            _ => Err(MessagingError::DeadlineExceeded { operation: "authenticate" }.into()),
        }
    }

    async fn of_token(&self, token: &str, address: &str) -> Result<KnownToken, ApiError> {
        let parts = split(token);
        if let Some((id, secret)) = parts {
            let is_right = |known: &KnownToken| known.has_secret(secret);
            let was_right = get(&self.known, &id).and_then(|known| known.what).is_some_and(|known| is_right(&known));
            // Held during the lookup.
            let _permit = if was_right { None } else { Some(self.lookup_permit(address).await?) };
            if let Some(known) = self.find(id).await?.filter(is_right) {
                return Ok(known);
            }
        }
        self.wrong.take(address).map_err(too_many)?;
        let why = match parts {
            Some(_) => {
                "unknown token: mistyped, revoked or expired; use another, or create one with `postrider token create`"
            }
            None => "unknown token: a token has the form 'prt_…_…'; copy the whole of it",
        };
        Err(ApiError::new(Code::Unauthorized, why))
    }

    async fn of_session(&self, id: &str, address: &str) -> Result<Option<KnownToken>, ApiError> {
        let key = session::key(id);
        let token = match get(&self.sessions, &key) {
            Some(seen) if seen.is_fresh() => seen.what,
            // Session ids are random and never reused: one that was not found will never be.
            Some(Cached { what: None, .. }) => None,
            seen => {
                // Held during the lookup.
                let _permit = if seen.is_some() { None } else { Some(self.lookup_permit(address).await?) };
                let token = session::token_of(&self.records, id, Deadline::after(TIMEOUT)).await?;
                put(&self.sessions, key, token);
                if token.is_none() && seen.is_none() {
                    self.wrong.take(address).map_err(too_many)?;
                }
                token
            }
        };
        match token {
            Some(token) => Ok(self.find(token).await?),
            None => Ok(None),
        }
    }

    /// Whether a caller would still be accepted. Checked by long polls and streams.
    pub(crate) async fn is_still_valid(&self, caller: &Caller) -> Result<bool, MessagingError> {
        match caller.proof {
            Proof::Open => self.is_open().await,
            Proof::None => Ok(false),
            Proof::Session if self.has_ended(caller) => Ok(false),
            Proof::Token | Proof::Session => match caller.key.parse() {
                Ok(id) => Ok(self.find(id).await?.is_some()),
                Err(_) => Ok(false),
            },
        }
    }

    /// Whether the caller's session was ended by this server.
    fn has_ended(&self, caller: &Caller) -> bool {
        let session = caller.session.as_deref().and_then(|key| get(&self.sessions, &key.to_owned()));
        session.is_some_and(|seen| seen.what.is_none())
    }

    /// Begins a session with a token. Returns its cookie.
    pub(crate) async fn log_in(&self, token: &str, address: &str) -> Result<HeaderValue, ApiError> {
        let known = self.of_token(token, address).await?;
        let deadline = Deadline::after(TIMEOUT);
        let (id, cookie) = session::begin(&self.records, known.info.id, self.is_secure, deadline).await?;
        put(&self.sessions, session::key(&id), Some(known.info.id));
        Ok(cookie)
    }

    /// Ends the session of a request. Returns the cookie that removes it from the browser.
    pub(crate) async fn log_out(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
        let Some(id) = session::shown(headers, self.is_secure) else { return Ok(None) };
        let cookie = session::end(&self.records, id, self.is_secure, Deadline::after(TIMEOUT)).await?;
        put(&self.sessions, session::key(id), None);
        Ok(Some(cookie))
    }

    /// Writes the last use of a token, in the background and not at every use.
    fn note_use(&self, known: &KnownToken) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.get(&known.info.id).is_some_and(|at| at.elapsed() < USE_WRITE_INTERVAL) {
            return;
        }
        if written.len() >= MAX {
            written.retain(|_, at| at.elapsed() < USE_WRITE_INTERVAL);
        }
        written.insert(known.info.id, Instant::now());
        let (tokens, id) = (self.tokens.clone(), known.info.id);
        tokio::spawn(async move {
            if let Err(error) = tokens.used(id, Deadline::after(TIMEOUT)).await {
                tracing::debug!(%error, "the last use of a token could not be written");
            }
        });
    }
}
