//! The wall clock that the processes of a host share.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::{Clock, Sleep, Timestamp};

/// Steps back that are smaller are hidden.
const SMALL_STEP: Duration = Duration::from_secs(1);

/// Upper bound of one sleep, because the wall clock can be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(5);

/// The wall clock, read on each call.
///
/// Every process that has a file open judges its leases, so they must agree on the time; clocks that each process
/// advances by itself would diverge when the wall clock is set. While the wall clock makes a small step back (it is
/// being adjusted), this clock stands still. It follows a large step back, as the other processes do: leases and delays
/// then last longer by that step.
#[derive(Debug, Default)]
pub struct WallClock {
    latest: AtomicI64,
}

impl WallClock {
    /// The wall clock of this host.
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
        // Waking too early does no harm: callers read the clock again.
        let left = time.since(self.now()).min(MAX_SLEEP);
        Box::pin(tokio::time::sleep(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_steps_back_are_hidden_and_large_ones_are_followed() {
        let clock = WallClock::new();
        let at = |millis: i64| Timestamp::from_micros(millis * 1000);
        assert_eq!(clock.steady(at(10_000)), at(10_000));
        assert_eq!(clock.steady(at(9_500)), at(10_000));
        assert_eq!(clock.steady(at(10_001)), at(10_001));
        assert_eq!(clock.steady(at(5_000)), at(5_000));
        assert_eq!(clock.steady(at(5_001)), at(5_001));
    }
}
