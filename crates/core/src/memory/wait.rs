//! Waiting for a message: registered first, then looked, then waited, so that nothing arrives unseen.

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
    /// Claims what is due; when there is nothing, waits for it as long as the options and the deadline allow.
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
            // Hears of every change from here on, although it is polled only after the look.
            let notified = changed.notified();
            let (claimed, next) = self.claim_unless_closed(queue, options);
            if !claimed.is_empty() || wait.has_passed() {
                return claimed;
            }
            let mut closed = self.closed.subscribe();
            let news = async {
                tokio::select! {
                    // Close comes first: what arrives at the same moment is left to other connections.
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

    /// Claims what is due, or tells when something will be. A connection that was closed meanwhile claims nothing.
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

    /// Hints: one for every change that could have made a message receivable, and one whenever a time comes at which
    /// one becomes due.
    pub(super) fn wake_ups(&self, queue: &QueueName) -> WakeUps {
        let changed = self.changed(queue);
        // Made here and not at the first poll: a `Notified` hears of every change from its creation on.
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
