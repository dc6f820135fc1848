//! Small durable records that are neither messages nor tasks: tokens, audit entries, secrets, recorded answers, sessions.
//!
//! A record has a kind, a key that is single within its kind, and a value that only its owner understands. Whoever wants
//! to be the first [`put_new`](StateRecords::put_new)s; whoever wants to change what it has read names the version that
//! it read and [`replace`](StateRecords::replace)s, so that nobody's change is lost to another's.
//!
//! **What it promises.** Of those who put one key at the same time one makes the record, and the others are shown it. A
//! version is given once: a record that was removed and made again is never taken for the one before. A record whose time
//! has passed, by the store's clock, is absent for every call. A record that is there from before the first page of a
//! listing until after the last is on one of its pages, once.
//!
//! **What it does not.** One that is made while a listing goes on may be on a page or not: a store that many write to
//! numbers its records before it commits them, so a page's end is no mark to wait at for newer ones.
//!
//! **What was rejected.** A table for each use: each would have its own rules for who is first and what has expired. The
//! time as the order of a listing: clocks stand still, and go back.

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

/// The longest kind, in characters.
const MAX_KIND: usize = 40;
/// The longest key, in bytes: every database can index it.
const MAX_KEY: usize = 512;
/// The largest value, in bytes. What is larger is no record but a file.
pub const MAX_RECORD_BYTES: usize = 1024 * 1024;
/// The longest page of a listing: its values are in memory at the same time.
pub const MAX_RECORDS_LISTED: usize = 1000;

/// What sort of record it is. Records of two kinds have nothing to do with each other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKind(Cow<'static, str>);

impl RecordKind {
    /// Checks a kind: 1 to 40 of the letters a to z and '_'.
    pub fn new(kind: impl AsRef<str>) -> Result<Self, MessagingError> {
        let kind = kind.as_ref();
        if is_kind(kind.as_bytes()) {
            return Ok(Self(Cow::Owned(kind.to_owned())));
        }
        let why = format!("'{}' is none; use 1 to {MAX_KIND} of the letters a to z and '_'", kind.escape_debug());
        Err(MessagingError::invalid("record kind", why))
    }

