//! Messages that will not be delivered again by themselves.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::MessagingError;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::{ContentType, Key, Priority};
use crate::queue_name::QueueName;

/// Why a message died, in a word.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeadLetterReason(Cow<'static, str>);

impl DeadLetterReason {
    /// It was delivered as often as is allowed and never settled.
    pub const MAX_RECEIVE_COUNT: Self = Self(Cow::Borrowed("max_receive_count"));
    /// Its time to be handled had passed.
    pub const EXPIRED: Self = Self(Cow::Borrowed("expired"));
    /// Its bytes could not be decoded.
    pub const UNDECODABLE: Self = Self(Cow::Borrowed("undecodable"));
    /// A handler refused it.
    pub const REJECTED: Self = Self(Cow::Borrowed("rejected"));
    /// The retry strategy allowed no further attempt.
    pub const RETRIES_EXHAUSTED: Self = Self(Cow::Borrowed("retries_exhausted"));

    /// The reason as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for DeadLetterReason {
    fn from(reason: &str) -> Self {
        Self(Cow::Owned(reason.to_owned()))
    }
}

impl From<String> for DeadLetterReason {
    fn from(reason: String) -> Self {
        Self(Cow::Owned(reason))
    }
}

impl fmt::Display for DeadLetterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A dead message with its record: everything that is needed to understand it and to send it on its way again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message's identity, the same as in life.
    pub id: MessageId,
    /// The queue that it died in.
    pub origin: QueueName,
    /// Its bytes, as they were sent or last edited.
    pub body: Bytes,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// Its headers.
    pub headers: Headers,
    /// The key that it was ordered by, and will be again after a redrive.
    pub ordering_key: Option<Key>,
    /// The key that kept it single.
    pub dedup_key: Option<Key>,
    /// How urgent it was.
    pub priority: Priority,
    /// When it was, or will be, too late to handle it.
    pub expires_at: Option<Timestamp>,
    /// Why it died, in a word.
    pub reason: DeadLetterReason,
    /// The last error text that is known.
    pub error: Option<String>,
    /// How often it was delivered.
    pub deliveries_count: u32,
    /// How often a handler failed on it.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered, if ever.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered, if ever.
    pub last_attempt_at: Option<Timestamp>,
    /// When it died.
    pub dead_at: Timestamp,
    /// How often it has been edited since.
    pub revision: u32,
}

/// Which dead letters of a queue are meant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeadLetterSelection {
    /// Every one.
    #[default]
    All,
    /// These.
    Ids(Vec<MessageId>),
    /// Those that died for this reason.
    Reason(DeadLetterReason),
}

impl DeadLetterSelection {
    /// Whether a dead letter is one of them.
    pub fn includes(&self, id: MessageId, reason: &DeadLetterReason) -> bool {
        match self {
            Self::All => true,
            Self::Ids(ids) => ids.contains(&id),
            Self::Reason(wanted) => wanted == reason,
        }
    }
}

/// One page of a listing of dead letters, oldest death first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterQuery {
    /// Which ones.
    pub selection: DeadLetterSelection,
    /// At most that many.
    pub limit: usize,
    /// Those after the page that ended with this cursor.
    pub after: Option<DeadLetterCursor>,
}

impl Default for DeadLetterQuery {
    fn default() -> Self {
        Self { selection: DeadLetterSelection::All, limit: 100, after: None }
    }
}

impl DeadLetterQuery {
    /// Refuses a page of nothing: its cursor would lead nowhere, again and again.
    pub fn check(&self) -> Result<(), MessagingError> {
        if self.limit == 0 {
            return Err(MessagingError::invalid("limit", "a page has at least one dead letter"));
        }
        Ok(())
    }
}

/// Where a page of dead letters ended. Opaque; made by the provider that reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeadLetterCursor(pub String);

/// One page of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterPage {
    /// The dead letters, oldest death first.
    pub letters: Vec<DeadLetter>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<DeadLetterCursor>,
}

/// A change of a dead letter before it is redriven. What is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterEdit {
    /// Another body.
    pub body: Option<Bytes>,
    /// Another content type.
    pub content_type: Option<ContentType>,
    /// Other headers, in place of all that it has.
    pub headers: Option<Headers>,
}

/// A redrive: which dead letters go back to life, and where.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redrive {
    /// Which ones.
    pub selection: DeadLetterSelection,
    /// Where they go; `None` is the queue that they died in.
    pub to: Option<QueueName>,
    /// Only tell what would be done.
    pub dry_run: bool,
}

impl Redrive {
    /// Where the dead letters of `queue` go.
    pub fn target(&self, queue: &QueueName) -> Result<QueueName, MessagingError> {
        let target = self.to.clone().unwrap_or_else(|| queue.origin());
        if target.holds_dead_letters() {
            return Err(MessagingError::invalid(
                "redrive target",
                format!("'{target}' holds dead letters; redrive to '{}' or another queue", target.origin()),
            ));
        }
        Ok(target)
    }
}

/// What a redrive did, or would do when it was a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedriveReport {
    /// The messages that went back to life, in the order in which they did.
    pub redriven: Vec<MessageId>,
    /// The messages that stayed dead, and why.
    pub skipped: Vec<(MessageId, RedriveSkip)>,
}

impl RedriveReport {
    /// Adds the ids that a selection names and that are not among the dead.
    pub fn add_missing(&mut self, selection: &DeadLetterSelection) {
        if let DeadLetterSelection::Ids(ids) = selection {
            let found: HashSet<_> = self.redriven.iter().chain(self.skipped.iter().map(|(id, _)| id)).collect();
            let missing: Vec<_> = ids.iter().filter(|id| !found.contains(id)).copied().collect();
            self.skipped.extend(missing.into_iter().map(|id| (id, RedriveSkip::NotFound)));
        }
    }
}

/// Why a dead letter was not redriven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedriveSkip {
    /// Somebody has received it from the dead-letter queue and holds its lease.
    Leased,
    /// A message with its dedup key lives.
    DedupKeyTaken,
    /// It is not among the dead letters.
    NotFound,
}

impl fmt::Display for RedriveSkip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leased => "somebody holds its lease",
            Self::DedupKeyTaken => "a message with its dedup key lives",
            Self::NotFound => "it is not among the dead letters",
        })
    }
}
