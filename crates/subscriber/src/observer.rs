//! Telling somebody of each message by itself.

use std::fmt;
use std::time::Duration;

use postrider_core::{Disposition, MessageId, MessagingError, Nack, QueueName, Timestamp};
use tokio::time::Instant;

use crate::counters::Outcome;

/// A message that a subscriber is done with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ended {
    /// Its identity.
    pub id: MessageId,
    /// Where it came from.
    pub queue: QueueName,
    /// Which delivery it was, 1 the first time.
    pub receive_count: u32,
    /// Which attempt it was, 1 the first time: one more than the attempts that had failed before.
    pub attempt: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// What was decided about it, whether or not the store took it; `None` when its handler did not come to that.
    pub disposition: Option<Disposition>,
    pub(crate) received: Instant,
}

impl Ended {
    /// How long ago it was received.
    pub fn since_received(&self) -> Duration {
        self.received.elapsed()
    }

    /// Writes what went wrong into the log: a retry is a warning, a death an error.
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
    error.as_deref().unwrap_or("none was told")
}

/// Is told of each message by itself, and of trouble with the store. Unlike [`Metrics`](crate::Metrics) it gets what
/// tells one message from another.
///
/// Called by the loops, outside every lock: it must not block.
pub trait Observer: Send + Sync + 'static {
    /// The subscriber is done with a message: the store has said what became of it, or it is out of our hands, and its
    /// handler has ended or was dropped. Told once for each message that was received, but for those that a stop leaves
    /// unsettled.
    fn ended(&self, message: Ended) {
        let _ = message;
    }

    /// A fetch has brought so many messages.
    fn fetched(&self, messages: usize) {
        let _ = messages;
    }

    /// A fetch has failed. It will be tried again.
    fn fetch_failed(&self, error: &MessagingError) {
        let _ = error;
    }

    /// A settle has failed. It will be tried again while the leases are kept.
    fn settle_failed(&self, error: &MessagingError) {
        let _ = error;
    }
}

/// Messages that the observer will be told of, and those whose end is logged, once the lock is released.
#[derive(Default)]
pub(crate) struct ToTell {
    has_observer: bool,
    messages: Vec<Ended>,
}

impl ToTell {
    pub(crate) fn new(has_observer: bool) -> Self {
        Self { has_observer, messages: Vec::new() }
    }

    /// Makes what is to be told only if it is told.
    pub(crate) fn add(&mut self, outcome: Outcome, ended: impl FnOnce() -> Ended) {
        if self.has_observer || matches!(outcome, Outcome::Retried | Outcome::Dead) {
            self.messages.push(ended());
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.messages)
    }
}

impl fmt::Debug for ToTell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.messages.len().fmt(f)
    }
}
