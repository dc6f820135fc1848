//! The waiting receivers of this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::QueueName;
use postrider_provider::Undone;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::store::Due;

/// The registry of the waiting receivers of this process.
#[derive(Debug, Default)]
pub struct Wakes {
    // One lock for all queues: it is held for a few pointer moves, once for each commit and twice for each wait.
    queues: Mutex<HashMap<QueueName, Waiting>>,
}

/// The waiting receivers of one queue.
#[derive(Debug, Default)]
struct Waiting {
    wakers: Vec<Arc<Notify>>,
    shared: Arc<SharedLook>,
}

impl Waiting {
    fn tell(&self) {
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
        self.wakers.iter().for_each(|waker| waker.notify_one());
    }
}

/// The last look at a queue, shared by all of its receivers: an idle queue is read once per interval, not once per
/// receiver.
#[derive(Debug, Default)]
struct SharedLook {
    /// Number of changes so far.
    changes: AtomicU64,
    // Held during a look, so that the other receivers wait for its result.
    last: tokio::sync::Mutex<Option<Seen>>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    due_in: Duration,
    changes: u64,
}

impl Wakes {
    /// Registers a listener for the changes of these queues.
    pub fn listen(self: &Arc<Self>, queues: &[QueueName]) -> Listener {
        // A `Notify` keeps one permit, so that a change between a look and the wait is not missed.
        let waker = Arc::new(Notify::new());
        let mut registered = self.lock();
        for queue in queues {
            registered.entry(queue.clone()).or_default().wakers.push(waker.clone());
        }
        drop(registered);
        Listener { wakes: self.clone(), queues: queues.to_vec(), waker, failed_claims: AtomicU32::new(0) }
    }

    /// Wakes the receivers of these queues: a message can be received, now or earlier than known.
    pub fn tell<'q>(&self, changed: impl IntoIterator<Item = &'q QueueName>) {
        let queues = self.lock();
        for queue in changed {
            if let Some(waiting) = queues.get(queue) {
                waiting.tell();
            }
        }
    }

    /// Wakes all receivers.
    pub fn tell_all(&self) {
        self.lock().values().for_each(Waiting::tell);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Waiting>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered receiver; dropping it ends the registration.
#[derive(Debug)]
pub struct Listener {
    wakes: Arc<Wakes>,
    queues: Vec<QueueName>,
    waker: Arc<Notify>,
    /// Successive looks that found a due message which the claim did not get.
    pub(crate) failed_claims: AtomicU32,
}

impl Listener {
    /// Waits for a change since the last call.
    pub async fn called(&self) {
        self.waker.notified().await;
    }

    /// When a message of a queue can be received, and how long ago that was read: by `look`, or by another listener
    /// less than `patience` ago with no change since.
    pub(crate) async fn due<F>(
        &self,
        queue: &QueueName,
        patience: Duration,
        look: impl FnOnce() -> F,
    ) -> Result<(Due, Duration), Undone>
    where
        F: Future<Output = Result<Due, Undone>>,
    {
        // The entry exists as long as this listener.
        let Some(shared) = self.wakes.lock().get(queue).map(|waiting| waiting.shared.clone()) else {
            return Ok((look().await?, Duration::ZERO));
        };
        let mut last = shared.last.lock().await;
        let changes = shared.changes.load(Ordering::SeqCst);
        if let Some(seen) = *last {
            let age = seen.at.elapsed();
            if seen.changes == changes && age < patience && age < seen.due_in {
                return Ok((Due::In(seen.due_in - age), age));
            }
        }
        let at = Instant::now();
        let due = look().await?;
        *last = match due {
            // A receiver that sees this claims the message.
            Due::Now => None,
            Due::In(due_in) => Some(Seen { at, due_in, changes }),
        };
        Ok((due, Duration::ZERO))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut queues = self.wakes.lock();
        for queue in &self.queues {
            if let Some(waiting) = queues.get_mut(queue) {
                waiting.wakers.retain(|waker| !Arc::ptr_eq(waker, &self.waker));
                if waiting.wakers.is_empty() {
                    queues.remove(queue);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_change_before_the_wait_is_kept_and_other_queues_do_not_wake() {
        let wakes = Arc::new(Wakes::default());
        let (a, b) = (QueueName::new("a").unwrap(), QueueName::new("b").unwrap());
        let listener = wakes.listen(std::slice::from_ref(&a));
        let is_woken = || listener.called().now_or_never().is_some();
        assert!(!is_woken());
        wakes.tell([&b]);
        assert!(!is_woken());
        wakes.tell([&a]);
        assert!(is_woken());
        wakes.tell_all();
        assert!(is_woken());
        drop(listener);
        assert!(wakes.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn listeners_share_a_look_until_a_change_its_age_or_its_due_time() {
        let wakes = Arc::new(Wakes::default());
        let queue = QueueName::new("orders").unwrap();
        let (a, b) = (wakes.listen(std::slice::from_ref(&queue)), wakes.listen(std::slice::from_ref(&queue)));
        let looks = AtomicU64::new(0);
        let patience = Duration::from_secs(1);
        let look = |listener: &Listener, found: Due| {
            let (looks, queue) = (&looks, queue.clone());
            let listener = Listener {
                wakes: listener.wakes.clone(),
                queues: Vec::new(),
                waker: Arc::default(),
                failed_claims: AtomicU32::new(0),
            };
            async move {
                let look = || async move {
                    looks.fetch_add(1, Ordering::SeqCst);
                    Ok(found)
                };
                listener.due(&queue, patience, look).await.map_err(|_| "a look failed").unwrap()
            }
        };
        let later = Due::In(Duration::from_secs(60));
        assert_eq!(look(&a, later).await, (later, Duration::ZERO));
        tokio::time::advance(Duration::from_millis(400)).await;
        let known = (Due::In(Duration::from_millis(59_600)), Duration::from_millis(400));
        assert_eq!(look(&b, Due::Now).await, known, "the other listener has looked");
        wakes.tell([&queue]);
        assert_eq!(look(&b, later).await, (later, Duration::ZERO), "the queue has changed");
        tokio::time::advance(patience).await;
        let soon = Due::In(Duration::from_millis(100));
        assert_eq!(look(&a, soon).await, (soon, Duration::ZERO), "the look is too old");
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(look(&a, Due::Now).await, (Due::Now, Duration::ZERO), "the due time has come");
        assert_eq!(look(&b, Due::Now).await, (Due::Now, Duration::ZERO), "a due message is not cached");
        assert_eq!(looks.load(Ordering::SeqCst), 5);
    }
}
