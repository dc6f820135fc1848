//! Retry strategies.
//!
//! A strategy is a pure function: it computes the next delay from the number of failures, the time since the first
//! delivery and one random number. It keeps no counter (the store has the only one) and draws no random number, so that
//! tests can fix its result and simulations can replay it.
//!
//! **Overflow.** `initial × multiplier^n` exceeds every integer long before a message has failed a thousand times. It
//! is computed as a float, where it becomes infinite at worst, and a value that no duration can hold is replaced by the
//! cap.
//!
//! **Equal jitter.** [`RetryStrategy::ExponentialWithJitter`] returns between half and all of the capped delay. Full
//! jitter (between zero and all of it) spreads callers slightly wider, but sometimes returns almost zero, which is the
//! immediate retry that backoff prevents. Jitter added after the cap would exceed the cap; cut off at the cap, it would
//! synchronize the callers that have reached it.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::duration_text;

mod validate;

const DEFAULT_INITIAL_DELAY: Duration = Duration::from_secs(1);
const DEFAULT_MULTIPLIER: f64 = 2.0;
const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(60 * 60);

/// The delay after each failure, and the limits of retries.
///
/// In a configuration, a table that names the strategy:
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline, description = ""))]
#[serde(remote = "Self", tag = "strategy", rename_all = "snake_case", deny_unknown_fields)]
pub enum RetryStrategy {
    /// One attempt, without retries.
    #[serde(deserialize_with = "nothing_else")]
    NoRetry,
    /// The same delay each time.
    Constant {
        /// The delay.
        #[serde(with = "duration_text::Text")]
        delay: Duration,
        /// The limits.
        #[serde(default)]
        limits: RetryLimits,
    },
    /// A delay that grows by a constant amount with each failure.
    Linear {
        /// The delay after the first failure.
        #[serde(with = "duration_text::Text", default = "default_initial_delay")]
        initial_delay: Duration,
        /// The amount added for each further failure.
        #[serde(with = "duration_text::Text")]
        increment: Duration,
        /// Upper bound of the delay.
        #[serde(with = "duration_text::Text", default = "default_max_delay")]
        max_delay: Duration,
        /// The limits.
        #[serde(default)]
        limits: RetryLimits,
    },
    /// A delay that grows by a constant factor with each failure.
    Exponential {
        /// The delay after the first failure.
        #[serde(with = "duration_text::Text", default = "default_initial_delay")]
        initial_delay: Duration,
        /// The factor for each further failure; at least 1.
        #[serde(default = "default_multiplier")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
        multiplier: f64,
        /// Upper bound of the delay.
        #[serde(with = "duration_text::Text", default = "default_max_delay")]
        max_delay: Duration,
        /// The limits.
        #[serde(default)]
        limits: RetryLimits,
    },
    /// The exponential delay, reduced by up to half, so that messages that failed together are not retried together.
    ExponentialWithJitter {
        /// Upper bound of the delay after the first failure.
        #[serde(with = "duration_text::Text", default = "default_initial_delay")]
        initial_delay: Duration,
        /// The factor for each further failure; at least 1.
        #[serde(default = "default_multiplier")]
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
        multiplier: f64,
        /// Upper bound of the delay, jitter included.
        #[serde(with = "duration_text::Text", default = "default_max_delay")]
        max_delay: Duration,
        /// The limits.
        #[serde(default)]
        limits: RetryLimits,
    },
    /// A constant delay plus up to `jitter`. Never less than `delay`, which a rate limit may require.
    ConstantWithJitter {
        /// Lower bound of the delay.
        #[serde(with = "duration_text::Text")]
        delay: Duration,
        /// Upper bound of the random part.
        #[serde(with = "duration_text::Text")]
        jitter: Duration,
        /// The limits.
        #[serde(default)]
        limits: RetryLimits,
    },
}

impl Serialize for RetryStrategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// Deserialized strategies are validated.
impl<'de> Deserialize<'de> for RetryStrategy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let strategy = Self::deserialize(deserializer)?;
        strategy.validate().map_err(de::Error::custom)?;
        Ok(strategy)
    }
}

/// The limits of retries; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(default, deny_unknown_fields)]
pub struct RetryLimits {
    /// Upper bound of the attempts, including the first: 1 is no retry. Zero is not representable, so it cannot be read
    /// as "no limit".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = u32::MAX)))]
    pub max_attempts: Option<NonZeroU32>,
    /// The time after the first delivery after which no attempt begins.
    #[serde(with = "duration_text::OptionalText", skip_serializing_if = "Option::is_none")]
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
    /// The attempts of the default strategy, and of a task without a number of its own.
    ///
    /// With the default delays they last nine hours, and at least six: a message that fails because another system is
    /// down in the evening is still retried when that system is back in the morning.
    pub const DEFAULT_MAX_ATTEMPTS: NonZeroU32 = NonZeroU32::new(24).expect("24 is not zero");

