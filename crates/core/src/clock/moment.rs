//! Time that passes for a lease.

use std::time::Duration;

use tokio::time::Instant;

/// A moment from which time is measured that passes for everybody: that in which this machine was suspended, too.
///
/// The monotonic clock of Linux stands still while a machine is suspended, and a store that is elsewhere lets leases run
/// out meanwhile. It follows tokio's paused time.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    at: Instant,
    /// How long this machine had been suspended by then.
    suspended: Duration,
}

impl Moment {
    /// This moment.
    pub fn now() -> Self {
        Self { at: Instant::now(), suspended: suspended() }
    }

    /// The same by the monotonic clock.
    pub fn instant(self) -> Instant {
        self.at
    }

    /// How long ago it is.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// How long after `earlier` this is.
    pub fn since(self, earlier: Self) -> Duration {
        let awake = self.at.saturating_duration_since(earlier.at);
        let asleep = self.suspended.saturating_sub(earlier.suspended);
        // The two clocks are not read at the same time.
        if asleep < RESOLUTION { awake } else { awake.saturating_add(asleep) }
    }
}

/// Shorter suspensions are not told from the time between two readings of clocks.
const RESOLUTION: Duration = Duration::from_millis(10);

#[cfg(target_os = "linux")]
fn suspended() -> Duration {
    use nix::time::{ClockId, clock_gettime};

    let read = |clock| clock_gettime(clock).map(Duration::from).unwrap_or_default();
    // In this order: a pause between the readings does not look like a suspension.
    let with = read(ClockId::CLOCK_BOOTTIME);
    with.saturating_sub(read(ClockId::CLOCK_MONOTONIC))
}

#[cfg(not(target_os = "linux"))]
fn suspended() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_passes_while_the_machine_is_suspended() {
        let before = Moment::now();
        tokio::time::advance(Duration::from_secs(3)).await;
        let awake = Moment { suspended: before.suspended, ..Moment::now() };
        assert_eq!(awake.since(before), Duration::from_secs(3));
        let woken = Moment { suspended: before.suspended + Duration::from_secs(60), ..awake };
        assert_eq!(woken.since(before), Duration::from_secs(63));
        let inexact = Moment { suspended: before.suspended + Duration::from_micros(5), ..awake };
        assert_eq!(inexact.since(before), Duration::from_secs(3));
        // Nothing suspends a machine that runs this.
        assert!(before.elapsed() < Duration::from_secs(60));
    }
}
