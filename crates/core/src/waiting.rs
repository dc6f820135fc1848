//! What a person does with messages that wait: they are looked for, delivered now, dead-lettered, or deleted.
//!
//! A leased message is refused and not taken from its worker, so no worker can hold a message that is gone.

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

/// Refuses a queue of dead letters: these are redriven, edited and purged.
pub fn check_queue(queue: &QueueName) -> Result<(), MessagingError> {
    if queue.holds_dead_letters() {
        let why = format!("'{queue}' holds dead letters; redrive or purge those of '{}'", queue.origin());
        return Err(MessagingError::invalid("queue name", why));
    }
    Ok(())
}

/// A reason and an error that every store can hold, or why the reason is none.
pub fn check_death(
    reason: DeadLetterReason,
    mut error: Option<String>,
) -> Result<(DeadLetterReason, Option<String>), MessagingError> {
    disposition::check_death(&reason, &mut error)?;
    Ok((reason, error))
}

/// Dead-letters a waiting message with the reason [`DeadLetterReason::DELETED`] and purges it: what is kept of purged dead
/// letters is kept of it. Cut off in between, it leaves the dead letter.
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

/// One page of a queue's messages, in send order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeekQuery {
    /// At most that many.
    pub limit: usize,
    /// Those after the page that ended with this cursor.
    pub after: Option<PeekCursor>,
}

impl Default for PeekQuery {
    fn default() -> Self {
        Self { limit: 100, after: None }
    }
}

impl PeekQuery {
    /// Refuses a page of nothing: its cursor would lead nowhere, again and again.
    pub fn check(&self) -> Result<(), MessagingError> {
        if self.limit == 0 {
            return Err(MessagingError::invalid("limit", "a page has at least one message"));
        }
        Ok(())
    }

    /// The number of the row that the page before ended with; 0 at the head of the queue.
    pub fn row(&self) -> Result<i64, MessagingError> {
        self.check()?;
        let Some(PeekCursor(cursor)) = &self.after else { return Ok(0) };
        let row = cursor.parse().ok().filter(|row| *row > 0);
        row.ok_or_else(|| {
            MessagingError::invalid("cursor", format!("'{cursor}' ends no page; pass `next` of the previous page"))
        })
    }
}

/// Where a page of messages ended. Opaque; made by the provider that reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeekCursor(pub String);

/// One page of messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeekPage {
    /// The messages, in send order.
    pub messages: Vec<PeekedMessage>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<PeekCursor>,
}

impl PeekPage {
    /// The page of rows that a store read by their numbers: one row more than `limit` where more follow.
    pub fn of_rows(mut rows: Vec<(i64, PeekedMessage)>, limit: usize) -> Self {
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| has_more).map(|(row, _)| PeekCursor(row.to_string()));
        Self { messages: rows.into_iter().map(|(_, message)| message).collect(), next }
    }
}

/// What a message waits for, as [`QueueStats`](crate::QueueStats) counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingState {
    /// To be received.
    Ready,
    /// For its due time: it was sent with a delay, or is retried.
    Delayed,
    /// For the worker that has leased it.
    InFlight,
}

impl WaitingState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ready, Self::Delayed, Self::InFlight];

    /// The state's name.
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
            let why = format!("'{}' is none of ready, delayed and in_flight", text.escape_debug());
            MessagingError::invalid("state", why)
        })
    }
}

/// Which messages of a queue are meant: those of which everything holds that is said. What is `None` says nothing.
///
/// A store lists pages of messages; the caller compares them with the filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitingFilter {
    /// In this state.
    pub state: Option<WaitingState>,
    /// With this ordering key.
    pub ordering_key: Option<String>,
    /// With a header of this name and this value.
    pub header: Option<(String, String)>,
    /// That the store accepted at this time or later.
    pub since: Option<Timestamp>,
    /// That the store accepted before this time.
    pub before: Option<Timestamp>,
}

impl WaitingFilter {
    /// Whether a message is one of them.
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

    /// The part of an action on many that is for one message: a leased one is left to its worker.
    pub fn chooses(&self, message: &PeekedMessage, now: Timestamp) -> bool {
        WaitingState::of(message, now) != WaitingState::InFlight && self.includes(message, now)
    }

    /// Refuses a filter of leased messages for an action: these stay with their workers.
    pub fn check_action(&self) -> Result<(), MessagingError> {
        if self.state == Some(WaitingState::InFlight) {
            let why = "a message in flight stays with its worker; choose ready or delayed";
            return Err(MessagingError::invalid("state", why));
        }
        Ok(())
    }
}
