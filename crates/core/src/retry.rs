//! When a failed message is tried again.
//!
//! A strategy is a pure function: the number of failures, the time since the first delivery and one random number give
//! the next delay. It keeps no counter (the store has the only one) and draws no random number of its own, so that a
//! test can fix its answer and a simulation can replay it.
//!
//! **Cap first.** `initial × multiplier^n` leaves every number's range long before a message has failed a thousand
//! times. It is worked out as a float, where too large is merely infinite, and what no duration can hold is the cap:
//! nothing can overflow on the way there.
//!
//! **Equal jitter.** [`RetryStrategy::ExponentialWithJitter`] answers between half of the capped delay and all of it.
//! Full jitter (between nothing and all of it) spreads callers a little wider, but now and then answers almost zero:
//! the retry at once that backing off is there to prevent. Jitter added after the cap would break the cap, and cut off
//! at the cap it would send everybody who has reached it back at the same moment.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::duration_text;

mod validate;

const DEFAULT_INITIAL_DELAY: Duration = Duration::from_secs(1);
const DEFAULT_MULTIPLIER: f64 = 2.0;
const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(60 * 60);

/// How long a message stays away after each failure, and when it is given up.
///
/// Read from a configuration it is a table that names the strategy:
///
/// ```
/// use std::time::Duration;
/// use postrider_core::RetryStrategy;
///
/// # fn main() -> Result<(), serde_json::Error> {
/// let text = r#"{"strategy": "linear", "initial_delay": "500ms", "increment": "2s", "limits": {"max_attempts": 4}}"#;
/// let strategy: RetryStrategy = serde_json::from_str(text)?;
/// assert_eq!(strategy.next_delay(3, Duration::ZERO, 0.0), Some(Duration::from_millis(4500)));
/// assert_eq!(strategy.next_delay(4, Duration::ZERO, 0.0), None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "strategy", rename_all = "snake_case", deny_unknown_fields)]
pub enum RetryStrategy {
    /// One attempt, no more.
    #[serde(deserialize_with = "nothing_else")]
    NoRetry,
    /// The same delay every time.
    Constant {
        /// The delay.
        #[serde(with = "duration_text")]
        delay: Duration,
        /// When to give up.
        #[serde(default)]
        limits: RetryLimits,
    },
    /// A delay that grows by the same amount with each failure.
    Linear {
        /// The delay after the first failure.
        #[serde(with = "duration_text", default = "default_initial_delay")]
        initial_delay: Duration,
        /// What each further failure adds.
        #[serde(with = "duration_text")]
        increment: Duration,
        /// No delay is longer.
        #[serde(with = "duration_text", default = "default_max_delay")]
        max_delay: Duration,
        /// When to give up.
        #[serde(default)]
        limits: RetryLimits,
    },
    /// A delay that grows by the same factor with each failure.
    Exponential {
        /// The delay after the first failure.
        #[serde(with = "duration_text", default = "default_initial_delay")]
        initial_delay: Duration,
        /// What each further failure multiplies it by; at least 1.
        #[serde(default = "default_multiplier")]
        multiplier: f64,
        /// No delay is longer.
        #[serde(with = "duration_text", default = "default_max_delay")]
        max_delay: Duration,
        /// When to give up.
        #[serde(default)]
        limits: RetryLimits,
    },
    /// The exponential delay, or down to half of it: messages that failed together do not come back together.
    ExponentialWithJitter {
        /// The longest delay after the first failure.
        #[serde(with = "duration_text", default = "default_initial_delay")]
        initial_delay: Duration,
        /// What each further failure multiplies it by; at least 1.
        #[serde(default = "default_multiplier")]
        multiplier: f64,
        /// No delay is longer, its jitter included.
        #[serde(with = "duration_text", default = "default_max_delay")]
        max_delay: Duration,
        /// When to give up.
        #[serde(default)]
        limits: RetryLimits,
    },
    /// The same delay every time, and up to `jitter` on top. Never below `delay`, which may be what a rate limit asks
    /// for.
    ConstantWithJitter {
        /// The shortest delay.
        #[serde(with = "duration_text")]
        delay: Duration,
        /// The most that chance adds.
        #[serde(with = "duration_text")]
        jitter: Duration,
        /// When to give up.
        #[serde(default)]
        limits: RetryLimits,
    },
}

