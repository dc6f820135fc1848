//! The ends of leases, as far as this process knows.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{LeaseToken, ReceiptHandle};
use tokio::time::Instant;

/// Number of recorded leases before the first sweep of ended ones.
const FIRST_SWEEP: usize = 1024;

/// The ends of the unsettled leases that were granted through one breaker. Each is an upper bound, counted from the
/// store's answer.
#[derive(Debug, Default)]
pub(super) struct LeaseEnds {
    // Locked once per call, for a few moves per message.
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    ends: HashMap<LeaseToken, Instant>,
    /// Number of leases at which ended ones are removed.
    sweep_at: usize,
}

impl Default for Noted {
    fn default() -> Self {
        Self { ends: HashMap::new(), sweep_at: FIRST_SWEEP }
    }
}

impl LeaseEnds {
    /// Records leases that were granted or extended just now.
    pub(super) fn granted<'r>(&self, receipts: impl Iterator<Item = &'r ReceiptHandle>, lasting: Duration) {
        let now = Instant::now();
        // An end beyond the clock's range counts as unknown.
        let Some(end) = now.checked_add(lasting) else { return };
        let mut noted = self.lock();
        noted.ends.extend(receipts.map(|receipt| (receipt.token(), end)));
        if noted.ends.len() >= noted.sweep_at {
            noted.ends.retain(|_, end| *end > now);
            noted.sweep_at = FIRST_SWEEP.max(noted.ends.len() * 2);
        }
    }

    /// Forgets leases that have ended.
    pub(super) fn ended<'r>(&self, receipts: impl Iterator<Item = &'r ReceiptHandle>) {
        let mut noted = self.lock();
        for receipt in receipts {
            noted.ends.remove(&receipt.token());
        }
    }

    /// The last end of these leases; `None` when one is not known.
    pub(super) fn last<'r>(&self, receipts: impl Iterator<Item = &'r ReceiptHandle>) -> Option<Instant> {
        let noted = self.lock();
        let ends = receipts.map(|receipt| noted.ends.get(&receipt.token()).copied());
        ends.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        // A panic during an insertion leaves a valid map.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::{MessageId, NativeRef, QueueName};
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn receipt() -> ReceiptHandle {
        let queue = QueueName::new("orders").unwrap();
        ReceiptHandle::new("fake", queue, MessageId::generate(), LeaseToken::generate(), NativeRef::Row(1))
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_end_counts_and_one_unknown_end_makes_it_unknown() {
        let (ends, short, long, other) = (LeaseEnds::default(), receipt(), receipt(), receipt());
        ends.granted([&short].into_iter(), SECOND);
        ends.granted([&long].into_iter(), SECOND * 3);
        assert_eq!(ends.last([&short, &long].into_iter()), Some(Instant::now() + SECOND * 3));
        assert_eq!(ends.last([&short, &other].into_iter()), None);
        ends.granted([&short].into_iter(), SECOND * 5);
        assert_eq!(ends.last([&short, &long].into_iter()), Some(Instant::now() + SECOND * 5));
        ends.ended([&short].into_iter());
        assert_eq!(ends.last([&short].into_iter()), None);
        ends.granted([&other].into_iter(), Duration::MAX);
        assert_eq!(ends.last([&other].into_iter()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn unsettled_leases_are_removed_after_their_end() {
        let ends = LeaseEnds::default();
        let held: Vec<_> = (0..10).map(|_| receipt()).collect();
        ends.granted(held.iter(), SECOND * 3600);
        for _ in 0..100 {
            let lost: Vec<_> = (0..100).map(|_| receipt()).collect();
            ends.granted(lost.iter(), SECOND);
            advance(SECOND).await;
        }
        assert!(ends.lock().ends.len() <= FIRST_SWEEP, "{} are kept", ends.lock().ends.len());
        assert!(ends.last(held.iter()).is_some(), "live leases stay recorded");
    }
}
