//! From the end of a command to the end of a lease. Nothing here acts.

use std::time::Duration;

use postrider::{DeadLetterReason, Disposition, Envelope, Nack, RetryStrategy, Timestamp, duration_text};

/// "Temporary failure", as in sysexits.h.
const EX_TEMPFAIL: i32 = 75;
/// "The data is wrong", as in sysexits.h.
const EX_DATAERR: i32 = 65;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// By itself.
    Exited(i32),
    /// By a signal that was not ours.
    Signaled(i32),
    /// We ended it: it ran longer than it may.
    TimedOut(Duration),
    /// We ended it: the worker stops.
    Stopped,
    /// It could not be started for this message, or its end was not seen.
    Trouble(String),
}

impl Ending {
    /// In words.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Exited(code) => format!("exit code {code}"),
            Self::Signaled(signal) => format!("ended by signal {signal}"),
            Self::TimedOut(limit) => format!("stopped after {}, its --timeout", duration_text::show(*limit)),
            Self::Stopped => "stopped with the worker".into(),
            Self::Trouble(why) => why.clone(),
        }
    }
}

/// Where a message stands when its command has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Attempts that failed before this one.
    pub(super) attempts_count: u32,
    /// How long ago the message was first delivered.
    pub(super) since_first_attempt: Duration,
    /// In `[0, 1)`.
    pub(super) random: f64,
}

impl Standing {
    /// `ran` is how long ago the message was leased. With the end of the lease, which the store gave, that makes now
    /// by the store's clock; this host's may be wrong.
    pub(super) fn of(envelope: &Envelope, visibility: Duration, ran: Duration, random: f64) -> Self {
        let now: Timestamp = envelope.lease_expires_at.saturating_sub(visibility).saturating_add(ran);
        Self { attempts_count: envelope.attempts_count, since_first_attempt: envelope.since_first_attempt(now), random }
    }
}

/// What becomes of the message.
pub(super) fn disposition(
    ending: &Ending,
    stderr_tail: &str,
    standing: Standing,
    strategy: &RetryStrategy,
) -> Disposition {
    let nack = match ending {
        Ending::Exited(0) => return Disposition::Ack,
        Ending::Exited(EX_DATAERR) => Nack::dead_letter(DeadLetterReason::REJECTED),
        _ => {
            let failures = standing.attempts_count.saturating_add(1);
            let delay = strategy.next_delay(failures, standing.since_first_attempt, standing.random);
            match (delay, ending) {
                (Some(after), _) => Nack::retry_after(after),
                // A deployment must not kill messages. The limit of deliveries ends what is stopped again and again.
                (None, Ending::Stopped) => Nack::retry_after(Duration::ZERO),
                (None, _) => Nack::dead_letter(DeadLetterReason::RETRIES_EXHAUSTED),
            }
        }
    };
    Disposition::Nack(nack.with_error(error_text(ending, stderr_tail)))
}

fn error_text(ending: &Ending, stderr_tail: &str) -> String {
    let asked = match ending {
        Ending::Exited(EX_TEMPFAIL) => " (asks for a retry)",
        Ending::Exited(EX_DATAERR) => " (refuses the message)",
        _ => "",
    };
    let ending = ending.describe();
    if stderr_tail.is_empty() { format!("{ending}{asked}") } else { format!("{ending}{asked}\n{stderr_tail}") }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(ending: Ending, attempts_count: u32, strategy: &RetryStrategy) -> Disposition {
        let standing = Standing { attempts_count, since_first_attempt: Duration::ZERO, random: 0.0 };
        disposition(&ending, "oops", standing, strategy)
    }

    fn twice() -> RetryStrategy {
        RetryStrategy::constant(SECOND).with_max_attempts(NonZeroU32::new(2).unwrap())
    }

    fn retry(after: Duration, error: &str) -> Disposition {
        Disposition::Nack(Nack::retry_after(after).with_error(error))
    }

    fn dead(reason: DeadLetterReason, error: &str) -> Disposition {
        Disposition::Nack(Nack::dead_letter(reason).with_error(error))
    }

    #[test]
    fn zero_is_done_and_65_is_dead_whatever_the_strategy_says() {
        for strategy in [RetryStrategy::NoRetry, twice()] {
            for attempts in [0, 1, 9] {
                assert_eq!(after(Ending::Exited(0), attempts, &strategy), Disposition::Ack);
                let refused = dead(DeadLetterReason::REJECTED, "exit code 65 (refuses the message)\noops");
                assert_eq!(after(Ending::Exited(65), attempts, &strategy), refused);
            }
        }
    }

    #[test]
    fn failures_are_retried_until_the_strategy_gives_up() {
        let limit = Duration::from_millis(1500);
        for (ending, error) in [
            (Ending::Exited(75), "exit code 75 (asks for a retry)\noops"),
            (Ending::Exited(1), "exit code 1\noops"),
            (Ending::Signaled(9), "ended by signal 9\noops"),
            (Ending::TimedOut(limit), "stopped after 1s500ms, its --timeout\noops"),
            (Ending::Trouble("too long".into()), "too long\noops"),
        ] {
            assert_eq!(after(ending.clone(), 0, &twice()), retry(SECOND, error));
            assert_eq!(after(ending.clone(), 1, &twice()), dead(DeadLetterReason::RETRIES_EXHAUSTED, error));
            let never = after(ending, 0, &RetryStrategy::NoRetry);
            assert_eq!(never, dead(DeadLetterReason::RETRIES_EXHAUSTED, error));
        }
    }

    #[test]
    fn a_stop_of_the_worker_is_an_attempt_but_never_the_last() {
        let error = "stopped with the worker\noops";
        assert_eq!(after(Ending::Stopped, 0, &twice()), retry(SECOND, error));
        assert_eq!(after(Ending::Stopped, 1, &twice()), retry(Duration::ZERO, error));
        assert_eq!(after(Ending::Stopped, 0, &RetryStrategy::NoRetry), retry(Duration::ZERO, error));
    }

    #[test]
    fn the_time_limit_of_the_strategy_counts_from_the_first_delivery() {
        let strategy = RetryStrategy::constant(SECOND).with_max_total_delay(3 * SECOND);
        let at = |since| {
            let standing = Standing { attempts_count: 0, since_first_attempt: since, random: 0.0 };
            disposition(&Ending::Exited(1), "", standing, &strategy)
        };
        assert_eq!(at(2 * SECOND), retry(SECOND, "exit code 1"));
        assert_eq!(at(3 * SECOND), dead(DeadLetterReason::RETRIES_EXHAUSTED, "exit code 1"));
    }
}
