//! Who sent a request.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, header};
use postrider::{Deadline, MessagingError, StateStorage};
use uuid::Uuid;

use super::caller::{Caller, Proof};
use super::origin;
use super::rate::Rate;
use super::session;
use super::token::{KnownToken, Tokens, split};
use crate::api::{ApiError, Code};

/// What was read of the state is believed for so long. It is how long a revoked token may still be used.
const BELIEVED: Duration = Duration::from_secs(1);

/// How often it is written down that a token is in use.
const USE_WRITTEN: Duration = Duration::from_secs(300);

/// So many tokens and sessions are remembered between two looks.
const MOST: usize = 10_000;

/// How long the state may take to say who somebody is.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
struct Believed<T> {
    what: T,
    since: Instant,
}

impl<T> Believed<T> {
    fn new(what: T) -> Self {
        Self { what, since: Instant::now() }
    }

    fn is_fresh(&self) -> bool {
        self.since.elapsed() < BELIEVED
    }
}

/// Knows callers. What it has read it keeps for a second, so that a busy client does not ask the state each time.
#[derive(Debug)]
pub(crate) struct Access {
    tokens: Tokens,
    records: StateStorage,
    /// Whether the server is reached from this machine alone; only then can it be open.
    is_loopback: bool,
    /// Whether cookies go over TLS only.
    is_secure: bool,
    /// Locks, held for a look.
    any: Mutex<Option<Believed<bool>>>,
    known: Mutex<HashMap<Uuid, Believed<Option<KnownToken>>>>,
    sessions: Mutex<HashMap<String, Believed<Option<Uuid>>>>,
    written: Mutex<HashMap<Uuid, Instant>>,
    /// Tokens that were wrong, by address.
    wrong: Rate,
}

fn get<K: Hash + Eq, T: Clone>(map: &Mutex<HashMap<K, Believed<T>>>, key: &K) -> Option<T> {
    let map = map.lock().unwrap_or_else(PoisonError::into_inner);
    map.get(key).filter(|believed| believed.is_fresh()).map(|believed| believed.what.clone())
}

fn put<K: Hash + Eq, T>(map: &Mutex<HashMap<K, Believed<T>>>, key: K, what: T) {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    if map.len() >= MOST {
        map.retain(|_, believed| believed.is_fresh());
    }
    map.insert(key, Believed::new(what));
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
            // Ten in a row, then one in six seconds: a person who mistypes is not held up, a program that guesses is.
            wrong: Rate::new(1.0 / 6.0, 10.0),
        }
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Whether no token is needed.
    pub(crate) async fn is_open(&self) -> Result<bool, MessagingError> {
        if !self.is_loopback {
            return Ok(false);
        }
        let believed = self.any.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let any = match believed.filter(Believed::is_fresh) {
            Some(believed) => believed.what,
            None => {
                let any = self.tokens.any(Deadline::after(PATIENCE)).await?;
                *self.any.lock().unwrap_or_else(PoisonError::into_inner) = Some(Believed::new(any));
                any
            }
        };
        Ok(!any)
    }

    /// Looks again at once: a token was made or revoked here.
    pub(crate) fn changed(&self) {
        *self.any.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Who sent a request with these headers.
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
                let why = "an open server is asked for by a name of this machine (localhost, 127.0.0.1); make a token \
                           with `postrider token create` to use another name";
                return Err(ApiError::forbidden(why));
            }
            return Ok(Caller::open(address));
        }
        if let Some(id) = session::shown(headers)
            && let Some(known) = self.of_session(id).await?
        {
            return Ok(self.caller(known, Proof::Session));
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
        }
    }

    async fn find(&self, id: Uuid) -> Result<Option<KnownToken>, MessagingError> {
        let known = match get(&self.known, &id) {
            Some(known) => known,
            None => {
                let known = self.tokens.find(id, Deadline::after(PATIENCE)).await?;
                put(&self.known, id, known.clone());
                known
            }
        };
        Ok(known)
    }

    async fn of_token(&self, token: &str, address: &str) -> Result<KnownToken, ApiError> {
        let known = match split(token) {
            Some((id, secret)) => self.find(id).await?.filter(|known| known.has_secret(secret)),
            None => None,
        };
        match known {
            Some(known) => Ok(known),
            None => match self.wrong.take(&address.into()) {
                Ok(()) => {
                    let why = "this token is not known; it may have been revoked or have expired";
                    Err(ApiError::new(Code::Unauthorized, why))
                }
                Err(seconds) => {
                    let why = "too many tokens from this address were wrong; wait a little";
                    Err(ApiError::new(Code::TooManyRequests, why).retry_after(seconds))
                }
            },
        }
    }

    async fn of_session(&self, id: &str) -> Result<Option<KnownToken>, MessagingError> {
        let key = session::key(id);
        let token = match get(&self.sessions, &key) {
            Some(token) => token,
            None => {
                let token = session::token_of(&self.records, id, Deadline::after(PATIENCE)).await?;
                put(&self.sessions, key, token);
                token
            }
        };
        match token {
            Some(token) => self.find(token).await,
            None => Ok(None),
        }
    }

    /// Whether somebody who was let in would still be. For whoever stays for long.
    pub(crate) async fn would_let_in(&self, caller: &Caller) -> Result<bool, MessagingError> {
        match caller.proof {
            Proof::Open => self.is_open().await,
            Proof::None => Ok(false),
            Proof::Token | Proof::Session => match caller.key.parse() {
                Ok(id) => Ok(self.find(id).await?.is_some()),
                Err(_) => Ok(false),
            },
        }
    }

    /// Begins a session with a token.
    pub(crate) async fn log_in(&self, token: &str, address: &str) -> Result<HeaderValue, ApiError> {
        let known = self.of_token(token, address).await?;
        let begun = session::begin(&self.records, &known.info.id, self.is_secure, Deadline::after(PATIENCE)).await;
        Ok(begun?)
    }

    /// Ends the session of a request; answers the cookie that ends it in the browser.
    pub(crate) async fn log_out(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
        let Some(id) = session::shown(headers) else { return Ok(None) };
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&session::key(id));
        Ok(Some(session::end(&self.records, id, self.is_secure, Deadline::after(PATIENCE)).await?))
    }

    /// Writes down now and then that a token is in use. Nobody waits for it.
    fn note_use(&self, known: &KnownToken) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.get(&known.info.id).is_some_and(|at| at.elapsed() < USE_WRITTEN) {
            return;
        }
        if written.len() >= MOST {
            written.retain(|_, at| at.elapsed() < USE_WRITTEN);
        }
        written.insert(known.info.id, Instant::now());
        let (tokens, id) = (self.tokens.clone(), known.info.id);
        tokio::spawn(async move {
            if let Err(error) = tokens.used(id, Deadline::after(PATIENCE)).await {
                tracing::debug!(%error, "it could not be written down that a token is in use");
            }
        });
    }
}
