//! The waiting receivers of this process. For providers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::Timestamp;
use crate::queue_name::QueueName;
use tokio::sync::Notify;

/// The registry of the waiting receivers of this process.
#[derive(Debug, Default)]
pub struct Wakes {
    // One lock for all queues: it is held for a few pointer moves, once for each commit and twice for each wait.
    queues: Mutex<HashMap<QueueName, Vec<Arc<Waiter>>>>,
}

/// A waiting receiver.
#[derive(Debug)]
struct Waiter {
    /// A `Notify` keeps one permit, so that a change between a look and the wait is not missed.
    notify: Notify,
    /// When it will look again anyway. Messages that become due later need not wake it.
    next_look_at: AtomicI64,
}

impl Wakes {
    /// Registers a listener for the changes of these queues.
    pub fn listen(self: &Arc<Self>, queues: &[QueueName]) -> Listener {
        let waiter = Arc::new(Waiter { notify: Notify::new(), next_look_at: AtomicI64::new(i64::MAX) });
        let mut registered = self.lock();
        for queue in queues {
            registered.entry(queue.clone()).or_default().push(waiter.clone());
        }
        drop(registered);
        Listener { wakes: self.clone(), queues: queues.to_vec(), waiter }
    }

    /// Whether any receiver waits.
    pub fn has_listeners(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Messages in these queues can be received from these times on: wakes the receivers that would look later.
    pub fn tell(&self, changed: &[(QueueName, Timestamp)], now: Timestamp) {
        let queues = self.lock();
        if queues.is_empty() {
            return;
        }
        for (queue, due) in changed {
            for waiter in queues.get(queue).into_iter().flatten() {
                if *due <= now || due.as_micros() < waiter.next_look_at.load(Ordering::SeqCst) {
                    waiter.notify.notify_one();
                }
            }
        }
    }

    /// Wakes all receivers.
    pub fn tell_all(&self) {
        for waiter in self.lock().values().flatten() {
            waiter.notify.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Vec<Arc<Waiter>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered receiver; dropping it ends the registration.
#[derive(Debug)]
pub struct Listener {
    wakes: Arc<Wakes>,
    queues: Vec<QueueName>,
    waiter: Arc<Waiter>,
}

impl Listener {
    /// From here on every change counts, until the look ends.
    pub fn begin_look(&self) {
        self.waiter.next_look_at.store(i64::MAX, Ordering::SeqCst);
    }

    /// The look has ended; the next one follows at `next` at the latest.
    pub fn end_look(&self, next: Timestamp) {
        self.waiter.next_look_at.store(next.as_micros(), Ordering::SeqCst);
    }

    /// Waits for a change since the last look began.
    pub async fn called(&self) {
        self.waiter.notify.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut queues = self.wakes.lock();
        for queue in &self.queues {
            if let Some(waiters) = queues.get_mut(queue) {
                waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
                if waiters.is_empty() {
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
    fn only_earlier_changes_wake_and_none_is_missed_between_look_and_wait() {
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
        assert!(is_called(), "notified during the look");
        wakes.tell(&[(a.clone(), later), (b, now)], now);
        assert!(!is_called(), "a later time, and another queue");
        wakes.tell(&[(a.clone(), now)], now);
        assert!(is_called());
        wakes.tell(&[(a, Timestamp::from_micros(2000))], now);
        assert!(is_called(), "earlier than the next look");
        wakes.tell_all();
        assert!(is_called());
        drop(listener);
        assert!(!wakes.has_listeners());
    }
}
