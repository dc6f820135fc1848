//! Rate limit of a warning about a repeated failure.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Interval of the warning while the failure lasts.
const INTERVAL: Duration = Duration::from_secs(10);

/// A warning about a failure that may repeat: due at the first failure, then once per interval.
#[derive(Debug, Default)]
pub(crate) struct RepeatedWarning(Mutex<Option<Instant>>);

impl RepeatedWarning {
    /// Records a failure and returns whether to warn about it.
    pub(crate) fn is_due(&self) -> bool {
        let mut warned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned.is_none_or(|at| at.elapsed() >= INTERVAL);
        if is_due {
            *warned = Some(Instant::now());
        }
        is_due
    }

    /// Records a success and returns whether it ends a failure.
    pub(crate) fn clear(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lasting_failure_is_warned_about_once_per_interval() {
        let warning = RepeatedWarning::default();
        assert!(!warning.clear());
        assert!(warning.is_due() && !warning.is_due());
        tokio::time::advance(INTERVAL).await;
        assert!(warning.is_due() && !warning.is_due());
        assert!(warning.clear() && !warning.clear());
        assert!(warning.is_due());
    }
}
