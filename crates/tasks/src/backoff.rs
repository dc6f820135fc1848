//! Pauses that grow with each failure.

use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Upper bound of a pause, and so of the delay after an outage has ended; the same as for a subscriber.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The number of consecutive failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Resets it after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits after a failure, with jitter, so that callers that failed together do not retry together.
    pub(crate) async fn pause(&mut self) {
        let max = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(MAX_PAUSE);
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(max.mul_f64(rand::random_range(0.5..1.0))).await;
    }
}
