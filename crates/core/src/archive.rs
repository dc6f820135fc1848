//! The archive: messages that are kept after their end, their search, and how they are sent again.
//!
//! An archive has many more rows than a queue, and headers have no index. A page is therefore filled by a walk from the
//! newest end to the oldest, which reads [`MOST_WALKED`] rows at most: a page can be short or empty and still have a
//! next page. A search by id does not walk if the store has an index of ids.

use serde::{Deserialize, Serialize};

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::{ContentType, Key, Message, Priority};
use crate::message_state::State;
use crate::queue_name::QueueName;
use crate::service::{MessagingService, QueueAdmin};

/// Upper bound of the rows read for one page.
pub const MOST_WALKED: usize = 10_000;

/// Rows read in one step of a search.
const STEP: usize = 1000;

/// The end of the year 9999: later than any end, and the latest time that every store can compare.
const LATEST: Timestamp = Timestamp::from_micros(253_402_300_799_000_000);

/// Header of a message that was sent again: the id of the archived message.
pub const SENT_AGAIN_FROM: &str = "sent-again-from";

/// How an archived message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ArchivedState {
    /// It was acknowledged.
    Completed,
    /// It was a dead letter, and was purged.
    Failed,
}

impl ArchivedState {
    /// The state's name in every store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => State::Completed.as_str(),
            Self::Failed => State::Failed.as_str(),
        }
    }
}

impl std::fmt::Display for ArchivedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for ArchivedState {
    type Err = MessagingError;

    fn from_str(text: &str) -> Result<Self, MessagingError> {
        [Self::Completed, Self::Failed].into_iter().find(|state| state.as_str().eq_ignore_ascii_case(text)).ok_or_else(
            || {
                MessagingError::invalid(
                    "state",
                    format!("'{text}' is not a state of the archive; use COMPLETED or FAILED"),
                )
            },
        )
    }
}

/// An archived message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedMessage {
    /// The message's id, unchanged.
    pub id: MessageId,
    /// The queue that it was sent to.
    pub queue: QueueName,
    /// How it ended.
    pub state: ArchivedState,
    /// The body.
    pub body: Bytes,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// Its headers.
    pub headers: Headers,
    /// The ordering key.
    pub ordering_key: Option<Key>,
    /// The priority.
    pub priority: Priority,
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
    /// When it ended.
    pub archived_at: Timestamp,
    /// The last known error text.
    pub last_error: Option<String>,
}

impl ArchivedMessage {
    /// A new message with the same body, content type, headers, ordering key and priority. Its header
    /// [`SENT_AGAIN_FROM`] names this one.
    pub fn again(self) -> Result<Message, MessagingError> {
        let mut message = Message::new(self.body).content_type(self.content_type).priority(self.priority);
        message.headers = self.headers;
        message.headers.insert(SENT_AGAIN_FROM, self.id.to_string())?;
        message.ordering_key = self.ordering_key;
        Ok(message)
    }
}

/// A filter of archived messages: those that meet every given condition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchiveFilter {
    /// This id.
    pub id: Option<MessageId>,
    /// This ordering key.
    pub ordering_key: Option<Key>,
    /// A header with this name and value.
    pub header: Option<(String, String)>,
    /// Ended at this time or later.
    pub since: Option<Timestamp>,
    /// Ended before this time.
    pub until: Option<Timestamp>,
    /// Ended in this state.
    pub state: Option<ArchivedState>,
}

impl ArchiveFilter {
    /// Whether a message meets all conditions.
    pub fn includes(&self, message: &ArchivedMessage) -> bool {
        let header = self.header.as_ref().map(|(name, value)| message.headers.get(name) == Some(value.as_str()));
        self.id.is_none_or(|id| id == message.id)
            && (self.ordering_key.is_none() || self.ordering_key == message.ordering_key)
            && header != Some(false)
            && self.since.is_none_or(|since| since <= message.archived_at)
            && self.until.is_none_or(|until| message.archived_at < until)
            && self.state.is_none_or(|state| state == message.state)
    }

    /// Whether only times are given.
    fn is_plain(&self) -> bool {
        let Self { id, ordering_key, header, since: _, until: _, state } = self;
        id.is_none() && ordering_key.is_none() && header.is_none() && state.is_none()
    }
}

