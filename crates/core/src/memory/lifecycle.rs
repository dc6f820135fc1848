//! The state machine of a message: a transition that the law does not have does not compile.
//!
//! ```text
//! PENDING ──lease──▶ PROCESSING ──ack──────────────▶ COMPLETED
//!    ▲                  │  │  └──reject / limit────▶ FAILED
//!    │   lease expired  │  └──nack, retry allowed──▶ RETRYABLE ──due──▶ PROCESSING
//!    └──────────────────┘
//! ```
//!
//! [`Lifecycle<S>`] is the record of a message in state `S`, with the field names of every store. Only
//! [`Lifecycle::begin`] creates one; a transition consumes it and returns it in the next state. A transition checks what
//! depends on the time: a lease requires that the message is due, and every settle and extend requires the token of a
//! valid lease. A refused transition returns its input unchanged.
//!
//! ```compile_fail,E0599
//! use postrider_core::memory::lifecycle::Lifecycle;
//! use postrider_core::{LeaseToken, Timestamp};
//! let pending = Lifecycle::begin(Timestamp::EPOCH, Timestamp::EPOCH);
//! pending.ack(LeaseToken(1), Timestamp::EPOCH); // It is not leased.
//! ```
//!
//! ```compile_fail,E0451
//! use postrider_core::memory::lifecycle::{Completed, Lifecycle};
//! use postrider_core::Timestamp;
//! let pending = Lifecycle::begin(Timestamp::EPOCH, Timestamp::EPOCH);
//! // The fields are private.
//! let done = Lifecycle { record: pending.record().clone(), state: Completed { completed_at: Timestamp::EPOCH } };
//! ```

use std::time::Duration;

use crate::clock::Timestamp;
use crate::dead_letter::DeadLetterReason;
use crate::receipt::LeaseToken;

/// Waiting to be leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// When it is due.
    pub next_attempt_at: Timestamp,
}

/// Leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processing {
    /// The token of the lease.
    pub lease_token: LeaseToken,
    /// When it was leased.
    pub acquired_at: Timestamp,
    /// When the lease expires.
    pub lease_expires_at: Timestamp,
}

/// Waiting to be leased again after a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retryable {
    /// When it is due.
    pub next_attempt_at: Timestamp,
}

/// Acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// When it was acknowledged.
    pub completed_at: Timestamp,
}

/// Dead-lettered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// When it was dead-lettered.
    pub dead_at: Timestamp,
    /// Why.
    pub reason: DeadLetterReason,
}

/// The counts and times of a message, kept in every state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When the store accepted it.
    pub created_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered.
    pub last_attempt_at: Option<Timestamp>,
    /// Number of deliveries, without released ones.
    pub deliveries_count: u32,
    /// Number of failed attempts.
    pub attempts_count: u32,
    /// The error of the last failed attempt.
    pub last_error: Option<String>,
}

/// The record of a message in state `S`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifecycle<S> {
    record: Record,
    state: S,
}

impl<S> Lifecycle<S> {
    /// Counts and times.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The fields that only this state has.
    pub fn state(&self) -> &S {
        &self.state
    }

    fn into<T>(self, state: T) -> Lifecycle<T> {
        Lifecycle { record: self.record, state }
    }

    fn fail(mut self, reason: DeadLetterReason, error: Option<String>, now: Timestamp) -> Lifecycle<Failed> {
        if error.is_some() {
            self.record.last_error = error;
        }
        self.into(Failed { dead_at: now, reason })
    }

    fn leased(mut self, token: LeaseToken, visibility: Duration, now: Timestamp) -> Lifecycle<Processing> {
        self.record.deliveries_count = self.record.deliveries_count.saturating_add(1);
        self.record.first_attempt_at.get_or_insert(now);
        self.record.last_attempt_at = Some(now);
        self.into(Processing { lease_token: token, acquired_at: now, lease_expires_at: now.saturating_add(visibility) })
    }
}

impl Lifecycle<Pending> {
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

/// A message without a lease, which can be leased once it is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// Never failed.
    Pending(Lifecycle<Pending>),
    /// Failed before.
    Retryable(Lifecycle<Retryable>),
}

impl Waiting {
    /// Counts and times.
    pub fn record(&self) -> &Record {
        match self {
            Self::Pending(lifecycle) => &lifecycle.record,
            Self::Retryable(lifecycle) => &lifecycle.record,
        }
    }

