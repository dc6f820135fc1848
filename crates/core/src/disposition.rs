//! The outcome of a leased message.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::capabilities::Limits;
use crate::dead_letter::DeadLetterReason;
use crate::error::MessagingError;
use crate::message::check_duration;
use crate::receipt::ReceiptHandle;
use crate::retry::RetryStrategy;

/// The outcome of a message that was not handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nack {
    /// The attempt failed: it is counted, and the message is due again after `after`.
    Retry {
        /// The delay until the retry. Zero is allowed.
        after: Duration,
        /// The handler's error, kept as the last error of the message.
        error: Option<String>,
    },
    /// The work was never started: the message is due at once, and the delivery is not counted.
    Release,
    /// The message is dead-lettered.
    DeadLetter {
        /// Why, in one word.
        reason: DeadLetterReason,
        /// The handler's error.
        error: Option<String>,
    },
}

impl Nack {
    /// A retry after `after`.
    pub const fn retry_after(after: Duration) -> Self {
        Self::Retry { after, error: None }
    }

    /// A dead letter for that reason.
    pub fn dead_letter(reason: impl Into<DeadLetterReason>) -> Self {
        Self::DeadLetter { reason: reason.into(), error: None }
    }

    /// Adds an error text. A release has none, because nothing was tried.
    #[must_use]
    pub fn with_error(mut self, text: impl Into<String>) -> Self {
        match &mut self {
            Self::Retry { error, .. } | Self::DeadLetter { error, .. } => *error = Some(text.into()),
            Self::Release => {}
        }
        self
    }

    /// The `requeue` flag of other queues: `true` retries with the backoff of the default strategy for a message that
    /// has failed `attempts_count` times before, `false` dead-letters.
    ///
    /// A requeue without delay would be a hot loop.
    pub fn requeue(requeue: bool, attempts_count: u32) -> Self {
        if !requeue {
            return Self::dead_letter(DeadLetterReason::REJECTED);
        }
        let strategy = RetryStrategy::default().without_limits();
        match strategy.next_delay(attempts_count.saturating_add(1), Duration::ZERO, rand::random()) {
            Some(after) => Self::retry_after(after),
            None => Self::dead_letter(DeadLetterReason::REJECTED),
        }
    }
}

impl From<bool> for Nack {
    /// [`Nack::requeue`] for a message without known failures.
    fn from(requeue: bool) -> Self {
        Self::requeue(requeue, 0)
    }
}

/// How the holder of a lease ends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Disposition {
    /// Done.
    Ack,
    /// Not done.
    Nack(Nack),
}

impl Disposition {
    /// The operation's name in errors and histories.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Nack(Nack::Retry { .. }) => "retry",
            Self::Nack(Nack::Release) => "release",
            Self::Nack(Nack::DeadLetter { .. }) => "dead-letter",
        }
    }
}

/// One row of a settle: a lease and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The lease.
    pub receipt: ReceiptHandle,
    /// The outcome.
    pub disposition: Disposition,
    /// The worker that handled the message, for the history of attempts; `None` is the name of the connection. A server
    /// that settles for its clients sets their names.
    pub worker: Option<Arc<str>>,
}

impl Settlement {
    /// A settlement by the worker of the connection.
    pub fn new(receipt: impl Into<ReceiptHandle>, disposition: Disposition) -> Self {
        Self { receipt: receipt.into(), disposition, worker: None }
    }

    /// Settles as done.
    pub fn ack(receipt: impl Into<ReceiptHandle>) -> Self {
        Self::new(receipt, Disposition::Ack)
    }

    /// Settles as not done.
    pub fn nack(receipt: impl Into<ReceiptHandle>, nack: impl Into<Nack>) -> Self {
        Self::new(receipt, Disposition::Nack(nack.into()))
    }

    /// Sets the worker.
    #[must_use]
    pub fn by(mut self, worker: impl Into<Arc<str>>) -> Self {
        self.worker = Some(worker.into());
        self
    }
}