/// A request for a page, newest end first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveQuery {
    /// The filter.
    pub filter: ArchiveFilter,
    /// Upper bound of the messages in the page.
    pub limit: usize,
    /// The cursor of the previous page.
    pub after: Option<ArchiveCursor>,
}

impl ArchiveQuery {
    /// Refuses a limit of 0, whose next page would be the same page again.
    pub fn check(&self) -> Result<(), MessagingError> {
        if self.limit == 0 {
            return Err(MessagingError::invalid("limit", "it is 0; ask for at least one message"));
        }
        Ok(())
    }
}

impl Default for ArchiveQuery {
    fn default() -> Self {
        Self { filter: ArchiveFilter::default(), limit: 100, after: None }
    }
}

/// The end of a page of archived messages. Opaque; only the provider that made it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ArchiveCursor(pub String);

/// A page of archived messages. It can be short or empty and still have a next page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchivePage {
    /// The messages, newest end first.
    pub messages: Vec<ArchivedMessage>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<ArchiveCursor>,
}

/// The position of a row in an archive: its end, then a number that is unique among rows with that end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchivePosition {
    /// When the message ended.
    pub archived_at: Timestamp,
    /// The row number.
    pub row: i64,
}

impl ArchivePosition {
    fn to_cursor(self) -> ArchiveCursor {
        ArchiveCursor(format!("{}.{}", self.archived_at.as_micros(), self.row))
    }

    fn read(cursor: &ArchiveCursor) -> Result<Self, MessagingError> {
        let parts = cursor.0.split_once('.').and_then(|(time, row)| Some((time.parse().ok()?, row.parse().ok()?)));
        let (time, row) = parts.ok_or_else(|| MessagingError::invalid_cursor(&cursor.0))?;
        Ok(Self { archived_at: Timestamp::from_micros(time).clamp(Timestamp::EPOCH, LATEST), row })
    }
}

/// A request for rows of an archive, in descending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveStep {
    /// Only rows before this position.
    pub before: ArchivePosition,
    /// Only rows that ended at this time or later.
    pub since: Timestamp,
    /// Upper bound of the rows.
    pub limit: usize,
}

/// A walk through an archive that fills one page. The store reads the rows of each step; the walk decides when to stop.
#[derive(Debug)]
pub struct ArchiveWalk {
    limit: usize,
    step: ArchiveStep,
    left: usize,
    found: Vec<ArchivePosition>,
    is_over: bool,
}

impl ArchiveWalk {
    /// Starts the walk of a query.
    pub fn new(query: &ArchiveQuery) -> Result<Self, MessagingError> {
        query.check()?;
        let filter = &query.filter;
        if let Some((name, value)) = &filter.header {
            // An invalid header name is a mistake of the caller, and stores need not escape it.
            Headers::new().insert(name, value)?;
        }
        let end = ArchivePosition { archived_at: filter.until.unwrap_or(LATEST).min(LATEST), row: i64::MIN };
        let before = match &query.after {
            Some(cursor) => ArchivePosition::read(cursor)?.min(end),
            None => end,
        };
        let since = filter.since.unwrap_or(Timestamp::EPOCH).clamp(Timestamp::EPOCH, LATEST);
        // One row more than the limit shows whether there is a next page.
        let limit = if filter.is_plain() { query.limit.saturating_add(1).min(MOST_WALKED) } else { STEP };
        let step = ArchiveStep { before, since, limit };
        Ok(Self { limit: query.limit, step, left: MOST_WALKED, found: Vec::new(), is_over: false })
    }

    /// The rows to read next.
    pub fn step(&self) -> ArchiveStep {
        self.step
    }

    /// Adds the rows of a step, each with whether the filter includes it. Returns whether another step is needed.
    pub fn take(&mut self, rows: &[(ArchivePosition, bool)]) -> bool {
        for (position, is_included) in rows {
            if *is_included {
                if self.found.len() == self.limit {
                    return false;
                }
                self.found.push(*position);
            }
            self.step.before = *position;
        }
        self.is_over = rows.len() < self.step.limit;
        self.left = self.left.saturating_sub(rows.len());
        !self.is_over && self.left > 0
    }

    /// The rows of the page, and the cursor of the next one.
    pub fn finish(self) -> (Vec<ArchivePosition>, Option<ArchiveCursor>) {
        let next = if self.is_over { None } else { Some(self.step.before.to_cursor()) };
        (self.found, next)
    }
}

