//! The states of a message as types: what is not drawn here does not compile.
//!
//! ```text
//! PENDING ──lease──▶ PROCESSING ──ack──────────────▶ COMPLETED
//!    ▲                  │  │  └──reject / limit────▶ FAILED
//!    │   lease expired  │  └──nack, retry allowed──▶ RETRYABLE ──due──▶ PROCESSING
//!    └──────────────────┘
//! ```
//!
//! [`Life<S>`] is a message's story in state `S`: its counts and times, the same names as in every store. It can only
//! be begun, and led on by a transition that takes the old story and gives the new one. What depends on the moment is
//! asked of the transition itself: a lease must be due, and whoever ends or extends one must have its token before it
//! runs out. Refused, a transition gives the story back unchanged.
//!
//! ```compile_fail,E0599
//! use postrider_core::lifecycle::Life;
//! use postrider_core::{LeaseToken, Timestamp};
//! let pending = Life::begin(Timestamp::EPOCH, Timestamp::EPOCH);
//! pending.ack(LeaseToken(1), Timestamp::EPOCH); // nobody leased it
//! ```
//!
//! ```compile_fail,E0451
//! use postrider_core::lifecycle::{Completed, Life};
//! use postrider_core::Timestamp;
//! let pending = Life::begin(Timestamp::EPOCH, Timestamp::EPOCH);
//! // A story cannot be made up.
//! let done = Life { record: pending.record().clone(), state: Completed { completed_at: Timestamp::EPOCH } };
//! ```

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::dead_letter::DeadLetterReason;
use crate::receipt::LeaseToken;

/// The states, for tables and texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// Waits to be leased.
    Pending,
    /// Leased.
    Processing,
    /// Failed, waits to be leased again.
    Retryable,
    /// Handled.
    Completed,
    /// Dead.
    Failed,
}

impl State {
    /// The state's name in every store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Processing => "PROCESSING",
            Self::Retryable => "RETRYABLE",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The states of a message that lives in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LiveState {
    /// Waits to be leased.
    Pending,
    /// Leased.
    Processing,
    /// Failed, waits to be leased again.
    Retryable,
}

impl From<LiveState> for State {
    fn from(state: LiveState) -> Self {
        match state {
            LiveState::Pending => Self::Pending,
            LiveState::Processing => Self::Processing,
            LiveState::Retryable => Self::Retryable,
        }
    }
}

/// Waits to be leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// When it is due.
    pub next_attempt_at: Timestamp,
}

/// Leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processing {
    /// Whose lease it is.
    pub lease_token: LeaseToken,
    /// When it was leased.
    pub acquired_at: Timestamp,
    /// When the lease runs out.
    pub lease_expires_at: Timestamp,
}

/// Failed, waits to be leased again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retryable {
    /// When it is due.
    pub next_attempt_at: Timestamp,
}

/// Handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// When it was acknowledged.
    pub completed_at: Timestamp,
}

/// Dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// When it died.
    pub dead_at: Timestamp,
    /// Why, in a word.
    pub reason: DeadLetterReason,
}

/// What a message's story keeps in every state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When the store accepted it.
    pub created_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered.
    pub last_attempt_at: Option<Timestamp>,
    /// How often it was delivered, releases taken back.
    pub deliveries_count: u32,
    /// How often a handler failed on it.
    pub attempts_count: u32,
    /// What the last failing handler said.
    pub last_error: Option<String>,
}

/// A message's story in state `S`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life<S> {
    record: Record,
    state: S,
}

impl<S> Life<S> {
    /// Counts and times.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// What only this state has.
    pub fn state(&self) -> &S {
        &self.state
    }

    fn into<T>(self, state: T) -> Life<T> {
        Life { record: self.record, state }
    }

    fn fail(mut self, reason: DeadLetterReason, error: Option<String>, now: Timestamp) -> Life<Failed> {
        if error.is_some() {
            self.record.last_error = error;
        }
        self.into(Failed { dead_at: now, reason })
    }

    fn leased(mut self, token: LeaseToken, visibility: Duration, now: Timestamp) -> Life<Processing> {
        self.record.deliveries_count = self.record.deliveries_count.saturating_add(1);
        self.record.first_attempt_at.get_or_insert(now);
        self.record.last_attempt_at = Some(now);
        self.into(Processing { lease_token: token, acquired_at: now, lease_expires_at: now.saturating_add(visibility) })
    }
}

