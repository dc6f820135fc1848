//! Decides the outcome of a task from the end of an attempt. Pure functions: the random number is an argument.

use std::time::Duration;

use postrider_core::task::{DeadReason, TaskOutcome};
use postrider_core::{Disposition, Nack, RetryStrategy};
use postrider_subscriber::{ErrorKind, HandlerError};

use crate::handlers::Answer;

/// An attempt that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt<'t> {
    pub(crate) attempt_count: u32,
    pub(crate) max_attempts: u32,
    /// `None` is the default strategy.
    pub(crate) strategy: Option<&'t RetryStrategy>,
    pub(crate) since_first_attempt: Duration,
    /// A number in `[0, 1)`, for jitter.
    pub(crate) random: f64,
}

/// The outcome of a task whose handler returned this. What it decided by hand, through its
/// [`Control`](postrider_subscriber::Control), counts more than what it returned.
pub(crate) fn answered(
    attempt: &Attempt<'_>,
    by_hand: Option<Disposition>,
    answer: Answer,
    max_result_bytes: usize,
) -> TaskOutcome {
    let answer = match by_hand {
        None => answer,
        Some(Disposition::Ack) => Ok(answer.unwrap_or_default()),
        Some(Disposition::Nack(Nack::Release)) => return TaskOutcome::Released,
        Some(Disposition::Nack(Nack::Retry { after, error })) => {
            Err(HandlerError::retry_after(after, error.unwrap_or_else(|| "the handler asked for a retry".to_owned())))
        }
        Some(Disposition::Nack(Nack::DeadLetter { reason, error })) => {
            Err(HandlerError::permanent(error.map_or_else(|| reason.to_string(), |error| format!("{reason}: {error}"))))
        }
    };
    match answer {
        Ok(Some(result)) if result.len() > max_result_bytes => {
            let error = format!(
                "the result has {} bytes, but at most {max_result_bytes} are allowed; store it elsewhere and return its location",
                result.len()
            );
            TaskOutcome::Dead { reason: DeadReason::Permanent, error }
        }
        Ok(result) => TaskOutcome::Succeeded { result },
        Err(error) => failed(attempt, &error),
    }
}

fn failed(attempt: &Attempt<'_>, error: &HandlerError) -> TaskOutcome {
    let text = storable(&error.to_string());
    let dead = |reason| TaskOutcome::Dead { reason, error: text.clone() };
    let wanted = match error.kind() {
        ErrorKind::Permanent | ErrorKind::Undecodable => return dead(DeadReason::Permanent),
        ErrorKind::RetryAfter(delay) => Some(*delay),
        _ => None,
    };
    match next_attempt(attempt, error.strategy()) {
        Ok(delay) => TaskOutcome::Retry { after: wanted.unwrap_or(delay), error: text },
        Err(reason) => dead(reason),
    }
}

/// The outcome of a task whose worker was lost.
pub(crate) fn lost(attempt: &Attempt<'_>, worker: &str) -> TaskOutcome {
    let error = storable(&format!(
        "worker '{worker}' was lost in attempt {} of {}: its lease ended without a heartbeat",
        attempt.attempt_count, attempt.max_attempts
    ));
    match next_attempt(attempt, None) {
        Ok(after) => TaskOutcome::Retry { after, error },
        Err(DeadReason::MaxAttempts) => TaskOutcome::Dead { reason: DeadReason::LeaseLost, error },
        Err(reason) => TaskOutcome::Dead { reason, error },
    }
}

/// The delay of the next attempt, or why there is none. A handler's own strategy replaces the task's.
fn next_attempt(attempt: &Attempt<'_>, own: Option<&RetryStrategy>) -> Result<Duration, DeadReason> {
    if attempt.attempt_count >= attempt.max_attempts {
        return Err(DeadReason::MaxAttempts);
    }
    let default;
    let strategy = match own.or(attempt.strategy) {
        Some(strategy) => strategy,
        None => {
            // The task limits the attempts; the strategy has only the delays.
            default = RetryStrategy::default().without_limits();
            &default
        }
    };
    strategy
        .next_delay(attempt.attempt_count, attempt.since_first_attempt, attempt.random)
        .ok_or(DeadReason::RetriesExhausted)
}

