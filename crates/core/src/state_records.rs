//! State records: small durable values that are neither messages nor tasks, such as tokens, audit entries, secrets,
//! recorded answers and sessions.
//!
//! A record has a kind, a key that is unique within its kind, and a value that only its owner interprets.
//! [`put_new`](StateRecords::put_new) creates a record unless it exists. [`replace`](StateRecords::replace) changes a
//! record only if it still has the version that the caller has read, so that no change is lost.
//!
//! **What it guarantees.** Of concurrent creations of a key one succeeds, and the others return its record. A version
//! is never reused: a record that was removed and created again differs from the old one. An expired record, by the
//! store's clock, is absent for every call. A record that exists during a whole listing is on exactly one of its pages.
//!
//! **What it does not.** A record that is created during a listing may or may not be listed: stores number records
//! before they commit, so records before a page's end can appear later.
//!
//! **What was rejected.** A table for each use: each would have its own rules for creation and expiry. Listing by time:
//! clocks stop and go back.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::message::{MAX_DURATION, check_duration};

/// Upper bound of a kind, in characters.
const MAX_KIND: usize = 40;
/// Upper bound of a key, in bytes: every database can index it.
const MAX_KEY: usize = 512;
/// Upper bound of a value, in bytes. Store larger data in a file.
pub const MAX_RECORD_BYTES: usize = 1024 * 1024;
/// Upper bound of a page: its values are in memory at the same time.
pub const MAX_RECORDS_LISTED: usize = 1000;

/// The kind of a record. Kinds are independent of each other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKind(Cow<'static, str>);

impl RecordKind {
    /// Checks a kind: 1 to 40 characters of a to z and '_'.
    pub fn new(kind: impl AsRef<str>) -> Result<Self, MessagingError> {
        let kind = kind.as_ref();
        if is_kind(kind.as_bytes()) {
            return Ok(Self(Cow::Owned(kind.to_owned())));
        }
        let why = format!("'{}' is not a kind; use 1 to {MAX_KIND} of the letters a to z and '_'", kind.escape_debug());
        Err(MessagingError::invalid("record kind", why))
    }

    /// A constant kind; an invalid one does not compile.
    ///
    /// ```
    /// use postrider_core::RecordKind;
    ///
    /// const TOKENS: RecordKind = RecordKind::constant("api_token");
    /// assert_eq!(TOKENS.as_str(), "api_token");
    /// ```
    pub const fn constant(kind: &'static str) -> Self {
        assert!(is_kind(kind.as_bytes()), "a kind is 1 to 40 of the letters a to z and '_'");
        Self(Cow::Borrowed(kind))
    }

    /// The kind as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const fn is_kind(kind: &[u8]) -> bool {
    let mut at = 0;
    while at < kind.len() {
        if !(kind[at].is_ascii_lowercase() || kind[at] == b'_') {
            return false;
        }
        at += 1;
    }
    !kind.is_empty() && kind.len() <= MAX_KIND
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The key of a record, unique within its kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey(Arc<str>);

impl RecordKey {
    /// Checks a key: 1 to 512 bytes of text without control characters.
    pub fn new(key: impl AsRef<str>) -> Result<Self, MessagingError> {
        let key = key.as_ref();
        let invalid = |why: String| Err(MessagingError::invalid("record key", why));
        if key.is_empty() {
            return invalid("it is empty; use at least one character".into());
        }
        if key.len() > MAX_KEY {
            return invalid(format!("it has {} bytes, at most {MAX_KEY} are allowed; use a hash of it", key.len()));
        }
        if key.chars().any(char::is_control) {
            return invalid(format!("'{}' contains a control character; use a hash of it", key.escape_debug()));
        }
        Ok(Self(key.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The current state of a record.
#[derive(Clone, PartialEq, Eq)]
pub struct StateRecord {
    /// The kind.
    pub kind: RecordKind,
    /// The key.
    pub key: RecordKey,
    /// The value.
    pub value: Bytes,
    /// The version. It rises with every change and is never reused.
    pub version: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires, if ever.
    pub expires_at: Option<Timestamp>,
}

impl fmt::Debug for StateRecord {
    /// Without the value, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateRecord")
            .field("kind", &self.kind)
            .field("key", &self.key)
            .field("value", &format_args!("{} bytes", self.value.len()))
            .field("version", &self.version)
            .field("created_at", &self.created_at)
            .field("expires_at", &self.expires_at)
            .finish()
    }
}

/// The result of [`StateRecords::put_new`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an existing record was not changed"]
pub enum Put {
    /// The record was created.
    Made(StateRecord),
    /// The record existed and is unchanged.
    Taken(StateRecord),
}

/// The order of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordOrder {
    /// Oldest first.
    #[default]
    OldestFirst,
    /// Newest first.
    NewestFirst,
}

/// A request for a page of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordQuery {
    /// Upper bound of the records in the page.
    pub limit: usize,
    /// The cursor of the previous page, with the same order.
    pub after: Option<RecordCursor>,
    /// The order.
    pub order: RecordOrder,
}

impl Default for RecordQuery {
    fn default() -> Self {
        Self { limit: 100, after: None, order: RecordOrder::OldestFirst }
    }
}

impl RecordQuery {
    /// Checks the limit: at least 1, and the page must fit into memory. A store calls it before anything else.
    pub fn check(&self) -> Result<(), MessagingError> {
        if !(1..=MAX_RECORDS_LISTED).contains(&self.limit) {
            let why = format!("{} is not between 1 and {MAX_RECORDS_LISTED}; read several pages", self.limit);
            return Err(MessagingError::invalid("limit", why));
        }
        Ok(())
    }
}

/// The end of a page of records. Opaque; only the store that made it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecordCursor(pub String);

impl RecordCursor {
    /// Creates the cursor of a position in the order of creation. For stores.
    pub fn at(sequence: i64) -> Self {
        Self(sequence.to_string())
    }

