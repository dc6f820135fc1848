//! How a receiver wants its messages.

use std::time::Duration;

use crate::capabilities::Limits;
use crate::error::MessagingError;
use crate::message::check_duration;

/// What [`receive_messages`](crate::MessagingService::receive_messages) is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveOptions {
    /// At most that many messages. One by default.
    pub max: usize,
    /// How long they are leased. Thirty seconds by default.
    pub visibility: Duration,
    /// How long to wait for the first one; zero, the default, looks once.
    pub wait: Duration,
    /// A message that has been delivered that often is dead-lettered instead of delivered once more. Three by default;
    /// a delivery that was dropped or whose lease ran out counts, one that was released does not. A retry strategy
    /// with more attempts needs a higher limit here.
    pub max_receive_count: u32,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self { max: 1, visibility: Duration::from_secs(30), wait: Duration::ZERO, max_receive_count: 3 }
    }
}

impl ReceiveOptions {
    /// Up to `max` messages, everything else by default.
    pub fn batch(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Leased for that long.
    #[must_use]
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = visibility;
        self
    }

    /// Waiting that long for the first message.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Delivered at most that often.
    #[must_use]
    pub fn max_receive_count(mut self, count: u32) -> Self {
        self.max_receive_count = count;
        self
    }

    /// Refuses what cannot be meant: a zero is never read as "no limit".
    pub fn check(&self, limits: &Limits) -> Result<(), MessagingError> {
        if self.max == 0 {
            return Err(MessagingError::invalid("max", "a receive asks for at least one message"));
        }
        if self.max_receive_count == 0 {
            return Err(MessagingError::invalid(
                "max_receive_count",
                "0 would dead-letter every message unseen; 1 delivers each once",
            ));
        }
        check_visibility(self.visibility, limits)
    }
}

/// Refuses a lease that would be over before it began, or that the store cannot hold.
pub fn check_visibility(visibility: Duration, limits: &Limits) -> Result<(), MessagingError> {
    if visibility.is_zero() {
        return Err(MessagingError::invalid("visibility", "a lease of no length protects nothing"));
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
