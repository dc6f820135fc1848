//! Actions on waiting messages: search, deliver now, dead-letter, delete.
//!
//! A leased message is refused, so that no worker handles a message that was removed.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::dead_letter::{DeadLetterReason, DeadLetterSelection};
use crate::deadline::Deadline;
use crate::disposition;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message_state::LiveState;
use crate::queue_name::QueueName;
use crate::service::{DeadLetters, PeekedMessage, QueueAdmin};

/// Refuses a dead-letter queue: dead letters are redriven, edited and purged instead.
pub fn check_queue(queue: &QueueName) -> Result<(), MessagingError> {
    if queue.holds_dead_letters() {
        let why = format!("'{queue}' holds dead letters; redrive or purge those of '{}'", queue.origin());
        return Err(MessagingError::invalid("queue name", why));
    }
    Ok(())
}

/// Checks a reason, and cuts an error text to what every store can hold.
pub fn check_death(
    reason: DeadLetterReason,
    mut error: Option<String>,
) -> Result<(DeadLetterReason, Option<String>), MessagingError> {
    disposition::check_death(&reason, &mut error)?;
    Ok((reason, error))
}

/// Dead-letters a waiting message with the reason [`DeadLetterReason::DELETED`], and then purges it, so that it is
/// archived like purged dead letters. If it is interrupted in between, the dead letter stays.
pub async fn delete<P: QueueAdmin + DeadLetters + ?Sized>(
    provider: &P,
    queue: &QueueName,
    id: MessageId,
    deadline: Deadline,
) -> Result<(), MessagingError> {
    provider.dead_letter_waiting(queue, id, DeadLetterReason::DELETED, None, deadline).await?;
    provider.purge_dead_letters(queue, &DeadLetterSelection::Ids(vec![id]), deadline).await?;
    Ok(())
}

/// A request for a page of messages, in send order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeekQuery {
    /// Upper bound of the messages in the page.
    pub limit: usize,
    /// The cursor of the previous page.
    pub after: Option<PeekCursor>,
}

impl Default for PeekQuery {
    fn default() -> Self {
        Self { limit: 100, after: None }
    }
}

impl PeekQuery {
    /// Refuses a limit of 0, whose next page would be the same page again.
    pub fn check(&self) -> Result<(), MessagingError> {
        if self.limit == 0 {
            return Err(MessagingError::invalid("limit", "it is 0; ask for at least one message"));
        }
        Ok(())
    }

    /// The row number at the end of the previous page; 0 for the first page.
    pub fn row(&self) -> Result<i64, MessagingError> {
        self.check()?;
        let Some(PeekCursor(cursor)) = &self.after else { return Ok(0) };
        let row = cursor.parse().ok().filter(|row| *row > 0);
        row.ok_or_else(|| MessagingError::invalid_cursor(cursor))
    }
}

/// The end of a page of messages. Opaque; only the provider that made it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeekCursor(pub String);

/// A page of messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeekPage {
    /// The messages, in send order.
    pub messages: Vec<PeekedMessage>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<PeekCursor>,
}

impl PeekPage {
    /// Makes a page of rows with their numbers. One row more than `limit` shows that there is a next page.
    pub fn of_rows(mut rows: Vec<(i64, PeekedMessage)>, limit: usize) -> Self {
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(|(row, _)| PeekCursor(row.to_string()));
        Self { messages: rows.into_iter().map(|(_, message)| message).collect(), next }
    }
}

/// What a message waits for, as [`QueueStats`](crate::QueueStats) counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum WaitingState {
    /// It is ready to be received.
    Ready,
    /// It is delayed: sent with a delay, or waiting for a retry.
    Delayed,
    /// It is in flight: leased.
    InFlight,
}

impl WaitingState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Ready, Self::Delayed, Self::InFlight];

    /// The name of the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::InFlight => "in_flight",
        }
    }

    /// The state of a message at a time.
    pub fn of(message: &PeekedMessage, now: Timestamp) -> Self {
        match message.state {
            LiveState::Processing => Self::InFlight,
            LiveState::Pending | LiveState::Retryable if message.next_attempt_at > now => Self::Delayed,
            LiveState::Pending | LiveState::Retryable => Self::Ready,
        }
    }
}

impl std::str::FromStr for WaitingState {
    type Err = MessagingError;

    fn from_str(text: &str) -> Result<Self, MessagingError> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let why = format!("'{}' is not a state; use ready, delayed or in_flight", text.escape_debug());
            MessagingError::invalid("state", why)
        })
    }
}

/// A filter of messages: those that meet every condition that is not `None`.
///
/// A store lists pages of messages; the caller applies the filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitingFilter {
    /// This state.
    pub state: Option<WaitingState>,
    /// This ordering key.
    pub ordering_key: Option<String>,
    /// A header with this name and value.
    pub header: Option<(String, String)>,
    /// Accepted at this time or later.
    pub since: Option<Timestamp>,
    /// Accepted before this time.
    pub before: Option<Timestamp>,
}

impl WaitingFilter {
    /// Whether a message meets all conditions.
    pub fn includes(&self, message: &PeekedMessage, now: Timestamp) -> bool {
        let has = |(name, value): &(String, String)| message.headers.get(name) == Some(value.as_str());
        self.state.is_none_or(|state| state == WaitingState::of(message, now))
            && self
                .ordering_key
                .as_deref()
                .is_none_or(|key| message.ordering_key.as_ref().is_some_and(|own| own.as_str() == key))
            && self.header.as_ref().is_none_or(has)
            && self.since.is_none_or(|since| message.enqueued_at >= since)
            && self.before.is_none_or(|before| message.enqueued_at < before)
    }

    /// The filter for an action on each message of a selection: leased ones are excluded.
    pub fn chooses(&self, message: &PeekedMessage, now: Timestamp) -> bool {
        WaitingState::of(message, now) != WaitingState::InFlight && self.includes(message, now)
    }

    /// Refuses a filter for leased messages: an action does not apply to them.
    pub fn check_action(&self) -> Result<(), MessagingError> {
        if self.state == Some(WaitingState::InFlight) {
            let why = "actions do not apply to messages in flight; choose ready or delayed";
            return Err(MessagingError::invalid("state", why));
        }
        Ok(())
    }
}
