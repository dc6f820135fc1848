//! The readiness check, which needs no token.
//!
//! Any client may call it at any rate: one call at a time checks the store, and the others share its result.

use std::time::Duration;

use postrider::{Deadline, MessagingError, MessagingService};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time for which a result is reused.
const CACHE_LIFE: Duration = Duration::from_secs(1);

/// Time-out of the store's health check.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The last result. Locked during a check, so that concurrent calls wait for its result.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<CheckResult>>);

#[derive(Debug, Clone, Copy)]
struct CheckResult {
    is_up: bool,
    at: Instant,
}

impl Readiness {
    /// Whether the store answers. The caller must run it to completion, as other calls wait for the result.
    pub(crate) async fn is_up(&self, store: &impl MessagingService) -> bool {
        self.check(|| store.health_check(Deadline::after(TIMEOUT))).await
    }

    async fn check<F: Future<Output = Result<(), MessagingError>>>(&self, ask: impl FnOnce() -> F) -> bool {
        let mut last = self.0.lock().await;
        if let Some(result) = last.filter(|result| result.at.elapsed() < CACHE_LIFE) {
            return result.is_up;
        }
        let was_up = last.is_none_or(|result| result.is_up);
        let answer = ask().await;
        match &answer {
            // Logged on changes only.
            Err(error) if was_up => tracing::warn!(%error, "the store does not answer"),
            Ok(()) if !was_up => tracing::warn!("the store answers again"),
            _ => {}
        }
        let is_up = answer.is_ok();
        *last = Some(CheckResult { is_up, at: Instant::now() });
        is_up
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_calls_check_the_store_once_a_second() {
        let (readiness, asked) = (&Readiness::default(), &AtomicUsize::new(0));
        let ask = |answer: fn() -> Result<(), MessagingError>| {
            readiness.check(move || async move {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
                answer()
            })
        };
        let gone = || Err(MessagingError::busy("gone"));
        let together = futures_util::future::join_all((0..100).map(|_| ask(gone))).await;
        assert!(together.iter().all(|is_up| !is_up));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(!ask(|| Ok(())).await, "the result is reused for a while");
        tokio::time::advance(CACHE_LIFE).await;
        assert!(ask(|| Ok(())).await);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    /// Counts the log lines of this module.
    struct Logged(Arc<AtomicUsize>);

    impl Subscriber for Logged {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "postrider_server::readiness"
        }

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_outage_is_logged_at_its_start_and_its_end() {
        let (readiness, lines) = (Readiness::default(), Arc::new(AtomicUsize::new(0)));
        let _logged = tracing::subscriber::set_default(Logged(lines.clone()));
        for (is_up, logged) in [(true, 0), (false, 1), (false, 1), (false, 1), (true, 2), (true, 2), (false, 3)] {
            let answer = if is_up { Ok(()) } else { Err(MessagingError::busy("gone")) };
            assert_eq!(readiness.check(|| async { answer }).await, is_up);
            assert_eq!(lines.load(Ordering::Relaxed), logged);
            tokio::time::advance(CACHE_LIFE).await;
        }
    }
}
