//! Waiting: a receiver registers before it looks, so that no message arrives unnoticed.

use std::sync::Arc;

use futures_util::stream;
use tokio::sync::Notify;

use crate::clock::Timestamp;
use crate::deadline::Deadline;
use crate::queue_name::QueueName;
use crate::receive_options::ReceiveOptions;
use crate::service::WakeUps;

use super::MemoryProvider;
use super::claim::Claimed;

impl MemoryProvider {
    /// Claims what is due. When nothing is due, waits as long as the options and the deadline allow.
    pub(super) async fn claim_or_wait(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Vec<Claimed> {
        if options.wait.is_zero() {
            return self.claim_unless_closed(queue, options).0;
        }
        let wait = deadline.at_most(options.wait);
        let changed = self.changed(queue);
        loop {
            // Registers for all changes from here on, although it is polled only after the look.
            let notified = changed.notified();
            let (claimed, next) = self.claim_unless_closed(queue, options);
            if !claimed.is_empty() || wait.has_passed() {
                return claimed;
            }
            let mut closed = self.closed.subscribe();
            let news = async {
                tokio::select! {
                    // Close has priority: messages that arrive at the same moment are left to other connections.
                    biased;
                    _ = closed.wait_for(|closed| *closed) => true,
                    () = notified => false,
                    () = self.until(next) => false,
                }
            };
            if wait.limit(news).await == Some(true) {
                return Vec::new();
            }
        }
    }

    /// Claims what is due, or returns when something will be. Claims nothing on a closed connection.
    fn claim_unless_closed(&self, queue: &QueueName, options: &ReceiveOptions) -> (Vec<Claimed>, Timestamp) {
        let mut state = self.shared().state.lock();
        if *self.closed.borrow() {
            return (Vec::new(), Timestamp::MAX);
        }
        let now = self.now();
        let claimed = state.claim(queue, options, now);
        let next = if claimed.is_empty() { state.queue(queue).next_wake_up(now) } else { Timestamp::MAX };
        (claimed, next)
    }

    /// Hints: one for each change that may have made a message receivable, and one at each time at which a message
    /// becomes due.
    pub(super) fn wake_ups(&self, queue: &QueueName) -> WakeUps {
        let changed = self.changed(queue);
        // Created here and not at the first poll, because a `Notified` registers at its creation.
        let notified = Box::pin(changed.clone().notified_owned());
        let provider = self.clone();
        let queue = queue.clone();
        let start = self.now();
        WakeUps::new(stream::unfold((provider, notified, start), move |(provider, notified, seen)| {
            let changed = changed.clone();
            let queue = queue.clone();
            async move {
                let next = provider.shared().state.lock().queue(&queue).next_wake_up(seen);
                let mut closed = provider.closed.subscribe();
                let is_open = tokio::select! {
                    biased;
                    _ = closed.wait_for(|closed| *closed) => false,
                    () = notified => true,
                    () = provider.until(next) => true,
                };
                let seen = provider.now().max(seen);
                let notified = Box::pin(changed.notified_owned());
                is_open.then_some(((), (provider, notified, seen)))
            }
        }))
    }

    fn changed(&self, queue: &QueueName) -> Arc<Notify> {
        self.shared().state.lock().queue(queue).changed.clone()
    }

    async fn until(&self, time: Timestamp) {
        if time == Timestamp::MAX {
            std::future::pending::<()>().await;
        }
        self.shared().clock.sleep_until(time).await;
    }
}