impl Serialize for RetryStrategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// What is read is validated: a strategy from a file is as good as one from code.
impl<'de> Deserialize<'de> for RetryStrategy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let strategy = Self::deserialize(deserializer)?;
        strategy.validate().map_err(de::Error::custom)?;
        Ok(strategy)
    }
}

/// When a strategy gives up. What is `None` has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryLimits {
    /// Attempts in all, the first included: 1 is never retried. A zero cannot be written, so none can be read as "no
    /// limit".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<NonZeroU32>,
    /// No attempt is begun later than this after the first delivery.
    #[serde(with = "duration_text::optional", skip_serializing_if = "Option::is_none")]
    pub max_total_delay: Option<Duration>,
}

impl Default for RetryStrategy {
    /// One second, doubled each time up to an hour, with jitter; [`DEFAULT_MAX_ATTEMPTS`](Self::DEFAULT_MAX_ATTEMPTS).
    fn default() -> Self {
        Self::exponential_with_jitter(DEFAULT_INITIAL_DELAY, DEFAULT_MULTIPLIER, DEFAULT_MAX_DELAY)
            .with_max_attempts(Self::DEFAULT_MAX_ATTEMPTS.get())
    }
}

impl RetryStrategy {
    /// The attempts of the default strategy, and of a task that names no number.
    ///
    /// With the default delays they last nine hours, and at least six: what fails because a system behind the handler is
    /// down in the evening is still tried when that system is back in the morning.
    pub const DEFAULT_MAX_ATTEMPTS: NonZeroU32 = NonZeroU32::new(24).expect("24 is not zero");

    /// The same delay every time, for ever.
    pub fn constant(delay: Duration) -> Self {
        Self::Constant { delay, limits: RetryLimits::default() }
    }

    /// A delay that grows by `increment`, for ever.
    pub fn linear(initial_delay: Duration, increment: Duration, max_delay: Duration) -> Self {
        Self::Linear { initial_delay, increment, max_delay, limits: RetryLimits::default() }
    }

    /// A delay that grows by the factor `multiplier`, for ever.
    pub fn exponential(initial_delay: Duration, multiplier: f64, max_delay: Duration) -> Self {
        Self::Exponential { initial_delay, multiplier, max_delay, limits: RetryLimits::default() }
    }

    /// A delay that grows by the factor `multiplier`, with jitter, for ever.
    pub fn exponential_with_jitter(initial_delay: Duration, multiplier: f64, max_delay: Duration) -> Self {
        let limits = RetryLimits::default();
        Self::ExponentialWithJitter { initial_delay, multiplier, max_delay, limits }
    }

    /// The same delay every time and up to `jitter` on top, for ever.
    pub fn constant_with_jitter(delay: Duration, jitter: Duration) -> Self {
        Self::ConstantWithJitter { delay, jitter, limits: RetryLimits::default() }
    }

    /// Given up after that many attempts in all. The first is always made, so 0 counts as 1.
    /// [`RetryStrategy::NoRetry`] stays as it is.
    #[must_use]
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Self {
        if let Some(limits) = self.limits_mut() {
            limits.max_attempts = Some(NonZeroU32::new(max_attempts).unwrap_or(NonZeroU32::MIN));
        }
        self
    }

    /// Given up that long after the first delivery. [`RetryStrategy::NoRetry`] stays as it is.
    #[must_use]
    pub fn with_max_total_delay(mut self, max_total_delay: Duration) -> Self {
        if let Some(limits) = self.limits_mut() {
            limits.max_total_delay = Some(max_total_delay);
        }
        self
    }

    /// The same delays, and never given up. [`RetryStrategy::NoRetry`] stays as it is.
    #[must_use]
    pub fn without_limits(mut self) -> Self {
        if let Some(limits) = self.limits_mut() {
            *limits = RetryLimits::default();
        }
        self
    }

    /// How many attempts there are in all; `None` when their number has no limit.
    pub fn max_attempts(&self) -> Option<NonZeroU32> {
        match self.limits() {
            Some(limits) => limits.max_attempts,
            None => Some(NonZeroU32::MIN),
        }
    }