impl Life<Pending> {
    /// A message that the store accepts at `now`.
    pub fn begin(now: Timestamp, next_attempt_at: Timestamp) -> Self {
        let record = Record {
            created_at: now,
            first_attempt_at: None,
            last_attempt_at: None,
            deliveries_count: 0,
            attempts_count: 0,
            last_error: None,
        };
        Self { record, state: Pending { next_attempt_at } }
    }
}

/// A message that can be leased once it is due: it waits, and nobody holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// Never failed.
    Pending(Life<Pending>),
    /// Failed before.
    Retryable(Life<Retryable>),
}

impl Waiting {
    /// Counts and times.
    pub fn record(&self) -> &Record {
        match self {
            Self::Pending(life) => &life.record,
            Self::Retryable(life) => &life.record,
        }
    }

    /// When it is due.
    pub fn next_attempt_at(&self) -> Timestamp {
        match self {
            Self::Pending(life) => life.state.next_attempt_at,
            Self::Retryable(life) => life.state.next_attempt_at,
        }
    }

    /// A worker takes it, if it is due. One more delivery is counted.
    pub fn lease(self, token: LeaseToken, visibility: Duration, now: Timestamp) -> Result<Life<Processing>, Self> {
        match self {
            waiting if waiting.next_attempt_at() > now => Err(waiting),
            Self::Pending(life) => Ok(life.leased(token, visibility, now)),
            Self::Retryable(life) => Ok(life.leased(token, visibility, now)),
        }
    }

    /// A person wants it delivered: it is due now, if it was not.
    pub fn hasten(self, now: Timestamp) -> Self {
        let due = now.min(self.next_attempt_at());
        match self {
            Self::Pending(life) => Self::Pending(life.into(Pending { next_attempt_at: due })),
            Self::Retryable(life) => Self::Retryable(life.into(Retryable { next_attempt_at: due })),
        }
    }

    /// Found past its delivery limit or its expiry: it dies before any handler sees it.
    pub fn die_unread(self, reason: DeadLetterReason, now: Timestamp) -> Life<Failed> {
        self.give_up(reason, None, now)
    }

    /// A person gives it up.
    pub fn give_up(self, reason: DeadLetterReason, error: Option<String>, now: Timestamp) -> Life<Failed> {
        match self {
            Self::Pending(life) => life.fail(reason, error, now),
            Self::Retryable(life) => life.fail(reason, error, now),
        }
    }
}

impl Life<Processing> {
    /// Whether the lease has not run out.
    pub fn is_leased(&self, now: Timestamp) -> bool {
        now < self.state.lease_expires_at
    }

    /// Whether `token` is this lease and the lease has not run out: what every settle and extend asks first.
    pub fn is_held_by(&self, token: LeaseToken, now: Timestamp) -> bool {
        self.state.lease_token == token && self.is_leased(now)
    }

    fn held(self, token: LeaseToken, now: Timestamp) -> Result<Self, Self> {
        if self.is_held_by(token, now) { Ok(self) } else { Err(self) }
    }

    /// The holder goes on working: the lease now ends at *now + extension*.
    pub fn extend(self, token: LeaseToken, extension: Duration, now: Timestamp) -> Result<Self, Self> {
        let mut life = self.held(token, now)?;
        life.state.lease_expires_at = now.saturating_add(extension);
        Ok(life)
    }

    /// Handled.
    pub fn ack(self, token: LeaseToken, now: Timestamp) -> Result<Life<Completed>, Self> {
        Ok(self.held(token, now)?.into(Completed { completed_at: now }))
    }

    /// The handler failed and may try again: one more attempt is counted.
    pub fn retry(
        self,
        token: LeaseToken,
        after: Duration,
        error: Option<String>,
        now: Timestamp,
    ) -> Result<Life<Retryable>, Self> {
        let mut life = self.held(token, now)?;
        life.record.attempts_count = life.record.attempts_count.saturating_add(1);
        if error.is_some() {
            life.record.last_error = error;
        }
        Ok(life.into(Retryable { next_attempt_at: now.saturating_add(after) }))
    }

    /// The work was never started: the delivery is taken back, as if it had not been.
    pub fn release(self, token: LeaseToken, now: Timestamp) -> Result<Life<Pending>, Self> {
        let mut life = self.held(token, now)?;
        life.record.deliveries_count = life.record.deliveries_count.saturating_sub(1);
        if life.record.deliveries_count == 0 {
            // A strategy counts its time from the first delivery, and there has been none.
            life.record.first_attempt_at = None;
            life.record.last_attempt_at = None;
        }
        Ok(life.into(Pending { next_attempt_at: now }))
    }

    /// The holder lost interest: the message is due again, its delivery stays counted.
    pub fn give_up(self, token: LeaseToken, now: Timestamp) -> Result<Life<Pending>, Self> {
        Ok(self.held(token, now)?.into(Pending { next_attempt_at: now }))
    }