/// A text that every store accepts: PostgreSQL refuses NUL, and one text must not fail its whole batch.
pub(crate) fn storable(text: &str) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(attempt_count: u32) -> Attempt<'static> {
        Attempt { attempt_count, max_attempts: 3, strategy: None, since_first_attempt: Duration::ZERO, random: 0.0 }
    }

    fn reason(outcome: TaskOutcome) -> Option<DeadReason> {
        match outcome {
            TaskOutcome::Dead { reason, .. } => Some(reason),
            _ => None,
        }
    }

    fn answered(attempt: &Attempt<'_>, answer: Answer, max_result_bytes: usize) -> TaskOutcome {
        super::answered(attempt, None, answer, max_result_bytes)
    }

    #[test]
    fn a_decision_by_hand_counts_more_than_the_answer() {
        let outcome = |by_hand, answer| super::answered(&attempt(1), Some(by_hand), answer, 10);
        let failed = || Err(HandlerError::permanent("no"));
        assert_eq!(outcome(Disposition::Ack, failed()), TaskOutcome::Succeeded { result: None });
        let done = outcome(Disposition::Ack, Ok(Some("yes".into())));
        assert_eq!(done, TaskOutcome::Succeeded { result: Some("yes".into()) });
        assert_eq!(outcome(Disposition::Nack(Nack::Release), failed()), TaskOutcome::Released);
        let minute = Duration::from_secs(60);
        let later = Disposition::Nack(Nack::retry_after(minute).with_error("busy"));
        assert_eq!(outcome(later, Ok(None)), TaskOutcome::Retry { after: minute, error: "busy".into() });
        let dead = TaskOutcome::Dead { reason: DeadReason::Permanent, error: "bad".into() };
        assert_eq!(outcome(Disposition::Nack(Nack::dead_letter("bad")), Ok(None)), dead);
    }

    #[test]
    fn a_failure_is_retried_until_the_last_attempt() {
        let fail = |count| answered(&attempt(count), Err(HandlerError::retryable("no")), 10);
        assert_eq!(fail(1), TaskOutcome::Retry { after: Duration::from_secs(1), error: "no".into() });
        assert_eq!(fail(2), TaskOutcome::Retry { after: Duration::from_secs(2), error: "no".into() });
        assert_eq!(reason(fail(3)), Some(DeadReason::MaxAttempts));
        assert_eq!(reason(fail(4)), Some(DeadReason::MaxAttempts));
    }

    #[test]
    fn a_permanent_failure_is_not_retried() {
        for error in [HandlerError::permanent("no"), HandlerError::undecodable("no")] {
            assert_eq!(reason(answered(&attempt(1), Err(error), 10)), Some(DeadReason::Permanent));
        }
    }

    #[test]
    fn a_handler_may_choose_the_delay() {
        let minute = Duration::from_secs(60);
        let later = || Err(HandlerError::retry_after(minute, "busy"));
        assert_eq!(answered(&attempt(1), later(), 10), TaskOutcome::Retry { after: minute, error: "busy".into() });
        assert_eq!(reason(answered(&attempt(3), later(), 10)), Some(DeadReason::MaxAttempts));
        let own = HandlerError::retryable("x").with_strategy(RetryStrategy::constant(minute));
        assert_eq!(answered(&attempt(1), Err(own), 10), TaskOutcome::Retry { after: minute, error: "x".into() });
    }

    #[test]
    fn a_strategy_may_end_before_the_attempts_are_used_up() {
        let strategy = RetryStrategy::constant(Duration::from_secs(1)).with_max_total_delay(Duration::from_secs(5));
        let late = Attempt {
            strategy: Some(&strategy),
            max_attempts: 100,
            since_first_attempt: Duration::from_secs(5),
            ..attempt(2)
        };
        assert_eq!(reason(answered(&late, Err("no".into()), 10)), Some(DeadReason::RetriesExhausted));
    }

    #[test]
    fn a_result_is_stored_unless_it_is_too_large() {
        let answer = |text: &'static str| answered(&attempt(1), Ok(Some(text.into())), 3);
        assert_eq!(answer("yes"), TaskOutcome::Succeeded { result: Some("yes".into()) });
        assert_eq!(reason(answer("okay")), Some(DeadReason::Permanent));
    }

    #[test]
    fn a_lost_worker_uses_up_the_attempt() {
        assert!(matches!(lost(&attempt(1), "host:1"), TaskOutcome::Retry { .. }));
        assert_eq!(reason(lost(&attempt(3), "host:1")), Some(DeadReason::LeaseLost));
    }

    #[test]
    fn a_stored_error_has_no_nul() {
        let TaskOutcome::Retry { error, .. } = answered(&attempt(1), Err("a\0b".into()), 10) else { panic!() };
        assert_eq!(error, "a\u{fffd}b");
    }
}