    /// The same delay each time, without limits.
    pub fn constant(delay: Duration) -> Self {
        Self::Constant { delay, limits: RetryLimits::default() }
    }

    /// A delay that grows by `increment`, without limits.
    pub fn linear(initial_delay: Duration, increment: Duration, max_delay: Duration) -> Self {
        Self::Linear { initial_delay, increment, max_delay, limits: RetryLimits::default() }
    }

    /// A delay that grows by the factor `multiplier`, without limits.
    pub fn exponential(initial_delay: Duration, multiplier: f64, max_delay: Duration) -> Self {
        Self::Exponential { initial_delay, multiplier, max_delay, limits: RetryLimits::default() }
    }

    /// A delay that grows by the factor `multiplier`, with jitter and without limits.
    pub fn exponential_with_jitter(initial_delay: Duration, multiplier: f64, max_delay: Duration) -> Self {
        let limits = RetryLimits::default();
        Self::ExponentialWithJitter { initial_delay, multiplier, max_delay, limits }
    }

    /// A constant delay plus up to `jitter`, without limits.
    pub fn constant_with_jitter(delay: Duration, jitter: Duration) -> Self {
        Self::ConstantWithJitter { delay, jitter, limits: RetryLimits::default() }
    }

    /// Limits the number of attempts. The first attempt always happens, so 0 counts as 1. No effect on
    /// [`RetryStrategy::NoRetry`].
    #[must_use]
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Self {
        if let Some(limits) = self.limits_mut() {
            limits.max_attempts = Some(NonZeroU32::new(max_attempts).unwrap_or(NonZeroU32::MIN));
        }
        self
    }

    /// Limits the time since the first delivery. No effect on [`RetryStrategy::NoRetry`].
    #[must_use]
    pub fn with_max_total_delay(mut self, max_total_delay: Duration) -> Self {
        if let Some(limits) = self.limits_mut() {
            limits.max_total_delay = Some(max_total_delay);
        }
        self
    }

    /// Removes the limits. No effect on [`RetryStrategy::NoRetry`].
    #[must_use]
    pub fn without_limits(mut self) -> Self {
        if let Some(limits) = self.limits_mut() {
            *limits = RetryLimits::default();
        }
        self
    }

    /// Upper bound of the attempts; `None` without a limit.
    pub fn max_attempts(&self) -> Option<NonZeroU32> {
        match self.limits() {
            Some(limits) => limits.max_attempts,
            None => Some(NonZeroU32::MIN),
        }
    }

    /// The limits; `None` for [`RetryStrategy::NoRetry`], which needs none.
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

    /// The delay until the next attempt; `None` if there is none.
    ///
    /// `attempts_count` is the number of failed attempts, including the last one. `random` is a number in `[0, 1)` and
    /// the only source of randomness; a value outside is clamped, and NaN counts as 0. Any input has a result, even if
    /// [`validate`](Self::validate) refuses the strategy.
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
                // Subtracted from the longest delay, not added to half of it, so that a nanosecond is not rounded down
                // to zero.
                longest.saturating_sub(part(longest / 2, random))
            }
            Self::ConstantWithJitter { delay, jitter, .. } => delay.saturating_add(part(jitter, random)),
        }
    }
}

/// `initial × multiplier^earlier_failures`, at most `max_delay`.
fn exponential(initial: Duration, multiplier: f64, max_delay: Duration, earlier_failures: u32) -> Duration {
    if initial.is_zero() {
        // Also avoids zero times infinity, which is NaN.
        return initial;
    }
    // A factor below 1 would shrink the delay into a hot loop. `validate` refuses it; here it counts as 1, and so does
    // NaN.
    let factor = multiplier.max(1.0).powf(f64::from(earlier_failures));
    // A value that no duration can hold exceeds the cap. Floats are coarser than nanoseconds, so the result is clamped.
    Duration::try_from_secs_f64(initial.as_secs_f64() * factor)
        .map_or(max_delay, |delay| delay.max(initial).min(max_delay))
}

/// The fraction `random` of `whole`.
fn part(whole: Duration, random: f64) -> Duration {
    let random = if random.is_nan() { 0.0 } else { random.clamp(0.0, 1.0) };
    Duration::try_from_secs_f64(whole.as_secs_f64() * random).unwrap_or(whole).min(whole)
}

/// Without this, serde accepts any fields beside a variant without fields.
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
