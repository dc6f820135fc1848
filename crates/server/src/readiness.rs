//! Whether the store answers, for whoever asks without saying who they are.
//!
//! Anybody may ask, as often as they like: the store is asked by one of them at a time, and the others have its answer.

use std::time::Duration;

use postrider::{Deadline, MessagingError, MessagingService};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long an answer of the store is believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// How long the store may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the store last answered. A lock, held while it is asked, so that others wait for the same answer.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<Look>>);

#[derive(Debug, Clone, Copy)]
struct Look {
    is_up: bool,
    at: Instant,
}

impl Readiness {
    /// Whether the store answers. To be carried out to its end: whoever leaves has asked for others as well.
    pub(crate) async fn is_up(&self, store: &impl MessagingService) -> bool {
        self.asked(|| store.health_check(Deadline::after(PATIENCE))).await
    }

    async fn asked<F: Future<Output = Result<(), MessagingError>>>(&self, ask: impl FnOnce() -> F) -> bool {
        let mut last = self.0.lock().await;
        if let Some(look) = last.filter(|look| look.at.elapsed() < BELIEVED) {
            return look.is_up;
        }
        let was_up = last.is_none_or(|look| look.is_up);
        let answer = ask().await;
        match &answer {
            // Once, however often it is asked.
            Err(error) if was_up => tracing::warn!(%error, "the store does not answer"),
            Ok(()) if !was_up => tracing::warn!("the store answers again"),
            _ => {}
        }
        let is_up = answer.is_ok();
        *last = Some(Look { is_up, at: Instant::now() });
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
    async fn many_who_ask_are_one_question_a_second() {
        let (readiness, asked) = (&Readiness::default(), &AtomicUsize::new(0));
        let ask = |answer: fn() -> Result<(), MessagingError>| {
            readiness.asked(move || async move {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
                answer()
            })
        };
        let gone = || Err(MessagingError::busy("gone"));
        let together = futures_util::future::join_all((0..100).map(|_| ask(gone))).await;
        assert!(together.iter().all(|is_up| !is_up));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(!ask(|| Ok(())).await, "it is believed for a while");
        tokio::time::advance(BELIEVED).await;
        assert!(ask(|| Ok(())).await);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    /// Counts what is logged here.
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
    async fn a_store_that_is_away_is_logged_when_it_goes_and_when_it_comes_back() {
        let (readiness, lines) = (Readiness::default(), Arc::new(AtomicUsize::new(0)));
        let _logged = tracing::subscriber::set_default(Logged(lines.clone()));
        for (is_up, logged) in [(true, 0), (false, 1), (false, 1), (false, 1), (true, 2), (true, 2), (false, 3)] {
            let answer = if is_up { Ok(()) } else { Err(MessagingError::busy("gone")) };
            assert_eq!(readiness.asked(|| async { answer }).await, is_up);
            assert_eq!(lines.load(Ordering::Relaxed), logged);
            tokio::time::advance(BELIEVED).await;
        }
    }
}
