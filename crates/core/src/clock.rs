//! The clock of a store.
//!
//! Due times and leases are judged by one clock, the store's. A store without a clock of its own uses one of these, and
//! a test can replace it.

mod moment;
mod wall;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tokio::sync::watch;

pub use moment::Moment;
pub use wall::WallClock;

/// A point in time, in microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// Later than every other time.
    pub const MAX: Self = Self(i64::MAX);

    /// Creates a time from microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The wall clock of this host.
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// This time plus `duration`; [`Timestamp::MAX`] instead of an overflow.
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// This time minus `duration`; the smallest time instead of an overflow.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }

    /// The time since `earlier`; zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// Whole microseconds, rounded up, so that a positive duration never becomes zero.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(i64::try_from(after.as_micros()).unwrap_or(i64::MAX)),
            Err(before) => Self(i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |m| -m)),
        }
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, or microseconds for a time outside the range of the calendar.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Timestamp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(micros) = text.strip_suffix("us").and_then(|m| m.parse().ok()) {
            return Ok(Self(micros));
        }
        text.parse::<jiff::Timestamp>()
            .map(|time| Self(time.as_microsecond()))
            .map_err(|_| format!("'{}' is not a time; write it like 2026-01-31T12:00:00Z", text.escape_debug()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The future of [`Clock::sleep_until`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A store's clock.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The current time. It never goes back.
    fn now(&self) -> Timestamp;

    /// Completes when the clock has reached `time`.
    fn sleep_until(&self, time: Timestamp) -> Sleep;
}

/// The host's clock: the wall time at its creation, advanced by the monotonic clock. A wall clock that is set back
/// would lengthen every lease, and one that is set forward would end them all; this one is not affected. It follows
/// tokio's paused time.
///
/// Processes that share a store must not use it: after the wall clock was set, a process that started earlier and one
/// that started later would disagree. They use [`WallClock`].
#[derive(Debug, Clone)]
pub struct SystemClock {
    started_at: Timestamp,
    started: tokio::time::Instant,
}

impl SystemClock {
    /// A clock that starts with the host's time.
    pub fn new() -> Self {
        Self { started_at: Timestamp::now(), started: tokio::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.started_at.saturating_add(self.started.elapsed())
    }

    fn sleep_until(&self, time: Timestamp) -> Sleep {
        let left = time.since(self.now());
        Box::pin(async move {
            // A timer of tokio reaches no further than about two years.
            tokio::time::sleep(left.min(Duration::from_secs(3600 * 24 * 365))).await;
        })
    }
}

/// A clock that advances only on request, for tests.
#[derive(Debug, Clone)]
pub struct ManualClock {
    // A watch channel: sleepers need every change, and only the newest value.
    now: watch::Sender<Timestamp>,
}

impl ManualClock {
    /// A clock that shows `start`.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { now: watch::Sender::new(start) }
    }

    /// Advances the clock and wakes the sleepers whose time has come.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = now.saturating_add(by));
    }
}

impl Default for ManualClock {
    /// Starts at a fixed time.
    fn default() -> Self {
        Self::starting_at(Timestamp::from_micros(1_700_000_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn sleep_until(&self, time: Timestamp) -> Sleep {
        let mut now = self.now.subscribe();
        Box::pin(async move {
            // The clock is gone, so the time never comes.
            if now.wait_for(|now| *now >= time).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_below_a_microsecond_is_not_lost() {
        let time = Timestamp::EPOCH.saturating_add(Duration::from_nanos(1));
        assert_eq!(time.as_micros(), 1);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::MAX.saturating_add(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::EPOCH.since(Timestamp::MAX), Duration::ZERO);
        assert!(Timestamp::EPOCH.saturating_sub(Duration::MAX) < Timestamp::EPOCH);
    }

    #[test]
    fn text_round_trips() {
        for time in [Timestamp::EPOCH, Timestamp::from_micros(1_700_000_000_123_456), Timestamp::MAX] {
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        assert_eq!(Timestamp::from_micros(1_500_000).to_string(), "1970-01-01T00:00:01.5Z");
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_sleepers_only_when_their_time_has_come() {
        let clock = ManualClock::default();
        let mut sleep = clock.sleep_until(clock.now().saturating_add(Duration::from_secs(2)));
        clock.advance(Duration::from_secs(1));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        clock.advance(Duration::from_secs(1));
        sleep.await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_follows_paused_time() {
        let clock = SystemClock::new();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.now().since(start), Duration::from_secs(60));
    }
}