    /// The position. For stores.
    pub fn sequence(&self) -> Result<i64, MessagingError> {
        self.0.parse().map_err(|_| MessagingError::invalid_cursor(&self.0))
    }
}

/// A page of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPage {
    /// The records, in the order of the query.
    pub records: Vec<StateRecord>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<RecordCursor>,
}

/// A store of small records. Times are by the store's clock, and an expired record is absent.
#[async_trait]
pub trait StateRecords: Send + Sync + 'static {
    /// Creates a record unless it exists. It expires after `expires_in`, or never.
    async fn put_new(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        value: Bytes,
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Put, MessagingError>;

    /// Replaces the value and the expiry of a record (`None` is never) if it still has that version, and returns the
    /// new record. Otherwise returns `None` and changes nothing.
    ///
    /// The record keeps its position in listings and its time of creation.
    async fn replace(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        version: i64,
        value: Bytes,
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, MessagingError>;

    /// Reads a record.
    async fn get(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, MessagingError>;

    /// Removes a record of any version. Returns whether it existed.
    async fn remove(&self, kind: &RecordKind, key: &RecordKey, deadline: Deadline) -> Result<bool, MessagingError>;

    /// Lists the records of a kind in the order of creation, page by page.
    async fn list(
        &self,
        kind: &RecordKind,
        query: &RecordQuery,
        deadline: Deadline,
    ) -> Result<RecordPage, MessagingError>;

    /// Deletes expired records of every kind and returns their number. This only frees space, because expired records
    /// are absent already.
    async fn forget_expired(&self, deadline: Deadline) -> Result<u64, MessagingError>;
}

/// Checks size and lifetime of a value. A store calls it before anything else.
pub fn check_record(value: &[u8], expires_in: Option<Duration>) -> Result<(), MessagingError> {
    if value.len() > MAX_RECORD_BYTES {
        let why = format!(
            "it has {} bytes, at most {MAX_RECORD_BYTES} are allowed; store a reference to the data instead",
            value.len()
        );
        return Err(MessagingError::invalid("record value", why));
    }
    match expires_in {
        Some(lifetime) if lifetime.is_zero() => {
            Err(MessagingError::invalid("record lifetime", "it is 0; use a longer one"))
        }
        Some(lifetime) => check_duration("record lifetime", lifetime, MAX_DURATION),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_words_of_lowercase_letters() {
        assert_eq!(RecordKind::new("api_token").unwrap(), RecordKind::constant("api_token"));
        assert!(RecordKind::new("k".repeat(40)).is_ok());
        for bad in ["", "Token", "token2", "a b", "tökén", &"k".repeat(41)] {
            let refused = RecordKind::new(bad).unwrap_err().to_string();
            assert!(refused.contains("use 1 to 40 of the letters"), "{bad:?}: {refused}");
        }
    }

    #[test]
    fn keys_are_short_lines_of_text() {
        assert_eq!(RecordKey::new("sha256:7f").unwrap().as_str(), "sha256:7f");
        assert!(RecordKey::new("k".repeat(512)).is_ok());
        for bad in ["", "two\nlines", "\0", &"k".repeat(513)] {
            assert!(RecordKey::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_value_has_a_valid_size_and_lifetime() {
        assert!(check_record(&[0; MAX_RECORD_BYTES], None).is_ok());
        assert!(check_record(&[], Some(Duration::from_nanos(1))).is_ok());
        assert!(check_record(&[0; MAX_RECORD_BYTES + 1], None).is_err());
        assert!(check_record(&[], Some(Duration::ZERO)).is_err());
        assert!(check_record(&[], Some(Duration::MAX)).is_err());
    }

    #[test]
    fn a_page_has_a_valid_limit() {
        let page = |limit| RecordQuery { limit, ..RecordQuery::default() };
        assert!(page(1).check().is_ok() && page(MAX_RECORDS_LISTED).check().is_ok());
        assert!(page(0).check().is_err() && page(MAX_RECORDS_LISTED + 1).check().is_err());
    }

    #[test]
    fn a_cursor_round_trips() {
        assert_eq!(RecordCursor::at(7).sequence().unwrap(), 7);
        assert!(RecordCursor("seven".into()).sequence().is_err());
    }

    #[test]
    fn a_value_is_not_in_the_debug_output() {
        let record = StateRecord {
            kind: RecordKind::constant("secret"),
            key: RecordKey::new("smtp").unwrap(),
            value: Bytes::from_static(b"hunter2"),
            version: 1,
            created_at: Timestamp::EPOCH,
            expires_at: None,
        };
        let shown = format!("{record:?} {:?}", Put::Taken(record.clone()));
        assert!(shown.contains("7 bytes") && !shown.contains("hunter"), "{shown}");
    }
}
