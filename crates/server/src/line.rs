//! Waiting clients stand in line.
//!
//! A hundred clients that wait for one queue must not be a hundred that ask the store whenever a message comes. A few at
//! the head of a queue's line ask; the others wait for a place, in the order in which they came.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use postrider::QueueName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many ask for one queue at once.
const AT_THE_HEAD: usize = 4;

/// The lines of all queues. A lock, held for a look.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<Vec<QueueName>, Weak<Semaphore>>>);

impl Lines {
    /// A place at the head of the line for these queues, as soon as there is one.
    pub(crate) async fn place(&self, queues: &[QueueName]) -> Option<OwnedSemaphorePermit> {
        let line = {
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() > 1000 {
                lines.retain(|_, line| line.strong_count() > 0);
            }
            match lines.get(queues).and_then(Weak::upgrade) {
                Some(line) => line,
                None => {
                    let line = Arc::new(Semaphore::new(AT_THE_HEAD));
                    lines.insert(queues.to_vec(), Arc::downgrade(&line));
                    line
                }
            }
        };
        // Never closed.
        line.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_few_are_at_the_head_and_the_next_follows() {
        let (lines, orders) = (Lines::default(), [QueueName::new("orders").unwrap()]);
        let mut head = Vec::new();
        for _ in 0..AT_THE_HEAD {
            head.push(lines.place(&orders).await.unwrap());
        }
        let mut next = std::pin::pin!(lines.place(&orders));
        assert!(next.as_mut().now_or_never().is_none());
        assert!(lines.place(&[QueueName::new("mail").unwrap()]).now_or_never().is_some(), "another line");
        head.pop();
        assert!(next.now_or_never().is_some());
    }
}
