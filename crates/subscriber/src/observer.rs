//! Observers, which are called for each message.

use std::fmt;
use std::time::Duration;

use postrider_core::{Disposition, MessageId, MessagingError, Nack, QueueName, Timestamp};
use tokio::time::Instant;

use crate::counters::Outcome;

/// A message that a subscriber has finished with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ended {
    /// Its identity.
    pub id: MessageId,
    /// Its queue.
    pub queue: QueueName,
    /// The number of its delivery, 1 the first time.
    pub receive_count: u32,
    /// The number of its attempt, 1 the first time: one more than the failed attempts before.
    pub attempt: u32,
    /// Its outcome.
    pub outcome: Outcome,
    /// The decision about it, whether or not the store has carried it out; `None` if its handler did not end.
    pub disposition: Option<Disposition>,
    pub(crate) received: Instant,
}

impl Ended {
    /// Time since it was received.
    pub fn since_received(&self) -> Duration {
        self.received.elapsed()
    }

    /// Logs a failure: a retry as a warning, a dead letter as an error.
    pub(crate) fn log(&self) {
        let Self { id, queue, attempt, outcome, .. } = self;
        let Some(Disposition::Nack(nack)) = &self.disposition else { return };
        match (outcome, nack) {
            (Outcome::Retried, Nack::Retry { after, error }) => {
                let (error, next_attempt_at) = (shown(error), Timestamp::now().saturating_add(*after));
                tracing::warn!(%queue, %id, attempt, error, %next_attempt_at, "a message failed and is tried again");
            }
            (Outcome::Dead, Nack::DeadLetter { reason, error }) => {
                let error = shown(error);
                tracing::error!(%queue, %id, attempt, error, reason = reason.as_str(), "a message is dead");
            }
            _ => {}
        }
    }
}

fn shown(error: &Option<String>) -> &str {
    error.as_deref().unwrap_or("no error text")
}

/// Called for each message, and for errors of the store. Unlike [`Metrics`](crate::Metrics) it gets the identity of
/// messages.
///
/// The loops call it outside every mutex: it must not block.
pub trait Observer: Send + Sync + 'static {
    /// The subscriber has finished with a message: the store has answered its settlement, or its lease is lost, and its
    /// handler has ended or was dropped. Called once for each received message, except those that a stop leaves
    /// unsettled.
    fn ended(&self, message: Ended) {
        let _ = message;
    }

    /// A fetch has returned this number of messages.
    fn fetched(&self, messages: usize) {
        let _ = messages;
    }

    /// A fetch has failed. It will be retried.
    fn fetch_failed(&self, error: &MessagingError) {
        let _ = error;
    }

    /// A settle has failed. It will be retried while the leases are renewed.
    fn settle_failed(&self, error: &MessagingError) {
        let _ = error;
    }
}

/// Ended messages, to report and to log after the mutex is released.
#[derive(Default)]
pub(crate) struct EndedMessages {
    has_observer: bool,
    messages: Vec<Ended>,
}

impl EndedMessages {
    pub(crate) fn new(has_observer: bool) -> Self {
        Self { has_observer, messages: Vec::new() }
    }

    /// Adds a message, if it is to be reported or logged.
    pub(crate) fn add(&mut self, outcome: Outcome, ended: impl FnOnce() -> Ended) {
        if self.has_observer || matches!(outcome, Outcome::Retried | Outcome::Dead) {
            self.messages.push(ended());
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.messages)
    }
}

impl fmt::Debug for EndedMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.messages.len().fmt(f)
    }
}