/// Upper bound of the reason of a dead letter, in bytes.
pub const MAX_REASON_BYTES: usize = 128;
/// Upper bound of a kept error text, in bytes.
pub const MAX_ERROR_BYTES: usize = 8 * 1024;
/// Upper bound of a kept worker name, in bytes.
const MAX_WORKER_BYTES: usize = 128;

impl Settlement {
    /// Checks the values, and cuts the error text and the worker's name to what every store can hold. A provider calls
    /// it before anything else.
    pub fn checked(mut self, limits: &Limits) -> Result<Self, MessagingError> {
        if let Some(worker) = &mut self.worker
            && (worker.len() > MAX_WORKER_BYTES || worker.contains('\0'))
        {
            let name = worker.replace('\0', "\u{fffd}");
            *worker = name[..name.floor_char_boundary(MAX_WORKER_BYTES)].into();
        }
        match &mut self.disposition {
            Disposition::Nack(Nack::Retry { after, error }) => {
                check_duration("retry delay", *after, limits.max_delay)?;
                cut_error(error);
            }
            Disposition::Nack(Nack::DeadLetter { reason, error }) => check_death(reason, error)?,
            Disposition::Ack | Disposition::Nack(Nack::Release) => {}
        }
        Ok(self)
    }
}

/// Checks a reason, and cuts an error text to what every store can hold.
pub(crate) fn check_death(reason: &DeadLetterReason, error: &mut Option<String>) -> Result<(), MessagingError> {
    let reason = reason.as_str();
    if reason.trim().is_empty() || reason.len() > MAX_REASON_BYTES || reason.chars().any(char::is_control) {
        return Err(MessagingError::invalid(
            "dead-letter reason",
            format!("it must be 1 to {MAX_REASON_BYTES} bytes of text in one line; put details into the error"),
        ));
    }
    cut_error(error);
    Ok(())
}

fn cut_error(error: &mut Option<String>) {
    let Some(text) = error else { return };
    // First, because it makes the text longer.
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
    if text.len() > MAX_ERROR_BYTES {
        text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use crate::queue_name::QueueName;
    use crate::receipt::{LeaseToken, NativeRef};

    fn checked(nack: Nack) -> Result<Settlement, MessagingError> {
        let queue = QueueName::new("orders").unwrap();
        let receipt = ReceiptHandle::new("memory", queue, MessageId::generate(), LeaseToken(1), NativeRef::Row(1));
        Settlement::nack(receipt, nack).checked(&Limits::default())
    }

    #[test]
    fn reasons_are_short_and_errors_are_cut() {
        for reason in ["", " ", "two\nlines", &"x".repeat(129)] {
            assert!(checked(Nack::dead_letter(reason)).is_err(), "{reason:?}");
        }
        assert!(checked(Nack::retry_after(Duration::MAX)).is_err());
        let long = format!("{}{}", "\0".repeat(1000), "ä".repeat(5000));
        let kept = checked(Nack::dead_letter("rejected").with_error(long)).unwrap();
        match kept.disposition {
            Disposition::Nack(Nack::DeadLetter { error: Some(error), .. }) => {
                assert!(error.len() <= 8 * 1024 && error.starts_with('\u{fffd}') && error.ends_with('ä'));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requeue_true_backs_off_and_requeue_false_dead_letters() {
        let mut longest = Duration::ZERO;
        for attempts in [0, 1, 5, 1025, u32::MAX] {
            match Nack::requeue(true, attempts) {
                Nack::Retry { after, .. } => {
                    assert!(after > Duration::ZERO);
                    longest = longest.max(after);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(longest > Duration::from_secs(1), "the delay grows: {longest:?}");
        assert_eq!(Nack::from(false), Nack::dead_letter(DeadLetterReason::REJECTED));
        assert!(matches!(Nack::from(true), Nack::Retry { .. }));
    }
}
