//! Validation of strategies.

use std::time::Duration;

use super::RetryStrategy;
use crate::error::MessagingError;
use crate::message::{MAX_DURATION, check_duration};

impl RetryStrategy {
    /// Checks the strategy; the error names the field.
    pub fn validate(&self) -> Result<(), MessagingError> {
        match *self {
            Self::NoRetry => {}
            Self::Constant { delay, .. } => check_duration("delay", delay, MAX_DURATION)?,
            Self::Linear { initial_delay, increment, max_delay, .. } => {
                check_duration("increment", increment, MAX_DURATION)?;
                check_bounds(initial_delay, max_delay)?;
            }
            Self::Exponential { initial_delay, multiplier, max_delay, .. }
            | Self::ExponentialWithJitter { initial_delay, multiplier, max_delay, .. } => {
                check_multiplier(multiplier)?;
                check_bounds(initial_delay, max_delay)?;
            }
            Self::ConstantWithJitter { delay, jitter, .. } => {
                check_duration("delay", delay, MAX_DURATION)?;
                check_duration("jitter", delay.saturating_add(jitter), MAX_DURATION)?;
            }
        }
        match self.limits().and_then(|limits| limits.max_total_delay) {
            Some(Duration::ZERO) => Err(MessagingError::invalid(
                "max_total_delay",
                "0 leaves no time for a retry; use no_retry, or leave it out for no limit",
            )),
            Some(total) => check_duration("max_total_delay", total, MAX_DURATION),
            None => Ok(()),
        }
    }
}

fn check_bounds(initial_delay: Duration, max_delay: Duration) -> Result<(), MessagingError> {
    check_duration("max_delay", max_delay, MAX_DURATION)?;
    if initial_delay > max_delay {
        return Err(MessagingError::invalid(
            "initial_delay",
            format!("{initial_delay:?} is longer than max_delay, {max_delay:?}; raise max_delay or lower it"),
        ));
    }
    Ok(())
}

fn check_multiplier(multiplier: f64) -> Result<(), MessagingError> {
    if multiplier.is_finite() && multiplier >= 1.0 {
        return Ok(());
    }
    Err(MessagingError::invalid(
        "multiplier",
        format!("{multiplier} is not a number of at least 1; 2 doubles the delay each time, 1 keeps it"),
    ))
}
