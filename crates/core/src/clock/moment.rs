//! Elapsed time that includes suspensions of this machine.

use std::time::Duration;

use tokio::time::Instant;

/// A moment to measure elapsed time from. The measured time includes suspensions of this machine.
///
/// The monotonic clock of Linux stops while the machine is suspended, but the leases of a store elsewhere go on to
/// expire. A moment follows tokio's paused time.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    at: Instant,
    /// The total time of suspension up to this moment.
    suspended: Duration,
}

impl Moment {
    /// The current moment.
    pub fn now() -> Self {
        Self { at: Instant::now(), suspended: suspended() }
    }

    /// The moment by the monotonic clock.
    pub fn instant(self) -> Instant {
        self.at
    }

    /// The time since this moment.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The time between `earlier` and this moment.
    pub fn since(self, earlier: Self) -> Duration {
        let awake = self.at.saturating_duration_since(earlier.at);
        let asleep = self.suspended.saturating_sub(earlier.suspended);
        // The two clocks are not read at exactly the same time.
        if asleep < RESOLUTION { awake } else { awake.saturating_add(asleep) }
    }
}

/// Shorter suspensions cannot be told from the time between the readings of two clocks.
const RESOLUTION: Duration = Duration::from_millis(10);

#[cfg(target_os = "linux")]
fn suspended() -> Duration {
    use nix::time::{ClockId, clock_gettime};

    let read = |clock| clock_gettime(clock).map(Duration::from).unwrap_or_default();
    // In this order, a pause between the readings does not look like a suspension.
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
        // A machine that runs this test is not suspended.
        assert!(before.elapsed() < Duration::from_secs(60));
    }
}
