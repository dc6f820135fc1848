//! Messages that will not be delivered again by themselves.

pub mod filter;
pub mod fingerprint;
pub mod groups;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::capabilities::Limits;
use crate::clock::Timestamp;
use crate::error::MessagingError;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::{ContentType, Key, Message, Priority};
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

    /// A person deleted it while it waited.
    pub const DELETED: Self = Self(Cow::Borrowed("deleted"));

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

/// A dead letter without what it says: enough to count, to choose and to sort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterSummary {
    /// The message's identity.
    pub id: MessageId,
    /// Why it died, in a word.
    pub reason: DeadLetterReason,
    /// The last error text that is known.
    pub error: Option<String>,
    /// The key that it was ordered by.
    pub ordering_key: Option<Key>,
    /// When it died.
    pub dead_at: Timestamp,
}

impl From<DeadLetter> for DeadLetterSummary {
    fn from(letter: DeadLetter) -> Self {
        Self {
            id: letter.id,
            reason: letter.reason,
            error: letter.error,
            ordering_key: letter.ordering_key,
            dead_at: letter.dead_at,
        }
    }
}

/// One page of dead letters without their bodies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterSummaryPage {
    /// The dead letters, oldest death first.
    pub summaries: Vec<DeadLetterSummary>,
    /// Where the next page begins; `None` at the end. The cursor is good for [`DeadLetterQuery`] in either form.
    pub next: Option<DeadLetterCursor>,
}

impl From<DeadLetterPage> for DeadLetterSummaryPage {
    fn from(page: DeadLetterPage) -> Self {
        Self { summaries: page.letters.into_iter().map(DeadLetterSummary::from).collect(), next: page.next }
    }
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

impl DeadLetterEdit {
    /// The dead message as it is after this edit: what every store keeps of it. Refused when a store with these limits could
    /// not take it, and when it would be no JSON under the name of JSON. A body and a content type that stay as they were are
    /// not looked at: the message may have died of them, and its headers can still be changed.
    pub fn apply_to(&self, mut message: Message, limits: &Limits) -> Result<Message, MessagingError> {
        let is_rewritten = self.body.is_some() || self.content_type.is_some();
        message.body = self.body.clone().unwrap_or(message.body);
        message.content_type = self.content_type.clone().unwrap_or(message.content_type);
        message.headers = self.headers.clone().unwrap_or(message.headers);
        message.check(limits)?;
        if is_rewritten && message.content_type.is_json() {
            check_json(&message.body)?;
        }
        Ok(message)
    }
}

fn check_json(body: &[u8]) -> Result<(), MessagingError> {
    let is_text = std::str::from_utf8(body).map_err(|error| {
        let before = &body[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let column = 1 + before.iter().rev().take_while(|byte| **byte != b'\n').count();
        not_json(line, column, "it is no UTF-8")
    });
    // Skipped and not built: a body may nest deeper than a stack.
    let is_json = |text| serde_json::from_str::<serde::de::IgnoredAny>(text);
    is_json(is_text?).map(|_| ()).map_err(|error| {
        let text = error.to_string();
        let why = text.rsplit_once(" at line ").map_or(text.as_str(), |(why, _)| why);
        not_json(error.line(), error.column(), why)
    })
}

fn not_json(line: usize, column: usize, why: &str) -> MessagingError {
    let why = format!("line {line}, column {column}: {why}; write JSON there, or change the content type too");
    MessagingError::invalid("body", why)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(
        edit: &DeadLetterEdit,
        content_type: ContentType,
        body: &'static [u8],
    ) -> Result<Message, MessagingError> {
        edit.apply_to(Message::new(body).content_type(content_type), &Limits::default())
    }

    #[test]
    fn an_edit_that_spoils_json_says_where() {
        let json = |edit: DeadLetterEdit| edited(&edit, ContentType::JSON, b"{}");
        let body = |body: &'static [u8]| DeadLetterEdit { body: Some(Bytes::from_static(body)), ..Default::default() };
        for (bad, place) in [
            (&b"{\"a\": 1,\n \"b\" 2}"[..], "line 2, column 6: expected `:`"),
            (b"{\"a\": 1", "line 1, column 7: EOF while parsing an object"),
            (b"", "line 1, column 0: EOF"),
            (b"{}\n\xff", "line 2, column 1: it is no UTF-8"),
        ] {
            let refused = json(body(bad)).unwrap_err().to_string();
            assert!(refused.contains(place) && refused.contains("change the content type"), "{refused}");
        }
        assert!(json(body(b" [1, 2]")).is_ok());
        let with_type = |edit: DeadLetterEdit, to: &str| DeadLetterEdit {
            content_type: Some(ContentType::parse(to).unwrap()),
            ..edit
        };
        assert!(json(with_type(body(b"no json"), "text/plain")).is_ok());
        let text = |edit: DeadLetterEdit| edited(&edit, ContentType::from_static("text/plain"), b"no json");
        assert!(text(body(b"{")).is_ok());
        assert!(text(with_type(body(b"{"), "application/json; charset=utf-8")).is_err());
        assert!(text(with_type(DeadLetterEdit::default(), "application/json")).is_err());
        let headers = DeadLetterEdit { headers: Some(Headers::new()), ..Default::default() };
        assert!(edited(&headers, ContentType::JSON, b"no json").is_ok(), "what it died of stays as it was");
    }

    #[test]
    fn json_that_nests_deeper_than_a_stack_is_json() {
        let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
        let edit = DeadLetterEdit { body: Some(deep.into()), ..Default::default() };
        assert!(edited(&edit, ContentType::JSON, b"{}").is_ok());
    }
}
