//! How long a receive goes on waiting.

use std::time::Duration;

use postrider_core::Deadline;
use tokio::sync::watch;
use tokio::time::Instant;

/// A wait that is over when its time has come, when its caller has gone, or when the connection is closed: whichever is
/// first.
#[derive(Debug)]
pub(crate) struct Patience {
    until: Instant,
    closing: watch::Receiver<bool>,
    /// Its sender is the caller's, and goes with the caller.
    caller: watch::Receiver<()>,
}

/// Held by a caller as long as it waits.
#[derive(Debug)]
pub(crate) struct Caller {
    _present: watch::Sender<()>,
}

/// So much of the time before a deadline is kept for the answer's way back.
const FOR_THE_WAY: Duration = Duration::from_millis(250);

impl Patience {
    /// Waits for `wait`, and not past the deadline.
    pub(crate) fn new(wait: Duration, deadline: Deadline, closing: watch::Receiver<bool>) -> (Caller, Self) {
        let wait = match deadline.remaining() {
            Some(left) => wait.min(left - (left / 2).min(FOR_THE_WAY)),
            None => wait,
        };
        let now = Instant::now();
        let (present, caller) = watch::channel(());
        let until = now.checked_add(wait).unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        (Caller { _present: present }, Self { until, closing, caller })
    }

    /// What is left of the time.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Waits for `answer`, unless nobody wants it any more. Time that is up does not end it: the server answers then.
    pub(crate) async fn unless_unwanted<T>(&mut self, answer: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            answer = answer => Some(answer),
            _ = self.closing.wait_for(|closed| *closed) => None,
            // Nothing is ever sent: this is the end of the sender.
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
        let (_caller, short) = wait(Duration::MAX, Deadline::after(second));
        assert_eq!(short.left(), Duration::from_millis(750));
        let (caller, mut left) = wait(Duration::MAX, Deadline::never());
        assert_eq!(left.unless_unwanted(async { 1 }).await, Some(1));
        drop(caller);
        assert_eq!(left.unless_unwanted(std::future::pending::<()>()).await, None);
        let (_caller, mut closed) = wait(Duration::MAX, Deadline::never());
        close.send_replace(true);
        assert_eq!(closed.unless_unwanted(std::future::pending::<()>()).await, None);
    }
}
