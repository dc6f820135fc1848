//! How long a caller is ready to wait for an answer.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::error::MessagingError;

/// The moment at which a caller stops waiting. Every call takes one.
///
/// A deadline is the caller's patience and is measured by the caller's monotonic clock; leases and due times are
/// measured by the store's clock and have nothing to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// What [`Deadline::default`] allows.
    pub const DEFAULT: Duration = Duration::from_secs(30);

    /// That long from now.
    pub fn after(patience: Duration) -> Self {
        // `None` when the sum leaves the clock's range: that far away is never.
        Self(Instant::now().checked_add(patience))
    }

    /// Waits as long as it takes.
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

    /// What is left; `None` when it never ends.
    pub fn remaining(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Refuses to begin `operation` when the deadline has already passed: nothing was done.
    pub fn check(self, operation: &'static str) -> Result<(), MessagingError> {
        if self.has_passed() {
            return Err(MessagingError::DeadlineExceeded { operation });
        }
        Ok(())
    }

    /// Ends at the deadline; `None` when it never does.
    pub(crate) fn timer(self) -> Option<Pin<Box<Sleep>>> {
        self.0.map(|at| Box::pin(tokio::time::sleep_until(at)))
    }

    /// Waits for `future`, at most until the deadline; `None` when it passed first.
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
    fn patience_without_end_is_never() {
        assert_eq!(Deadline::after(Duration::MAX), Deadline::never());
        assert!(Deadline::never().at_most(Duration::from_secs(1)).remaining().is_some());
    }
}
