//! Who waits for which queue in this process, and who must be told of what. For providers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::Timestamp;
use crate::queue_name::QueueName;
use tokio::sync::Notify;

/// Everybody who waits in this process.
#[derive(Debug, Default)]
pub struct Wakes {
    // One lock for all: it is held for a few pointer moves, once a commit and twice a wait.
    queues: Mutex<HashMap<QueueName, Vec<Arc<Ear>>>>,
}

/// One who waits.
#[derive(Debug)]
struct Ear {
    /// Keeps one call for somebody who does not listen yet, so that nothing is missed between a look and the wait.
    called: Notify,
    /// When it will look again by itself. What becomes due later is no news.
    looks_again_at: AtomicI64,
}

impl Wakes {
    /// Hears of every change in these queues from now on.
    pub fn listen(self: &Arc<Self>, queues: &[QueueName]) -> Listener {
        let ear = Arc::new(Ear { called: Notify::new(), looks_again_at: AtomicI64::new(i64::MAX) });
        let mut registered = self.lock();
        for queue in queues {
            registered.entry(queue.clone()).or_default().push(ear.clone());
        }
        drop(registered);
        Listener { wakes: self.clone(), queues: queues.to_vec(), ear }
    }

    /// Whether anybody waits.
    pub fn has_listeners(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Something in these queues can be received from these times on.
    pub fn tell(&self, touched: &[(QueueName, Timestamp)], now: Timestamp) {
        let queues = self.lock();
        if queues.is_empty() {
            return;
        }
        for (queue, due) in touched {
            for ear in queues.get(queue).into_iter().flatten() {
                if *due <= now || due.as_micros() < ear.looks_again_at.load(Ordering::SeqCst) {
                    ear.called.notify_one();
                }
            }
        }
    }

    /// Anything may have changed.
    pub fn tell_all(&self) {
        for ear in self.lock().values().flatten() {
            ear.called.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Vec<Arc<Ear>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those who wait; dropped, it is given up.
#[derive(Debug)]
pub struct Listener {
    wakes: Arc<Wakes>,
    queues: Vec<QueueName>,
    ear: Arc<Ear>,
}

impl Listener {
    /// From here on everything is news, until the look is over.
    pub fn begin_look(&self) {
        self.ear.looks_again_at.store(i64::MAX, Ordering::SeqCst);
    }

    /// The look is over; the next one comes at `next` at the latest.
    pub fn end_look(&self, next: Timestamp) {
        self.ear.looks_again_at.store(next.as_micros(), Ordering::SeqCst);
    }

    /// Waits for news since the last look began.
    pub async fn called(&self) {
        self.ear.called.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut queues = self.wakes.lock();
        for queue in &self.queues {
            if let Some(ears) = queues.get_mut(queue) {
                ears.retain(|ear| !Arc::ptr_eq(ear, &self.ear));
                if ears.is_empty() {
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
    use std::time::Duration;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    #[test]
    fn only_news_wakes_and_nothing_is_missed_between_look_and_wait() {
        let wakes = Arc::new(Wakes::default());
        let (a, b) = (queue("a"), queue("b"));
        let listener = wakes.listen(std::slice::from_ref(&a));
        let now = Timestamp::from_micros(1000);
        let later = now.saturating_add(Duration::from_secs(10));
        let is_called = || listener.called().now_or_never().is_some();
        assert!(!is_called());
        listener.begin_look();
        wakes.tell(&[(a.clone(), later)], now);
        listener.end_look(later);
        assert!(is_called(), "told during the look");
        wakes.tell(&[(a.clone(), later), (b, now)], now);
        assert!(!is_called(), "a time that it waits for anyway, and another queue");
        wakes.tell(&[(a.clone(), now)], now);
        assert!(is_called());
        wakes.tell(&[(a, Timestamp::from_micros(2000))], now);
        assert!(is_called(), "earlier than it would look");
        wakes.tell_all();
        assert!(is_called());
        drop(listener);
        assert!(!wakes.has_listeners());
    }
}
