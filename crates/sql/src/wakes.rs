//! Who waits for which queue in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postrider_core::QueueName;
use tokio::sync::Notify;

/// Everybody who waits in this process.
#[derive(Debug, Default)]
pub struct Wakes {
    // One lock for all: it is held for a few pointer moves, once a commit and twice a wait.
    queues: Mutex<HashMap<QueueName, Vec<Arc<Notify>>>>,
}

impl Wakes {
    /// Hears of every change in these queues from now on.
    pub fn listen(self: &Arc<Self>, queues: &[QueueName]) -> Listener {
        // Keeps one call for somebody who does not listen yet, so that nothing is missed between a look and the wait.
        let called = Arc::new(Notify::new());
        let mut registered = self.lock();
        for queue in queues {
            registered.entry(queue.clone()).or_default().push(called.clone());
        }
        drop(registered);
        Listener { wakes: self.clone(), queues: queues.to_vec(), called }
    }

    /// Something in these queues can be received, now or earlier than was known.
    pub fn tell<'q>(&self, touched: impl IntoIterator<Item = &'q QueueName>) {
        let queues = self.lock();
        for queue in touched {
            for called in queues.get(queue).into_iter().flatten() {
                called.notify_one();
            }
        }
    }

    /// Anything may have changed.
    pub fn tell_all(&self) {
        for called in self.lock().values().flatten() {
            called.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Vec<Arc<Notify>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those who wait; dropped, it is given up.
#[derive(Debug)]
pub struct Listener {
    wakes: Arc<Wakes>,
    queues: Vec<QueueName>,
    called: Arc<Notify>,
}

impl Listener {
    /// Waits for news since the last time.
    pub async fn called(&self) {
        self.called.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut queues = self.wakes.lock();
        for queue in &self.queues {
            if let Some(waiting) = queues.get_mut(queue) {
                waiting.retain(|called| !Arc::ptr_eq(called, &self.called));
                if waiting.is_empty() {
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
}
