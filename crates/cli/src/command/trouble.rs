//! Something that goes wrong again and again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What lasts is told again after that long.
const REMIND: Duration = Duration::from_secs(10);

/// Something that goes wrong again and again, and need not be told every time.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Mutex<Option<Instant>>);

impl Trouble {
    pub(crate) fn is_news(&self) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = told.is_none_or(|at| at.elapsed() >= REMIND);
        if is_news {
            *told = Some(Instant::now());
        }
        is_news
    }

    /// It works again. Answers whether it had not.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn trouble_that_lasts_is_told_now_and_then() {
        let trouble = Trouble::default();
        assert!(!trouble.is_over());
        assert!(trouble.is_news() && !trouble.is_news());
        tokio::time::advance(REMIND).await;
        assert!(trouble.is_news() && !trouble.is_news());
        assert!(trouble.is_over() && !trouble.is_over());
        assert!(trouble.is_news());
    }
}
