//! Who waits for which queue in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::QueueName;
use postrider_provider::Undone;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::store::Due;

/// Everybody who waits in this process.
#[derive(Debug, Default)]
pub struct Wakes {
    // One lock for all: it is held for a few pointer moves, once a commit and twice a wait.
    queues: Mutex<HashMap<QueueName, Waiting>>,
}

/// Those who wait for one queue.
#[derive(Debug, Default)]
struct Waiting {
    called: Vec<Arc<Notify>>,
    shared: Arc<SharedLook>,
}

impl Waiting {
    fn tell(&self) {
        self.shared.news.fetch_add(1, Ordering::SeqCst);
        self.called.iter().for_each(|called| called.notify_one());
    }
}

/// What one of those who wait has seen, for all of them: a queue in which nothing happens is looked at once in a while
/// and not once for everybody.
#[derive(Debug, Default)]
struct SharedLook {
    /// How often something has changed.
    news: AtomicU64,
    // A lock that is held during a look: the others wait for what it brings.
    last: tokio::sync::Mutex<Option<Seen>>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    due_in: Duration,
    news: u64,
}

impl Wakes {
    /// Hears of every change in these queues from now on.
    pub fn listen(self: &Arc<Self>, queues: &[QueueName]) -> Listener {
        // Keeps one call for somebody who does not listen yet, so that nothing is missed between a look and the wait.
        let called = Arc::new(Notify::new());
        let mut registered = self.lock();
        for queue in queues {
            registered.entry(queue.clone()).or_default().called.push(called.clone());
        }
        drop(registered);
        Listener { wakes: self.clone(), queues: queues.to_vec(), called, in_vain: AtomicU32::new(0) }
    }

    /// Something in these queues can be received, now or earlier than was known.
    pub fn tell<'q>(&self, touched: impl IntoIterator<Item = &'q QueueName>) {
        let queues = self.lock();
        for queue in touched {
            if let Some(waiting) = queues.get(queue) {
                waiting.tell();
            }
        }
    }

    /// Anything may have changed.
    pub fn tell_all(&self) {
        self.lock().values().for_each(Waiting::tell);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Waiting>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those who wait; dropped, it is given up.
#[derive(Debug)]
pub struct Listener {
    wakes: Arc<Wakes>,
    queues: Vec<QueueName>,
    called: Arc<Notify>,
    /// Looks in a row that found something due which the claim did not get.
    pub(crate) in_vain: AtomicU32,
}

impl Listener {
    /// Waits for news since the last time.
    pub async fn called(&self) {
        self.called.notified().await;
    }

    /// When something in a queue can be received, and how long ago that was seen: by `look`, or by somebody else's since
    /// whom there was no news, if that is less than `patience` ago.
    pub(crate) async fn due<F>(
        &self,
        queue: &QueueName,
        patience: Duration,
        look: impl FnOnce() -> F,
    ) -> Result<(Due, Duration), Undone>
    where
        F: Future<Output = Result<Due, Undone>>,
    {
        // It is there as long as this listener is.
        let Some(shared) = self.wakes.lock().get(queue).map(|waiting| waiting.shared.clone()) else {
            return Ok((look().await?, Duration::ZERO));
        };
        let mut last = shared.last.lock().await;
        let news = shared.news.load(Ordering::SeqCst);
        if let Some(seen) = *last {
            let age = seen.at.elapsed();
            if seen.news == news && age < patience && age < seen.due_in {
                return Ok((Due::In(seen.due_in - age), age));
            }
        }
        let at = Instant::now();
        let due = look().await?;
        *last = match due {
            // Whoever sees that takes it away.
            Due::Now => None,
            Due::In(due_in) => Some(Seen { at, due_in, news }),
        };
        Ok((due, Duration::ZERO))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut queues = self.wakes.lock();
        for queue in &self.queues {
            if let Some(waiting) = queues.get_mut(queue) {
                waiting.called.retain(|called| !Arc::ptr_eq(called, &self.called));
                if waiting.called.is_empty() {
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
    fn a_call_before_the_wait_is_kept_and_other_queues_are_no_news() {
        let wakes = Arc::new(Wakes::default());
        let (a, b) = (QueueName::new("a").unwrap(), QueueName::new("b").unwrap());
        let listener = wakes.listen(std::slice::from_ref(&a));
        let is_called = || listener.called().now_or_never().is_some();
        assert!(!is_called());
        wakes.tell([&b]);
        assert!(!is_called());
        wakes.tell([&a]);
        assert!(is_called());
        wakes.tell_all();
        assert!(is_called());
        drop(listener);
        assert!(wakes.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_share_a_look_until_there_is_news_or_its_time_has_come() {
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
                called: Arc::default(),
                in_vain: AtomicU32::new(0),
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
        assert_eq!(look(&b, Due::Now).await, known, "the other has looked");
        wakes.tell([&queue]);
        assert_eq!(look(&b, later).await, (later, Duration::ZERO), "there was news");
        tokio::time::advance(patience).await;
        let soon = Due::In(Duration::from_millis(100));
        assert_eq!(look(&a, soon).await, (soon, Duration::ZERO), "it is old");
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(look(&a, Due::Now).await, (Due::Now, Duration::ZERO), "its time has come");
        assert_eq!(look(&b, Due::Now).await, (Due::Now, Duration::ZERO), "what is there now is seen by everybody");
        assert_eq!(looks.load(Ordering::SeqCst), 5);
    }
}