    /// A kind that a program names in a constant: one that is none does not compile.
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

/// What a record is known by within its kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey(Arc<str>);

impl RecordKey {
    /// Checks a key: 1 to 512 bytes of text without control characters.
    pub fn new(key: impl AsRef<str>) -> Result<Self, MessagingError> {
        let key = key.as_ref();
        let invalid = |why: String| Err(MessagingError::invalid("record key", why));
        if key.is_empty() {
            return invalid("it is empty; name what the record is known by".into());
        }
        if key.len() > MAX_KEY {
            return invalid(format!("it has {} bytes, at most {MAX_KEY} are allowed; use a hash of it", key.len()));
        }
        if key.chars().any(char::is_control) {
            return invalid(format!("'{}' holds a control character; use a hash of it", key.escape_debug()));
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

/// A record as it is at a moment.
#[derive(Clone, PartialEq, Eq)]
pub struct StateRecord {
    /// What sort of record it is.
    pub kind: RecordKind,
    /// What it is known by.
    pub key: RecordKey,
    /// What it says.
    pub value: Bytes,
    /// Rises with every change, and is never given again.
    pub version: i64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it is over, if ever.
    pub expires_at: Option<Timestamp>,
}

impl fmt::Debug for StateRecord {
    /// Without its value, which may be a secret.
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

/// What [`StateRecords::put_new`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a record that was there already was not changed"]
pub enum Put {
    /// Nothing was there. This is, now.
    Made(StateRecord),
    /// This one was there, and stays as it is.
    Taken(StateRecord),
}

/// In which order a listing goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordOrder {
    /// What was made first comes first.
    #[default]
    OldestFirst,
    /// What was made last comes first.
    NewestFirst,
}

/// One page of a listing of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordQuery {
    /// At most that many.
    pub limit: usize,
    /// Those after the page that ended with this cursor, in the same order.
    pub after: Option<RecordCursor>,
    /// By their creation, one way or the other.
    pub order: RecordOrder,
}

impl Default for RecordQuery {
    fn default() -> Self {
        Self { limit: 100, after: None, order: RecordOrder::OldestFirst }
    }
}

impl RecordQuery {
    /// Refuses a page that leads nowhere, and one that would not fit into memory. What a store does before anything else.
    pub fn check(&self) -> Result<(), MessagingError> {
        if !(1..=MAX_RECORDS_LISTED).contains(&self.limit) {
            let why = format!("{} is not between 1 and {MAX_RECORDS_LISTED}; read several pages", self.limit);
            return Err(MessagingError::invalid("limit", why));
        }
        Ok(())
    }
}

/// Where a page of records ended. Opaque; made by the store that reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecordCursor(pub String);

impl RecordCursor {
    /// The cursor of a place in the order of creation. For stores.
    pub fn at(sequence: i64) -> Self {
        Self(sequence.to_string())
    }

    /// The place. For stores.
    pub fn sequence(&self) -> Result<i64, MessagingError> {
        let why = || format!("'{}' ends no page; use the one that came with a page", self.0.escape_debug());
        self.0.parse().map_err(|_| MessagingError::invalid("cursor", why()))
    }
}

/// One page of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPage {
    /// The records, in the order of the query.
    pub records: Vec<StateRecord>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<RecordCursor>,
}

/// Keeps small records. Times are the store's, and a record that has expired is absent.
#[async_trait]
pub trait StateRecords: Send + Sync + 'static {
    /// Makes a record, unless there is one. It is over after `expires_in`, or never.
    async fn put_new(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        value: Bytes,
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Put, MessagingError>;

    /// Gives a record another value and another end (`None` is never), if it still has that version. Answers the record
    /// as it is now; `None` when it was changed meanwhile or is not there, and then nothing was done.
    ///
    /// It keeps its place in listings, and the time of its creation.
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

    /// Removes a record, whatever its version. Answers whether it was there.
    async fn remove(&self, kind: &RecordKind, key: &RecordKey, deadline: Deadline) -> Result<bool, MessagingError>;

    /// Lists the records of a kind in the order of their creation, page by page.
    async fn list(
        &self,
        kind: &RecordKind,
        query: &RecordQuery,
        deadline: Deadline,
    ) -> Result<RecordPage, MessagingError>;

    /// Removes what has expired, of every kind, and answers how much. Only its room is won by that: it was absent before.
    async fn forget_expired(&self, deadline: Deadline) -> Result<u64, MessagingError>;
}

/// Refuses a value that is too large and a lifetime that cannot be meant. What a store does before anything else.
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
            Err(MessagingError::invalid("record lifetime", "it is over before it begins; allow some time"))
        }
        Some(lifetime) => check_duration("record lifetime", lifetime, MAX_DURATION),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_words_of_small_letters() {
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
    fn a_value_has_a_size_and_a_lifetime_that_can_be_meant() {
        assert!(check_record(&[0; MAX_RECORD_BYTES], None).is_ok());
        assert!(check_record(&[], Some(Duration::from_nanos(1))).is_ok());
        assert!(check_record(&[0; MAX_RECORD_BYTES + 1], None).is_err());
        assert!(check_record(&[], Some(Duration::ZERO)).is_err());
        assert!(check_record(&[], Some(Duration::MAX)).is_err());
    }

    #[test]
    fn a_page_has_a_length_that_can_be_held() {
        let page = |limit| RecordQuery { limit, ..RecordQuery::default() };
        assert!(page(1).check().is_ok() && page(MAX_RECORDS_LISTED).check().is_ok());
        assert!(page(0).check().is_err() && page(MAX_RECORDS_LISTED + 1).check().is_err());
    }

    #[test]
    fn a_cursor_leads_back_to_its_place() {
        assert_eq!(RecordCursor::at(7).sequence().unwrap(), 7);
        assert!(RecordCursor("seven".into()).sequence().is_err());
    }

    #[test]
    fn a_secret_is_not_shown_by_mistake() {
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
