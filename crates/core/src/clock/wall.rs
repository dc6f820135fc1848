//! The host's clock, as every process on it sees it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::{Clock, Sleep, Timestamp};

/// A step back that is smaller is not followed.
const SMALL_STEP: Duration = Duration::from_secs(1);

/// A sleep is looked at again at least that often, because the wall clock can be set meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The wall clock, read anew each time.
///
/// Leases in a file are judged by every process that has it open, so they must agree on the time; a clock that each
/// carries on by itself from its own start would drift apart from the others when the wall clock is set. A small step
/// back (the clock is being disciplined) shows as standing still. A large one is followed, as the other processes do:
/// leases and delays then last longer by as much.
#[derive(Debug, Default)]
pub struct WallClock {
    latest: AtomicI64,
}

impl WallClock {
    /// The host's clock.
    pub fn new() -> Self {
        Self::default()
    }

    fn steady(&self, read: Timestamp) -> Timestamp {
        let latest = Timestamp::from_micros(self.latest.fetch_max(read.as_micros(), Ordering::Relaxed));
        if latest <= read {
            return read;
        }
        if latest.since(read) < SMALL_STEP {
            return latest;
        }
        self.latest.store(read.as_micros(), Ordering::Relaxed);
        read
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        self.steady(Timestamp::now())
    }

    fn sleep_until(&self, time: Timestamp) -> Sleep {
        // Too early is no harm: whoever wakes looks at the clock again.
        let left = time.since(self.now()).min(LOOK_AGAIN);
        Box::pin(tokio::time::sleep(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_steps_back_stand_still_and_large_ones_are_followed() {
        let clock = WallClock::new();
        let at = |millis: i64| Timestamp::from_micros(millis * 1000);
        assert_eq!(clock.steady(at(10_000)), at(10_000));
        assert_eq!(clock.steady(at(9_500)), at(10_000));
        assert_eq!(clock.steady(at(10_001)), at(10_001));
        assert_eq!(clock.steady(at(5_000)), at(5_000));
        assert_eq!(clock.steady(at(5_001)), at(5_001));
    }
}
