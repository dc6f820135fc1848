//! Decides the outcome of a message from the result of its handler: a pure function.

use std::time::Duration;

use postrider_core::{DeadLetterReason, Disposition, Limits, Nack, RetryStrategy};

use crate::error::{ErrorKind, HandlerError};
use crate::options::AckPolicy;

/// The inputs of a decision.
#[derive(Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) policy: AckPolicy,
    /// The handler's own decision through [`Control`](crate::Control).
    pub(crate) by_hand: Option<Disposition>,
    pub(crate) result: &'a Result<(), HandlerError>,
    /// Failures before this one.
    pub(crate) attempts_count: u32,
    pub(crate) since_first_attempt: Duration,
    pub(crate) strategy: &'a RetryStrategy,
    /// A random number in `[0, 1)`.
    pub(crate) random: f64,
}

/// The outcome of the message.
pub(crate) fn decide(ending: Ending<'_>) -> Disposition {
    if let Some(by_hand) = ending.by_hand {
        return by_hand;
    }
    match (ending.policy, ending.result) {
        // Already acknowledged before the handler began.
        (AckPolicy::AckFirst, _) => Disposition::Ack,
        // No handler has run, so the policies for handlers do not apply.
        (_, Err(error)) if *error.kind() == ErrorKind::Undecodable => dead(error, DeadLetterReason::UNDECODABLE),
        (AckPolicy::Ack, _) | (AckPolicy::RejectOnError | AckPolicy::NackOnError, Ok(())) => Disposition::Ack,
        (AckPolicy::RejectOnError, Err(error)) => dead(error, DeadLetterReason::REJECTED),
        (AckPolicy::NackOnError | AckPolicy::Manual, Err(error)) => after_error(&ending, error),
        (AckPolicy::Manual, Ok(())) => {
            let error = HandlerError::retryable("the handler ended without settling the message");
            after_error(&ending, &error)
        }
    }
}

fn after_error(ending: &Ending<'_>, error: &HandlerError) -> Disposition {
    if *error.kind() == ErrorKind::Permanent {
        return dead(error, DeadLetterReason::REJECTED);
    }
    let strategy = error.strategy().unwrap_or(ending.strategy);
    let failures = ending.attempts_count.saturating_add(1);
    let by_strategy = strategy.next_delay(failures, ending.since_first_attempt, ending.random);
    let delay = match error.kind() {
        // The handler chooses the delay; the strategy decides whether there is another attempt.
        ErrorKind::RetryAfter(delay) => strategy
            .next_delay(failures, Duration::ZERO, ending.random)
            .filter(|_| is_in_time(strategy, ending.since_first_attempt, *delay))
            .map(|_| *delay),
        _ => by_strategy,
    };
    match delay {
        Some(after) => Disposition::Nack(Nack::retry_after(after).with_error(error.to_string())),
        None => dead(error, DeadLetterReason::RETRIES_EXHAUSTED),
    }
}

fn is_in_time(strategy: &RetryStrategy, since_first_attempt: Duration, delay: Duration) -> bool {
    match strategy.limits().and_then(|limits| limits.max_total_delay) {
        None => true,
        Some(most) => since_first_attempt.checked_add(delay).is_some_and(|total| total <= most),
    }
}

fn dead(error: &HandlerError, reason: DeadLetterReason) -> Disposition {
    let reason = error.reason().cloned().unwrap_or(reason);
    Disposition::Nack(Nack::DeadLetter { reason, error: Some(error.to_string()) })
}

/// Upper bound of a reason, in bytes.
const MAX_REASON: usize = 128;

/// Limits a disposition to what the store accepts, because an invalid reason or delay of a handler must not leave its
/// message unsettled.
pub(crate) fn fitting(disposition: Disposition, limits: &Limits) -> Disposition {
    match disposition {
        Disposition::Nack(Nack::Retry { after, error }) => {
            Disposition::Nack(Nack::Retry { after: after.min(limits.max_delay), error })
        }
        Disposition::Nack(Nack::DeadLetter { reason, error }) => {
            let text = reason.as_str();
            let is_fine = !text.trim().is_empty() && text.len() <= MAX_REASON && !text.chars().any(char::is_control);
            let reason = if is_fine { reason } else { shortened(text) };
            Disposition::Nack(Nack::DeadLetter { reason, error })
        }
        other @ (Disposition::Ack | Disposition::Nack(Nack::Release)) => other,
    }
}

fn shortened(text: &str) -> DeadLetterReason {
    let one_line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let one_line = one_line.trim();
    if one_line.is_empty() {
        return DeadLetterReason::REJECTED;
    }
    one_line[..one_line.floor_char_boundary(MAX_REASON)].into()
}

#[cfg(test)]
mod tests;