    /// When it is due.
    pub fn next_attempt_at(&self) -> Timestamp {
        match self {
            Self::Pending(lifecycle) => lifecycle.state.next_attempt_at,
            Self::Retryable(lifecycle) => lifecycle.state.next_attempt_at,
        }
    }

    /// Leases the message if it is due, and counts one more delivery.
    pub fn lease(self, token: LeaseToken, visibility: Duration, now: Timestamp) -> Result<Lifecycle<Processing>, Self> {
        match self {
            waiting if waiting.next_attempt_at() > now => Err(waiting),
            Self::Pending(lifecycle) => Ok(lifecycle.leased(token, visibility, now)),
            Self::Retryable(lifecycle) => Ok(lifecycle.leased(token, visibility, now)),
        }
    }

    /// Makes the message due now, unless it is due already.
    pub fn make_due(self, now: Timestamp) -> Self {
        let due = now.min(self.next_attempt_at());
        match self {
            Self::Pending(lifecycle) => Self::Pending(lifecycle.into(Pending { next_attempt_at: due })),
            Self::Retryable(lifecycle) => Self::Retryable(lifecycle.into(Retryable { next_attempt_at: due })),
        }
    }

    /// Dead-letters a message that is past its delivery limit or expiry, before a handler sees it.
    pub fn dead_letter_unread(self, reason: DeadLetterReason, now: Timestamp) -> Lifecycle<Failed> {
        self.dead_letter(reason, None, now)
    }

    /// Dead-letters a waiting message on request.
    pub fn dead_letter(self, reason: DeadLetterReason, error: Option<String>, now: Timestamp) -> Lifecycle<Failed> {
        match self {
            Self::Pending(lifecycle) => lifecycle.fail(reason, error, now),
            Self::Retryable(lifecycle) => lifecycle.fail(reason, error, now),
        }
    }
}

impl Lifecycle<Processing> {
    /// Whether the lease has not expired.
    pub fn is_leased(&self, now: Timestamp) -> bool {
        now < self.state.lease_expires_at
    }

    /// Whether `token` names this lease and the lease has not expired. Every settle and extend checks this first.
    pub fn is_held_by(&self, token: LeaseToken, now: Timestamp) -> bool {
        self.state.lease_token == token && self.is_leased(now)
    }

    fn held(self, token: LeaseToken, now: Timestamp) -> Result<Self, Self> {
        if self.is_held_by(token, now) { Ok(self) } else { Err(self) }
    }

    /// Sets the end of the lease to *now + extension*.
    pub fn extend(self, token: LeaseToken, extension: Duration, now: Timestamp) -> Result<Self, Self> {
        let mut lifecycle = self.held(token, now)?;
        lifecycle.state.lease_expires_at = now.saturating_add(extension);
        Ok(lifecycle)
    }

    /// Acknowledges the message.
    pub fn ack(self, token: LeaseToken, now: Timestamp) -> Result<Lifecycle<Completed>, Self> {
        Ok(self.held(token, now)?.into(Completed { completed_at: now }))
    }

    /// Ends the lease after a failed attempt that is to be retried, and counts the attempt.
    pub fn retry(
        self,
        token: LeaseToken,
        after: Duration,
        error: Option<String>,
        now: Timestamp,
    ) -> Result<Lifecycle<Retryable>, Self> {
        let mut lifecycle = self.held(token, now)?;
        lifecycle.record.attempts_count = lifecycle.record.attempts_count.saturating_add(1);
        if error.is_some() {
            lifecycle.record.last_error = error;
        }
        Ok(lifecycle.into(Retryable { next_attempt_at: now.saturating_add(after) }))
    }

    /// Ends the lease of work that was never started, and takes the delivery back.
    pub fn release(self, token: LeaseToken, now: Timestamp) -> Result<Lifecycle<Pending>, Self> {
        let mut lifecycle = self.held(token, now)?;
        lifecycle.record.deliveries_count = lifecycle.record.deliveries_count.saturating_sub(1);
        if lifecycle.record.deliveries_count == 0 {
            // A retry strategy measures from the first delivery, and this one does not count.
            lifecycle.record.first_attempt_at = None;
            lifecycle.record.last_attempt_at = None;
        }
        Ok(lifecycle.into(Pending { next_attempt_at: now }))
    }