    /// When it gives up; `None` for [`RetryStrategy::NoRetry`], which never begins.
    pub fn limits(&self) -> Option<&RetryLimits> {
        match self {
            Self::NoRetry => None,
            Self::Constant { limits, .. }
            | Self::Linear { limits, .. }
            | Self::Exponential { limits, .. }
            | Self::ExponentialWithJitter { limits, .. }
            | Self::ConstantWithJitter { limits, .. } => Some(limits),
        }
    }

    fn limits_mut(&mut self) -> Option<&mut RetryLimits> {
        match self {
            Self::NoRetry => None,
            Self::Constant { limits, .. }
            | Self::Linear { limits, .. }
            | Self::Exponential { limits, .. }
            | Self::ExponentialWithJitter { limits, .. }
            | Self::ConstantWithJitter { limits, .. } => Some(limits),
        }
    }

    /// How long to wait before the next attempt; `None` when there shall be none.
    ///
    /// `attempts_count` is how many attempts have failed, the one that just failed included. `random` is a number in
    /// `[0, 1)` and the only source of chance; one outside is taken as the nearest inside, one that is no number as 0.
    /// Any input has an answer, that of a strategy which [`validate`](Self::validate) refuses included.
    pub fn next_delay(&self, attempts_count: u32, since_first_attempt: Duration, random: f64) -> Option<Duration> {
        let limits = self.limits()?;
        if limits.max_attempts.is_some_and(|most| attempts_count >= most.get()) {
            return None;
        }
        let delay = self.delay(attempts_count.saturating_sub(1), random);
        if let Some(most) = limits.max_total_delay {
            // A sum that overflows exceeds every limit.
            since_first_attempt.checked_add(delay).filter(|total| *total <= most)?;
        }
        Some(delay)
    }

    fn delay(&self, earlier_failures: u32, random: f64) -> Duration {
        match *self {
            Self::NoRetry => Duration::ZERO,
            Self::Constant { delay, .. } => delay,
            Self::Linear { initial_delay, increment, max_delay, .. } => {
                initial_delay.saturating_add(increment.saturating_mul(earlier_failures)).min(max_delay)
            }
            Self::Exponential { initial_delay, multiplier, max_delay, .. } => {
                exponential(initial_delay, multiplier, max_delay, earlier_failures)
            }
            Self::ExponentialWithJitter { initial_delay, multiplier, max_delay, .. } => {
                let longest = exponential(initial_delay, multiplier, max_delay, earlier_failures);
                // Taken off the longest, not added to the half, so that a nanosecond does not round down to nothing.
                longest.saturating_sub(part(longest / 2, random))
            }
            Self::ConstantWithJitter { delay, jitter, .. } => delay.saturating_add(part(jitter, random)),
        }
    }
}

/// `initial × multiplier^earlier_failures`, at most `max_delay`.
fn exponential(initial: Duration, multiplier: f64, max_delay: Duration, earlier_failures: u32) -> Duration {
    if initial.is_zero() {
        // Asked for, and it keeps zero times infinity, which is no number, out of what follows.
        return initial;
    }
    // A factor below 1 would shrink the delay into a hot loop. `validate` refuses it; here it counts as 1, and so does
    // one that is no number.
    let factor = multiplier.max(1.0).powf(f64::from(earlier_failures));
    // What no duration can hold is above every cap. Floats are coarser than nanoseconds, so the bounds are put right.
    Duration::try_from_secs_f64(initial.as_secs_f64() * factor)
        .map_or(max_delay, |delay| delay.max(initial).min(max_delay))
}

/// The part of `whole` that `random` says.
fn part(whole: Duration, random: f64) -> Duration {
    let random = if random.is_nan() { 0.0 } else { random.clamp(0.0, 1.0) };
    Duration::try_from_secs_f64(whole.as_secs_f64() * random).unwrap_or(whole).min(whole)
}

/// A variant without fields would otherwise be read with any fields beside it.
fn nothing_else<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    Nothing::deserialize(deserializer).map(|Nothing {}| ())
}

fn default_initial_delay() -> Duration {
    DEFAULT_INITIAL_DELAY
}

fn default_multiplier() -> f64 {
    DEFAULT_MULTIPLIER
}

fn default_max_delay() -> Duration {
    DEFAULT_MAX_DELAY
}

#[cfg(test)]
mod tests;
