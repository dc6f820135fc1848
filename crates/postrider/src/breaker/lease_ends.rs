//! When leases end, as far as this process knows.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{LeaseToken, ReceiptHandle};
use tokio::time::Instant;

/// So many leases are noted before those that are over are looked for.
const FIRST_SWEEP: usize = 1024;

/// The ends of the leases that were granted through one breaker and have not been settled. Each is the latest moment at
/// which the lease can end: counted from after the store has answered.
#[derive(Debug, Default)]
pub(super) struct LeaseEnds {
    // One lock a call, held for a few moves a message.
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    ends: HashMap<LeaseToken, Instant>,
    /// Leases that nobody settles here are forgotten when there are that many.
    sweep_at: usize,
}

impl Default for Noted {
    fn default() -> Self {
        Self { ends: HashMap::new(), sweep_at: FIRST_SWEEP }
    }
}

impl LeaseEnds {
    /// Notes leases that were granted, or extended, just now.
    pub(super) fn granted<'r>(&self, receipts: impl Iterator<Item = &'r ReceiptHandle>, lasting: Duration) {
        let now = Instant::now();
        // One that lasts longer than the clock goes is one whose end is not known.
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

    /// When the last of these leases ends; `None` when that is not known.
    pub(super) fn last<'r>(&self, receipts: impl Iterator<Item = &'r ReceiptHandle>) -> Option<Instant> {
        let noted = self.lock();
        let ends = receipts.map(|receipt| noted.ends.get(&receipt.token()).copied());
        ends.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        // A map whose insertion panicked is still a map.
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
    async fn the_last_end_counts_and_an_unknown_one_is_unknown() {
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
    async fn leases_that_nobody_settles_are_forgotten_after_their_end() {
        let ends = LeaseEnds::default();
        let held: Vec<_> = (0..10).map(|_| receipt()).collect();
        ends.granted(held.iter(), SECOND * 3600);
        for _ in 0..100 {
            let lost: Vec<_> = (0..100).map(|_| receipt()).collect();
            ends.granted(lost.iter(), SECOND);
            advance(SECOND).await;
        }
        assert!(ends.lock().ends.len() <= FIRST_SWEEP, "{} are kept", ends.lock().ends.len());
        assert!(ends.last(held.iter()).is_some(), "those that last are kept");
    }
}