    /// Ends the lease of a dropped message: it is due again, and its delivery stays counted.
    pub fn give_up(self, token: LeaseToken, now: Timestamp) -> Result<Lifecycle<Pending>, Self> {
        Ok(self.held(token, now)?.into(Pending { next_attempt_at: now }))
    }

    /// Dead-letters the message.
    pub fn reject(
        self,
        token: LeaseToken,
        reason: DeadLetterReason,
        error: Option<String>,
        now: Timestamp,
    ) -> Result<Lifecycle<Failed>, Self> {
        Ok(self.held(token, now)?.fail(reason, error, now))
    }

    /// Ends a lease that has expired: the message has been due since then, and its delivery stays counted.
    pub fn expire(self, now: Timestamp) -> Result<Lifecycle<Pending>, Self> {
        if self.is_leased(now) {
            return Err(self);
        }
        let next_attempt_at = self.state.lease_expires_at;
        Ok(self.into(Pending { next_attempt_at }))
    }
}

impl Lifecycle<Failed> {
    /// Starts the record anew.
    pub fn redrive(self, now: Timestamp) -> Lifecycle<Pending> {
        Lifecycle::begin(now, now)
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

    fn leased(now: Timestamp) -> Lifecycle<Processing> {
        Waiting::Pending(Lifecycle::begin(at(0), at(0))).lease(MINE, LEASE, now).unwrap()
    }

    #[test]
    fn nothing_is_leased_before_it_is_due() {
        let waiting = Waiting::Pending(Lifecycle::begin(at(0), at(5)));
        assert_eq!(waiting.clone().lease(MINE, LEASE, at(4)), Err(waiting.clone()));
        assert!(waiting.lease(MINE, LEASE, at(5)).is_ok());
    }

    #[test]
    fn a_lease_belongs_to_its_token_until_it_expires() {
        for (token, now) in [(LeaseToken(2), at(30)), (MINE, at(31))] {
            let lifecycle = leased(at(1));
            assert_eq!(lifecycle.clone().ack(token, now), Err(lifecycle.clone()));
            assert_eq!(lifecycle.clone().retry(token, LEASE, None, now), Err(lifecycle.clone()));
            assert_eq!(lifecycle.clone().release(token, now), Err(lifecycle.clone()));
            assert_eq!(lifecycle.clone().give_up(token, now), Err(lifecycle.clone()));
            assert_eq!(lifecycle.clone().extend(token, LEASE, now), Err(lifecycle.clone()));
            assert_eq!(lifecycle.clone().reject(token, DeadLetterReason::REJECTED, None, now), Err(lifecycle));
        }
        assert!(leased(at(1)).ack(MINE, at(30)).is_ok());
        assert!(leased(at(1)).expire(at(30)).is_err(), "a valid lease has not expired");
        assert_eq!(leased(at(1)).expire(at(40)).unwrap().state.next_attempt_at, at(31));
    }

    #[test]
    fn an_extension_is_set_and_not_added() {
        let lifecycle = leased(at(1)).extend(MINE, Duration::from_secs(5), at(10)).unwrap();
        assert_eq!(lifecycle.state.lease_expires_at, at(15));
    }

    #[test]
    fn only_a_release_takes_the_delivery_back_and_only_a_retry_counts_an_attempt() {
        let counts = |record: &Record| (record.deliveries_count, record.attempts_count);
        let released = leased(at(1)).release(MINE, at(2)).unwrap();
        assert_eq!(counts(&released.record), (0, 0));
        assert_eq!(released.record.first_attempt_at, None, "no delivery counts");
        assert_eq!(counts(&leased(at(1)).expire(at(31)).unwrap().record), (1, 0));
        assert_eq!(counts(&leased(at(1)).give_up(MINE, at(2)).unwrap().record), (1, 0));
        let retried = leased(at(1)).retry(MINE, LEASE, Some("no".into()), at(2)).unwrap();
        assert_eq!(counts(&retried.record), (1, 1));
        assert_eq!(retried.state.next_attempt_at, at(32));
        let failed = Waiting::Retryable(retried).dead_letter_unread(DeadLetterReason::EXPIRED, at(40));
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
