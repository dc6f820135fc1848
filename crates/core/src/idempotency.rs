//! Idempotency records: work that was done is not done again.
//!
//! A message is delivered at least once: a worker can crash between its work and its ack. The record of a key says
//! whether its work is done, in progress, or neither. A worker [`begin`](IdempotencyStore::begin)s the work and holds a
//! lease on the record meanwhile, so that only one worker does it. Work that is
//! [`complete`](IdempotencyStore::complete)d stays done until its record is forgotten.
//!
//! **What it guarantees.** At most one worker holds a valid lease on a key, by the store's clock. A worker whose lease
//! has expired cannot change the record once another worker has begun the work. If no other worker has begun it, the
//! late worker can still complete it: otherwise the work would be done twice.
//!
//! **What it does not.** It cannot stop a worker that continues after its lease has expired, nor undo partial work.
//! Only effects that commit in one transaction with the record happen exactly once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::message::check_duration;

/// Upper bound of a key, in bytes: every database can index it.
const MAX_KEY: usize = 512;

/// The key of some work: the same work has the same key.
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
            return invalid(format!("'{}' contains a control character; remove it", key.escape_debug()));
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

/// The result of [`IdempotencyStore::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The caller has begun the work and holds its lease.
    Fresh(IdempotencyToken),
    /// The work is done.
    Done,
    /// Another worker does it.
    Busy {
        /// The remaining time of the other worker's lease, if it is not extended. A duration and not a time, because
        /// the clocks of store and caller differ.
        remaining: Duration,
    },
}

/// The right to complete work: its key and its lease. Clones are the same right.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyToken {
    key: IdempotencyKey,
    lease: i64,
}

impl IdempotencyToken {
    /// Creates a token. For stores: `lease` must be unique for the key.
    pub const fn new(key: IdempotencyKey, lease: i64) -> Self {
        Self { key, lease }
    }

    /// The key of the work.
    pub const fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The lease. For stores.
    pub const fn lease(&self) -> i64 {
        self.lease
    }
}

/// Whether a token is still valid for its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a lost record was not changed"]
pub enum Standing {
    /// It was, and the change is done.
    Held,
    /// Another worker has begun the work after the lease expired, or the record was abandoned or forgotten. Nothing was
    /// changed.
    Lost,
}

/// A store of idempotency records. Leases and ages are judged by the store's clock.
#[async_trait]
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Begins the work of a key, unless it is done or in progress, with a lease of this duration.
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError>;

    /// Sets the end of the lease to *now + lease*. No effect on work that is done; the answer is `Held`.
    async fn extend(
        &self,
        token: &IdempotencyToken,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError>;

    /// Marks the work as done. Repeated with the same token, the answer is `Held` again.
    async fn complete(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError>;

    /// Abandons the work, so that it can be begun at once. No effect on work that is done; the answer is `Held`.
    async fn abandon(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError>;

    /// Removes records of work that was completed, or whose lease expired, at least `older_than` ago. Returns their
    /// number.
    async fn forget(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError>;
}

/// Checks the duration of a lease. A store calls it before anything else.
pub fn check_lease(lease: Duration) -> Result<(), MessagingError> {
    if lease.is_zero() {
        return Err(MessagingError::invalid("idempotency lease", "it is 0; use a longer one"));
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
    fn a_lease_has_a_valid_duration() {
        assert!(check_lease(Duration::from_nanos(1)).is_ok());
        assert!(check_lease(Duration::ZERO).is_err());
        assert!(check_lease(Duration::MAX).is_err());
    }
}
