//! Who sent a request.

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

/// What was read of the state is believed for so long. It is how long a revoked token may still be used.
const BELIEVED: Duration = Duration::from_secs(1);

/// How often it is written down that a token is in use.
const USE_WRITTEN: Duration = Duration::from_secs(300);

/// So many tokens and sessions are remembered between two looks.
const MOST: usize = 10_000;

/// How long the state may take to say who somebody is.
const PATIENCE: Duration = Duration::from_secs(10);

/// So many who were never seen here are looked up at once. Without a bound, guesses that are sent together would all be
/// looked up before the first of them counts as wrong.
const STRANGERS: usize = 4;

#[derive(Debug, Clone)]
struct Believed<T> {
    what: T,
    until: Instant,
}

impl<T> Believed<T> {
    fn new(what: T) -> Self {
        Self { what, until: Instant::now() + BELIEVED }
    }

    fn is_fresh(&self) -> bool {
        Instant::now() < self.until
    }
}

/// What was read of the state, by what it was asked for.
type Read<K, T> = Mutex<HashMap<K, Believed<Option<T>>>>;

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
    known: Read<Uuid, KnownToken>,
    sessions: Read<String, Uuid>,
    written: Mutex<HashMap<Uuid, Instant>>,
    /// Tokens and sessions that were wrong, by address.
    wrong: Rate,
    strangers: Semaphore,
    /// Those from where too many were wrong.
    suspects: Semaphore,
}

fn get<K: Hash + Eq, T: Clone>(map: &Read<K, T>, key: &K) -> Option<Believed<Option<T>>> {
    map.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

fn put<K: Hash + Eq, T>(map: &Read<K, T>, key: K, what: Option<T>) {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    if map.len() >= MOST {
        // Those who were right are strangers no more, and stay so while there is room.
        map.retain(|_, believed| believed.is_fresh() || believed.what.is_some());
    }
    if map.len() >= MOST {
        map.retain(|_, believed| believed.is_fresh());
    }
    map.insert(key, Believed::new(what));
}

fn too_many(seconds: u64) -> ApiError {
    let why = "too many tokens or sessions from this address were wrong; wait a little";
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
            // Ten in a row, then one in six seconds: a person who mistypes is not held up, a program that guesses is.
            wrong: Rate::new(1.0 / 6.0, 10.0),
            strangers: Semaphore::new(STRANGERS),
            suspects: Semaphore::new(1),
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
        let now = Instant::now();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).values_mut().for_each(|known| known.until = now);
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
        if let Some(known) = get(&self.known, &id).filter(Believed::is_fresh) {
            return Ok(known.what);
        }
        let known = self.tokens.find(id, Deadline::after(PATIENCE)).await?;
        put(&self.known, id, known.clone());
        Ok(known)
    }

    /// Lets somebody who was never right here be looked up: one after the other where too many were wrong. Whoever is right
    /// is let in, whatever others at the same address do.
    async fn stranger(&self, address: &str) -> Result<SemaphorePermit<'_>, ApiError> {
        let line = if self.wrong.check(address).is_ok() { &self.strangers } else { &self.suspects };
        match Deadline::after(PATIENCE).limit(line.acquire()).await {
            Some(Ok(turn)) => Ok(turn),
            _ => Err(MessagingError::DeadlineExceeded { operation: "authenticate" }.into()),
        }
    }

    async fn of_token(&self, token: &str, address: &str) -> Result<KnownToken, ApiError> {
        let parts = split(token);
        if let Some((id, secret)) = parts {
            let is_right = |known: &KnownToken| known.has_secret(secret);
            let was_right = get(&self.known, &id).and_then(|known| known.what).is_some_and(|known| is_right(&known));
            // Held while it is looked up.
            let _turn = if was_right { None } else { Some(self.stranger(address).await?) };
            if let Some(known) = self.find(id).await?.filter(is_right) {
                return Ok(known);
            }
        }
        self.wrong.take(address).map_err(too_many)?;
        let why = match parts {
            Some(_) => {
                "unknown token: it was mistyped, revoked, or has expired; use another, or make one with `postrider token create`"
            }
            None => "unknown token: a token begins with 'prt_' and has two more parts; copy the whole of it",
        };
        Err(ApiError::new(Code::Unauthorized, why))
    }

    async fn of_session(&self, id: &str, address: &str) -> Result<Option<KnownToken>, ApiError> {
        let key = session::key(id);
        let token = match get(&self.sessions, &key) {
            Some(seen) if seen.is_fresh() => seen.what,
            // Ids are made here and never twice: one that is not there will not be.
            Some(Believed { what: None, .. }) => None,
            seen => {
                // Held while it is looked up.
                let _turn = if seen.is_some() { None } else { Some(self.stranger(address).await?) };
                let token = session::token_of(&self.records, id, Deadline::after(PATIENCE)).await?;
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

    /// Whether somebody who was let in would still be. For whoever stays for long.
    pub(crate) async fn would_let_in(&self, caller: &Caller) -> Result<bool, MessagingError> {
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

    /// Whether the session of somebody who was let in by one was ended here.
    fn has_ended(&self, caller: &Caller) -> bool {
        let session = caller.session.as_deref().and_then(|key| get(&self.sessions, &key.to_owned()));
        session.is_some_and(|seen| seen.what.is_none())
    }

    /// Begins a session with a token.
    pub(crate) async fn log_in(&self, token: &str, address: &str) -> Result<HeaderValue, ApiError> {
        let known = self.of_token(token, address).await?;
        let deadline = Deadline::after(PATIENCE);
        let (id, cookie) = session::begin(&self.records, known.info.id, self.is_secure, deadline).await?;
        put(&self.sessions, session::key(&id), Some(known.info.id));
        Ok(cookie)
    }

    /// Ends the session of a request; answers the cookie that ends it in the browser.
    pub(crate) async fn log_out(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, ApiError> {
        let Some(id) = session::shown(headers, self.is_secure) else { return Ok(None) };
        let cookie = session::end(&self.records, id, self.is_secure, Deadline::after(PATIENCE)).await?;
        put(&self.sessions, session::key(id), None);
        Ok(Some(cookie))
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
