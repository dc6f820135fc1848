//! Options of a receive.

use std::time::Duration;

use crate::capabilities::Limits;
use crate::error::MessagingError;
use crate::message::check_duration;

/// The options of [`receive_messages`](crate::MessagingService::receive_messages).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// Upper bound of the messages. One by default.
    pub max: usize,
    /// Lease duration. Thirty seconds by default.
    pub visibility: Duration,
    /// How long to wait for the first message. Zero, the default, does not wait.
    pub wait: Duration,
    /// Number of deliveries after which a message is dead-lettered instead. Three by default. A delivery that was
    /// dropped or whose lease expired counts; a released one does not. A retry strategy with more attempts needs a
    /// higher value.
    pub max_receive_count: u32,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self { max: 1, visibility: Duration::from_secs(30), wait: Duration::ZERO, max_receive_count: 3 }
    }
}

impl ReceiveOptions {
    /// Receives up to `max` messages, with default options otherwise.
    pub fn batch(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Sets the lease duration.
    #[must_use]
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = visibility;
        self
    }

    /// Sets the wait.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the number of deliveries.
    #[must_use]
    pub fn max_receive_count(mut self, count: u32) -> Self {
        self.max_receive_count = count;
        self
    }

    /// Checks the options. A zero never means "no limit".
    pub fn check(&self, limits: &Limits) -> Result<(), MessagingError> {
        if self.max == 0 {
            return Err(MessagingError::invalid("max", "it is 0; ask for at least one message"));
        }
        if self.max_receive_count == 0 {
            return Err(MessagingError::invalid(
                "max_receive_count",
                "0 would dead-letter every message undelivered; 1 delivers each once",
            ));
        }
        check_visibility(self.visibility, limits)
    }
}

/// Refuses a lease of zero length or above the limit of the store.
pub fn check_visibility(visibility: Duration, limits: &Limits) -> Result<(), MessagingError> {
    if visibility.is_zero() {
        return Err(MessagingError::invalid("visibility", "a lease of zero length protects nothing; use a longer one"));
    }
    check_duration("visibility", visibility, limits.max_visibility)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_refused() {
        let limits = Limits::default();
        assert!(ReceiveOptions::default().check(&limits).is_ok());
        assert!(ReceiveOptions::batch(0).check(&limits).is_err());
        assert!(ReceiveOptions::default().visibility(Duration::ZERO).check(&limits).is_err());
        assert!(ReceiveOptions::default().max_receive_count(0).check(&limits).is_err());
        assert!(ReceiveOptions::default().visibility(Duration::MAX).check(&limits).is_err());
    }
}
