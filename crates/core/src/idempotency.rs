//! Records of work that was done, so that it is not done again.
//!
//! A message is delivered at least once: a worker can die between its work and its ack. A record per key says whether
//! the work of that key is done, under way, or neither. Whoever wants to do it [`begin`](IdempotencyStore::begin)s it
//! and holds a lease on the record meanwhile, so that one worker at a time does it; what is
//! [`complete`](IdempotencyStore::complete)d stays done until it is forgotten.
//!
//! **What it promises.** At most one holder of a valid lease at a time, by the store's clock. A worker whose lease has
//! run out and whose key somebody else has begun since can change nothing about the record. A worker whose lease has
//! run out and whose key *nobody* has begun may still complete it: its work is done, and to refuse to write that down
//! would only have it done twice.
//!
//! **What it does not.** It cannot stop a worker that goes on after its lease has run out, nor undo half of the work of
//! one that died. Only effects that commit together with the record are there exactly once; a store that can, offers
//! that by itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::message::check_duration;

/// The longest key, in bytes: every database can index it.
const MAX_KEY: usize = 512;

/// What work is known by: the same work has the same key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// Checks a key: 1 to 512 bytes of text without control characters.
    pub fn new(key: impl AsRef<str>) -> Result<Self, MessagingError> {
        let key = key.as_ref();
        let invalid = |why: String| Err(MessagingError::invalid("idempotency key", why));
        if key.is_empty() {
            return invalid("it is empty".into());
        }
        if key.len() > MAX_KEY {
            return invalid(format!("it has {} bytes, at most {MAX_KEY} are allowed; use a hash of it", key.len()));
        }
        if key.chars().any(char::is_control) {
            return invalid(format!("'{}' holds a control character", key.escape_debug()));
        }
        Ok(Self(key.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// What [`IdempotencyStore::begin`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Nobody does it and nobody has done it. The caller does, and holds the lease.
    Fresh(IdempotencyToken),
    /// It is done.
    Done,
    /// Somebody else does it.
    Busy {
        /// How long the lease of the other still lasts, if it is not extended. Not a time of day: it was read by the
        /// store's clock and is used by another.
        remaining: Duration,
    },
}

/// The right to say that work is done: the key, and the lease that it was begun with. Clones are the same right.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyToken {
    key: IdempotencyKey,
    lease: i64,
}

impl IdempotencyToken {
    /// A token. For stores: `lease` is one that no other beginning of the key has had.
    pub const fn new(key: IdempotencyKey, lease: i64) -> Self {
        Self { key, lease }
    }

    /// What the work is known by.
    pub const fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The lease. For stores.
    pub const fn lease(&self) -> i64 {
        self.lease
    }
}

/// Whether a record is still that of the token that it was asked to be changed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a record that was lost was not changed"]
pub enum Standing {
    /// It was, and is as asked now.
    Held,
    /// The lease has run out and somebody else has begun the work since, or the record was given up or forgotten.
    /// Nothing was changed.
    Lost,
}

/// Keeps records of work that was done. Leases and ages are judged by the store's clock.
#[async_trait]
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Takes on the work of a key, if it is neither done nor under way. The lease ends after `lease`.
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError>;

    /// Lets the lease end at now + `lease`. Work that is done stays as it is, and is held.
    async fn extend(
        &self,
        token: &IdempotencyToken,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError>;

    /// Writes down that the work is done. Repeated with the same token it is held again.
    async fn complete(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError>;

    /// Gives the work up: anybody may begin it at once. Work that is done stays done, and is held.
    async fn abandon(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError>;

    /// Removes records of work that was done, or given up by a lease that ran out, at least `older_than` ago. Answers
    /// how many they were.
    async fn forget(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError>;
}

/// Refuses a lease that cannot be meant. What a store does before anything else.
pub fn check_lease(lease: Duration) -> Result<(), MessagingError> {
    if lease.is_zero() {
        return Err(MessagingError::invalid("idempotency lease", "it is over before it begins; allow some time"));
    }
    check_duration("idempotency lease", lease, crate::message::MAX_DURATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_short_lines_of_text() {
        assert_eq!(IdempotencyKey::new("orders/7").unwrap().as_str(), "orders/7");
        assert!(IdempotencyKey::new("k".repeat(512)).is_ok());
        for bad in ["", "two\nlines", "\0", &"k".repeat(513)] {
            assert!(IdempotencyKey::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_lease_has_a_length_that_can_be_meant() {
        assert!(check_lease(Duration::from_nanos(1)).is_ok());
        assert!(check_lease(Duration::ZERO).is_err());
        assert!(check_lease(Duration::MAX).is_err());
    }
}