/// Finds the archived message of an id; of several, the one that ended last.
pub async fn find<P: QueueAdmin + ?Sized>(
    provider: &P,
    queue: &QueueName,
    id: MessageId,
    deadline: Deadline,
) -> Result<ArchivedMessage, MessagingError> {
    let filter = ArchiveFilter { id: Some(id), ..ArchiveFilter::default() };
    let mut query = ArchiveQuery { filter, limit: 1, after: None };
    loop {
        let page = provider.archived(queue, &query, deadline).await?;
        if let Some(message) = page.messages.into_iter().next() {
            return Ok(message);
        }
        query.after = page.next;
        if query.after.is_none() {
            return Err(MessagingError::MessageNotFound { queue: queue.origin(), id });
        }
    }
}

/// Sends an archived message again, and returns the new id: [`QueueAdmin::send_again`] for a provider that has search
/// and send.
pub async fn send_again<P: MessagingService + QueueAdmin + ?Sized>(
    provider: &P,
    queue: &QueueName,
    id: MessageId,
    deadline: Deadline,
) -> Result<MessageId, MessagingError> {
    let archived = find(provider, queue, id, deadline).await?;
    provider.send_message(&queue.origin(), archived.again()?, deadline).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(n: i64) -> ArchivePosition {
        ArchivePosition { archived_at: Timestamp::from_micros(n), row: n }
    }

    /// Fills pages from rows `count..0`, of which every `every`th is included. Returns the rows of each page.
    fn pages(count: i64, every: i64, limit: usize, filter: &ArchiveFilter) -> Vec<Vec<i64>> {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let query = ArchiveQuery { filter: filter.clone(), limit, after };
            let mut walk = ArchiveWalk::new(&query).unwrap();
            loop {
                let step = walk.step();
                let rows = (0..count).rev().map(position).filter(|position| *position < step.before).take(step.limit);
                let rows: Vec<_> = rows.map(|position| (position, position.row % every == 0)).collect();
                if !walk.take(&rows) {
                    break;
                }
            }
            let (found, next) = walk.finish();
            pages.push(found.into_iter().map(|position| position.row).collect());
            after = next;
            if after.is_none() {
                return pages;
            }
        }
    }

    #[test]
    fn pages_neither_repeat_nor_miss_a_row() {
        let plain = ArchiveFilter::default();
        assert_eq!(pages(0, 1, 2, &plain), [[0; 0]]);
        assert_eq!(pages(4, 1, 2, &plain), [[3, 2], [1, 0]]);
        assert_eq!(pages(5, 1, 2, &plain), [vec![4, 3], vec![2, 1], vec![0]]);
        let filter = ArchiveFilter { state: Some(ArchivedState::Failed), ..plain };
        for limit in [1, 7, 1000, 5000] {
            let found: Vec<i64> = pages(25_000, 7, limit, &filter).concat();
            assert_eq!(found, (0..25_000).rev().filter(|row| row % 7 == 0).collect::<Vec<_>>(), "limit {limit}");
        }
    }

    #[test]
    fn a_page_reads_a_bounded_number_of_rows() {
        let filter = ArchiveFilter { state: Some(ArchivedState::Failed), ..ArchiveFilter::default() };
        let none = i64::MAX;
        let found = pages(25_000, none, 10, &filter);
        assert_eq!(found, [vec![], vec![], vec![0]], "row 0 is included, after two empty pages");
    }

    #[test]
    fn invalid_queries_are_refused() {
        let refused = |query: ArchiveQuery| assert!(ArchiveWalk::new(&query).is_err(), "{query:?}");
        refused(ArchiveQuery { limit: 0, ..ArchiveQuery::default() });
        let header = Some(("a b".to_owned(), "c".to_owned()));
        refused(ArchiveQuery {
            filter: ArchiveFilter { header, ..ArchiveFilter::default() },
            ..ArchiveQuery::default()
        });
        for cursor in ["", "1", "1.", "a.1", "1.2.3"] {
            refused(ArchiveQuery { after: Some(ArchiveCursor(cursor.into())), ..ArchiveQuery::default() });
        }
        assert_eq!("failed".parse::<ArchivedState>().unwrap(), ArchivedState::Failed);
        assert!("PENDING".parse::<ArchivedState>().is_err());
    }
}
