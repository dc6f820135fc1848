//! Dead letters: messages that will not be retried.

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

/// Why a message was dead-lettered, in one word.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeadLetterReason(Cow<'static, str>);

impl DeadLetterReason {
    /// The delivery limit was reached without a settle.
    pub const MAX_RECEIVE_COUNT: Self = Self(Cow::Borrowed("max_receive_count"));
    /// The message had expired.
    pub const EXPIRED: Self = Self(Cow::Borrowed("expired"));
    /// The body could not be decoded.
    pub const UNDECODABLE: Self = Self(Cow::Borrowed("undecodable"));
    /// A handler rejected it.
    pub const REJECTED: Self = Self(Cow::Borrowed("rejected"));
    /// The retry strategy allowed no further attempt.
    pub const RETRIES_EXHAUSTED: Self = Self(Cow::Borrowed("retries_exhausted"));

    /// A waiting message was deleted on request.
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

/// A dead letter with its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message's id, unchanged.
    pub id: MessageId,
    /// The queue that it was sent to.
    pub origin: QueueName,
    /// The body, as sent or last edited.
    pub body: Bytes,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// Its headers.
    pub headers: Headers,
    /// The ordering key, which applies again after a redrive.
    pub ordering_key: Option<Key>,
    /// The dedup key.
    pub dedup_key: Option<Key>,
    /// The priority.
    pub priority: Priority,
    /// When the message expires or has expired.
    pub expires_at: Option<Timestamp>,
    /// Why it was dead-lettered, in one word.
    pub reason: DeadLetterReason,
    /// The last known error text.
    pub error: Option<String>,
    /// Number of deliveries.
    pub deliveries_count: u32,
    /// Number of failed attempts.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered, if ever.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered, if ever.
    pub last_attempt_at: Option<Timestamp>,
    /// When it was dead-lettered.
    pub dead_at: Timestamp,
    /// Number of edits since.
    pub revision: u32,
}

/// A dead letter without body and headers, to count, select and sort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterSummary {
    /// The message's id.
    pub id: MessageId,
    /// Why it was dead-lettered, in one word.
    pub reason: DeadLetterReason,
    /// The last known error text.
    pub error: Option<String>,
    /// The ordering key.
    pub ordering_key: Option<Key>,
    /// When it was dead-lettered.
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

/// A page of dead letters without bodies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterSummaryPage {
    /// The dead letters, oldest death first.
    pub summaries: Vec<DeadLetterSummary>,
    /// The cursor of the next page; `None` at the end. It is valid for [`DeadLetterQuery`] in either form.
    pub next: Option<DeadLetterCursor>,
}

impl From<DeadLetterPage> for DeadLetterSummaryPage {
    fn from(page: DeadLetterPage) -> Self {
        Self { summaries: page.letters.into_iter().map(DeadLetterSummary::from).collect(), next: page.next }
    }
}

/// A selection of the dead letters of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeadLetterSelection {
    /// All dead letters.
    #[default]
    All,
    /// Those with these ids.
    Ids(Vec<MessageId>),
    /// Those with this reason.
    Reason(DeadLetterReason),
}

impl DeadLetterSelection {
    /// Whether a dead letter is selected.
    pub fn includes(&self, id: MessageId, reason: &DeadLetterReason) -> bool {
        match self {
            Self::All => true,
            Self::Ids(ids) => ids.contains(&id),
            Self::Reason(wanted) => wanted == reason,
        }
    }
}

/// A request for a page of dead letters, oldest death first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterQuery {
    /// The selection.
    pub selection: DeadLetterSelection,
    /// Upper bound of the dead letters in the page.
    pub limit: usize,
    /// The cursor of the previous page.
    pub after: Option<DeadLetterCursor>,
}

impl Default for DeadLetterQuery {
    fn default() -> Self {
        Self { selection: DeadLetterSelection::All, limit: 100, after: None }
    }
}