    /// The holder rejects it.
    pub fn reject(
        self,
        token: LeaseToken,
        reason: DeadLetterReason,
        error: Option<String>,
        now: Timestamp,
    ) -> Result<Life<Failed>, Self> {
        Ok(self.held(token, now)?.fail(reason, error, now))
    }

    /// The lease ran out: the message has been due since then, its delivery stays counted.
    pub fn expire(self, now: Timestamp) -> Result<Life<Pending>, Self> {
        if self.is_leased(now) {
            return Err(self);
        }
        let next_attempt_at = self.state.lease_expires_at;
        Ok(self.into(Pending { next_attempt_at }))
    }
}

impl Life<Failed> {
    /// Brought back to life: a new story, of the same message.
    pub fn redrive(self, now: Timestamp) -> Life<Pending> {
        Life::begin(now, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const MINE: LeaseToken = LeaseToken(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH.saturating_add(Duration::from_secs(seconds))
    }

    fn leased(now: Timestamp) -> Life<Processing> {
        Waiting::Pending(Life::begin(at(0), at(0))).lease(MINE, LEASE, now).unwrap()
    }

    #[test]
    fn nothing_is_leased_before_it_is_due() {
        let waiting = Waiting::Pending(Life::begin(at(0), at(5)));
        assert_eq!(waiting.clone().lease(MINE, LEASE, at(4)), Err(waiting.clone()));
        assert!(waiting.lease(MINE, LEASE, at(5)).is_ok());
    }

    #[test]
    fn a_lease_belongs_to_its_token_until_it_runs_out() {
        for (token, now) in [(LeaseToken(2), at(30)), (MINE, at(31))] {
            let life = leased(at(1));
            assert_eq!(life.clone().ack(token, now), Err(life.clone()));
            assert_eq!(life.clone().retry(token, LEASE, None, now), Err(life.clone()));
            assert_eq!(life.clone().release(token, now), Err(life.clone()));
            assert_eq!(life.clone().give_up(token, now), Err(life.clone()));
            assert_eq!(life.clone().extend(token, LEASE, now), Err(life.clone()));
            assert_eq!(life.clone().reject(token, DeadLetterReason::REJECTED, None, now), Err(life));
        }
        assert!(leased(at(1)).ack(MINE, at(30)).is_ok());
        assert!(leased(at(1)).expire(at(30)).is_err(), "a lease that is held does not run out");
        assert_eq!(leased(at(1)).expire(at(40)).unwrap().state.next_attempt_at, at(31));
    }

    #[test]
    fn an_extension_is_set_and_not_added() {
        let life = leased(at(1)).extend(MINE, Duration::from_secs(5), at(10)).unwrap();
        assert_eq!(life.state.lease_expires_at, at(15));
    }

    #[test]
    fn only_a_release_takes_the_delivery_back_and_only_a_retry_counts_an_attempt() {
        let counts = |record: &Record| (record.deliveries_count, record.attempts_count);
        let released = leased(at(1)).release(MINE, at(2)).unwrap();
        assert_eq!(counts(&released.record), (0, 0));
        assert_eq!(released.record.first_attempt_at, None, "no delivery has been");
        assert_eq!(counts(&leased(at(1)).expire(at(31)).unwrap().record), (1, 0));
        assert_eq!(counts(&leased(at(1)).give_up(MINE, at(2)).unwrap().record), (1, 0));
        let retried = leased(at(1)).retry(MINE, LEASE, Some("no".into()), at(2)).unwrap();
        assert_eq!(counts(&retried.record), (1, 1));
        assert_eq!(retried.state.next_attempt_at, at(32));
        let failed = Waiting::Retryable(retried).die_unread(DeadLetterReason::EXPIRED, at(40));
        assert_eq!(counts(&failed.record), (1, 1));
        assert_eq!(failed.record.last_error.as_deref(), Some("no"));
        assert_eq!(counts(&failed.redrive(at(50)).record), (0, 0));
    }

    #[test]
    fn first_and_last_delivery_are_remembered() {
        let expired = Waiting::Pending(leased(at(1)).expire(at(31)).unwrap());
        let again = expired.lease(LeaseToken(2), LEASE, at(40)).unwrap();
        assert_eq!(again.record.first_attempt_at, Some(at(1)));
        assert_eq!(again.record.last_attempt_at, Some(at(40)));
        let released = again.release(LeaseToken(2), at(41)).unwrap();
        assert_eq!(released.record.first_attempt_at, Some(at(1)), "one delivery is left");
    }
}
