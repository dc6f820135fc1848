//! The bounds of a receive that waits.

use std::time::Duration;

use postrider_core::Deadline;
use tokio::sync::watch;
use tokio::time::Instant;

/// A wait that ends when its time is over, its caller has left, or the connection is closing, whichever comes first.
#[derive(Debug)]
pub struct Patience {
    until: Instant,
    closing: watch::Receiver<bool>,
    /// Its sender is dropped when the caller leaves.
    caller: watch::Receiver<()>,
}

/// Held by a caller while it waits.
#[derive(Debug)]
pub struct Caller {
    _present: watch::Sender<()>,
}

/// Upper bound of the time before a deadline that is reserved to end the wait.
const END_RESERVE: Duration = Duration::from_millis(250);

impl Patience {
    /// Waits for `wait`, and not past the deadline.
    pub fn new(wait: Duration, deadline: Deadline, closing: watch::Receiver<bool>) -> (Caller, Self) {
        let wait = match deadline.remaining() {
            Some(left) => wait.min(left - (left / 4).min(END_RESERVE)),
            None => wait,
        };
        let now = Instant::now();
        let (present, caller) = watch::channel(());
        let until = now.checked_add(wait).unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        (Caller { _present: present }, Self { until, closing, caller })
    }

    /// The remaining time.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Whether the wait is over.
    pub fn is_over(&self) -> bool {
        self.left().is_zero() || self.is_in_vain()
    }

    /// Whether the result of the wait has no recipient: the caller has left, or the connection is closing.
    pub fn is_in_vain(&self) -> bool {
        *self.closing.borrow() || self.caller.has_changed().is_err()
    }

    /// Whether the connection is closing.
    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits until the wait is over.
    pub async fn over(&mut self) {
        tokio::select! {
            () = tokio::time::sleep_until(self.until) => {}
            _ = self.closing.wait_for(|closed| *closed) => {}
            // Nothing is ever sent, so this completes when the sender is dropped.
            _ = self.caller.changed() => {}
        }
    }

    /// Waits for `event`; `None` if the wait is over first.
    pub async fn unless_over<T>(&mut self, event: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            happened = event => Some(happened),
            () = self.over() => None,
        }
    }

    /// Waits for `answer` even past the time; `None` if the caller leaves or the connection closes first.
    pub async fn unless_in_vain<T>(&mut self, answer: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            answer = answer => Some(answer),
            _ = self.closing.wait_for(|closed| *closed) => None,
            _ = self.caller.changed() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_its_time_its_caller_or_the_connection() {
        let (close, closing) = watch::channel(false);
        let second = Duration::from_secs(1);
        let wait = |wait, deadline| Patience::new(wait, deadline, closing.clone());
        let (_caller, mut by_time) = wait(second, Deadline::never());
        by_time.over().await;
        assert!(by_time.is_over() && !by_time.is_in_vain());
        assert_eq!(by_time.unless_in_vain(tokio::time::sleep(second)).await, Some(()));
        let (_caller, short) = wait(Duration::MAX, Deadline::after(second));
        assert_eq!(short.left(), Duration::from_millis(750));
        let (caller, mut left) = wait(Duration::MAX, Deadline::never());
        assert_eq!(left.unless_over(async { 1 }).await, Some(1));
        drop(caller);
        assert_eq!(left.unless_over(std::future::pending::<()>()).await, None);
        assert_eq!(left.unless_in_vain(std::future::pending::<()>()).await, None);
        assert!(left.is_in_vain());
        let (_caller, mut closed) = wait(Duration::MAX, Deadline::never());
        close.send_replace(true);
        closed.over().await;
        assert_eq!(closed.unless_in_vain(std::future::pending::<()>()).await, None);
        assert!(closed.is_in_vain());
    }
}