impl DeadLetterQuery {
    /// Refuses a limit of 0, whose next page would be the same page again.
    pub fn check(&self) -> Result<(), MessagingError> {
        if self.limit == 0 {
            return Err(MessagingError::invalid("limit", "it is 0; ask for at least one dead letter"));
        }
        Ok(())
    }
}

/// The end of a page of dead letters. Opaque; only the provider that made it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeadLetterCursor(pub String);

/// A page of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterPage {
    /// The dead letters, oldest death first.
    pub letters: Vec<DeadLetter>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<DeadLetterCursor>,
}

/// An edit of a dead letter before a redrive. A field that is `None` stays unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterEdit {
    /// The new body.
    pub body: Option<Bytes>,
    /// The new content type.
    pub content_type: Option<ContentType>,
    /// The new headers, which replace all headers.
    pub headers: Option<Headers>,
}

impl DeadLetterEdit {
    /// Returns the message after the edit. Fails if it exceeds the limits, or if the content type is JSON and the body
    /// is not. An unchanged body and content type are not checked: they may be why the message died, and its headers
    /// can still be edited.
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
        not_json(line, column, "it is not UTF-8")
    });
    // Parsed without building values, because nested JSON may be deeper than the stack.
    let is_json = |text| serde_json::from_str::<serde::de::IgnoredAny>(text);
    is_json(is_text?).map(|_| ()).map_err(|error| {
        let text = error.to_string();
        let why = text.rsplit_once(" at line ").map_or(text.as_str(), |(why, _)| why);
        not_json(error.line(), error.column(), why)
    })
}

fn not_json(line: usize, column: usize, why: &str) -> MessagingError {
    let why = format!("line {line}, column {column}: {why}; correct the JSON, or change the content type too");
    MessagingError::invalid("body", why)
}

/// A request to redrive dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redrive {
    /// The selection.
    pub selection: DeadLetterSelection,
    /// The queue to redrive to; `None` is the original queue.
    pub to: Option<QueueName>,
    /// Only report what would be done.
    pub dry_run: bool,
}

impl Redrive {
    /// The queue to which the dead letters of `queue` are redriven.
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

/// The result of a redrive or its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedriveReport {
    /// The redriven messages, in order.
    pub redriven: Vec<MessageId>,
    /// The messages that were not redriven, and why.
    pub skipped: Vec<(MessageId, RedriveSkip)>,
}

impl RedriveReport {
    /// Adds the selected ids that are not among the dead letters.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum RedriveSkip {
    /// A receiver of the dead-letter queue holds its lease.
    Leased,
    /// Another living message has its dedup key.
    DedupKeyTaken,
    /// It is not among the dead letters.
    NotFound,
}

impl fmt::Display for RedriveSkip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leased => "another worker holds its lease",
            Self::DedupKeyTaken => "another living message has its dedup key",
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
    fn an_edit_with_invalid_json_names_the_position() {
        let json = |edit: DeadLetterEdit| edited(&edit, ContentType::JSON, b"{}");
        let body = |body: &'static [u8]| DeadLetterEdit { body: Some(Bytes::from_static(body)), ..Default::default() };
        for (bad, place) in [
            (&b"{\"a\": 1,\n \"b\" 2}"[..], "line 2, column 6: expected `:`"),
            (b"{\"a\": 1", "line 1, column 7: EOF while parsing an object"),
            (b"", "line 1, column 0: EOF"),
            (b"{}\n\xff", "line 2, column 1: it is not UTF-8"),
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
        assert!(edited(&headers, ContentType::JSON, b"no json").is_ok(), "an unchanged body is not checked");
    }

    #[test]
    fn json_nested_deeper_than_the_stack_is_accepted() {
        let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
        let edit = DeadLetterEdit { body: Some(deep.into()), ..Default::default() };
        assert!(edited(&edit, ContentType::JSON, b"{}").is_ok());
    }
}
