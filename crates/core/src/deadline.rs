//! The time limit of a call.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::error::MessagingError;

/// The time at which a caller stops waiting. Every call takes one.
///
/// A deadline is measured by the caller's monotonic clock. It is independent of leases and due times, which are
/// measured by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The time limit of [`Deadline::default`].
    pub const DEFAULT: Duration = Duration::from_secs(30);

    /// A deadline `patience` from now.
    pub fn after(patience: Duration) -> Self {
        // `None` if the sum is out of range: such a deadline never passes.
        Self(Instant::now().checked_add(patience))
    }

    /// A deadline that never passes.
    pub const fn never() -> Self {
        Self(None)
    }

    /// The earlier of this deadline and `patience` from now.
    pub fn at_most(self, patience: Duration) -> Self {
        let other = Self::after(patience);
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (a, b) => Self(a.or(b)),
        }
    }

    /// The remaining time; `None` if the deadline never passes.
    pub fn remaining(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether the deadline has passed.
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Refuses to begin `operation` if the deadline has passed.
    pub fn check(self, operation: &'static str) -> Result<(), MessagingError> {
        if self.has_passed() {
            return Err(MessagingError::DeadlineExceeded { operation });
        }
        Ok(())
    }

    /// Completes at the deadline; `None` if it never passes.
    pub(crate) fn timer(self) -> Option<Pin<Box<Sleep>>> {
        self.0.map(|at| Box::pin(tokio::time::sleep_until(at)))
    }

    /// Waits for `future` until the deadline; `None` if the deadline passes first.
    pub async fn limit<F: Future>(self, future: F) -> Option<F::Output> {
        match self.0 {
            None => Some(future.await),
            Some(at) => tokio::time::timeout_at(at, future).await.ok(),
        }
    }
}

impl Default for Deadline {
    fn default() -> Self {
        Self::after(Self::DEFAULT)
    }
}

impl From<Duration> for Deadline {
    fn from(patience: Duration) -> Self {
        Self::after(patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_passed_deadline_refuses_to_begin() {
        let deadline = Deadline::after(Duration::from_secs(1));
        assert!(deadline.check("send").is_ok());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(matches!(deadline.check("send"), Err(MessagingError::DeadlineExceeded { operation: "send" })));
        assert!(deadline.limit(std::future::pending::<()>()).await.is_none());
    }

    #[test]
    fn a_deadline_out_of_range_never_passes() {
        assert_eq!(Deadline::after(Duration::MAX), Deadline::never());
        assert!(Deadline::never().at_most(Duration::from_secs(1)).remaining().is_some());
    }
}
