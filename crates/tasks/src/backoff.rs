//! Waiting a little longer after each failure.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
/// An outage lasts hardly longer for a worker than for the store: as the pauses of a subscriber.
const LONGEST: Duration = Duration::from_millis(500);

/// How long to wait after the next failure.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It went well.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// It did not: waits, with jitter, so that those who failed together do not come back together.
    pub(crate) async fn pause(&mut self) {
        let longest = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(longest.mul_f64(rand::random_range(0.5..1.0))).await;
    }
}
