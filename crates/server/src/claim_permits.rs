//! Permits for claims that wait.
//!
//! A hundred clients that wait for one queue must not all poll the store whenever a message arrives. A few of them hold
//! a permit and poll; the others wait for a permit, first come, first served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use postrider::QueueName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Upper bound of clients that poll the store for one queue.
const MAX_POLLING: usize = 4;

/// The permits of all queues. The lock is held briefly.
#[derive(Debug, Default)]
pub(crate) struct ClaimPermits(Mutex<HashMap<Vec<QueueName>, Weak<Semaphore>>>);

impl ClaimPermits {
    /// Waits for a permit to poll these queues.
    pub(crate) async fn acquire(&self, queues: &[QueueName]) -> Option<OwnedSemaphorePermit> {
        let permits = {
            let mut by_queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if by_queues.len() > 1000 {
                by_queues.retain(|_, permits| permits.strong_count() > 0);
            }
            match by_queues.get(queues).and_then(Weak::upgrade) {
                Some(permits) => permits,
                None => {
                    let permits = Arc::new(Semaphore::new(MAX_POLLING));
                    by_queues.insert(queues.to_vec(), Arc::downgrade(&permits));
                    permits
                }
            }
        };
        // The semaphore is never closed.
        permits.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_few_clients_hold_permits_and_the_next_one_waits() {
        let (permits, orders) = (ClaimPermits::default(), [QueueName::new("orders").unwrap()]);
        let mut held = Vec::new();
        for _ in 0..MAX_POLLING {
            held.push(permits.acquire(&orders).await.unwrap());
        }
        let mut next = std::pin::pin!(permits.acquire(&orders));
        assert!(next.as_mut().now_or_never().is_none());
        assert!(permits.acquire(&[QueueName::new("mail").unwrap()]).now_or_never().is_some(), "another queue");
        held.pop();
        assert!(next.now_or_never().is_some());
    }
}
