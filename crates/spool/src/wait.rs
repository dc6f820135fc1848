//! Waiting for a message: registered first, then looked, then waited, so that nothing arrives unseen.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream;
use postrider_core::wakes::Listener;
use postrider_core::{
    Deadline, MessageId, MessagingError, QueueName, QueuedMessage, ReceiveOptions, RowResults, SettledAndReceived,
    Settlement, Timestamp, WakeUps,
};
use tokio::sync::oneshot;

use crate::claim::Claimed;
use crate::provider::{SpoolProvider, blocking};
use crate::queue::Queue;
use crate::store::Shared;
use crate::work::{self, Claim};

/// Nobody who only looks waits longer than that for a file that may still be written to.
const MOST_SETTLING: Duration = Duration::from_secs(2);
/// What a file system's clock may be behind by.
const TICK: Duration = Duration::from_millis(50);

/// What may come back with leases that somebody must answer for.
pub(crate) trait Leases {
    fn leases(&self) -> &[Claimed];
}

impl Leases for Vec<Claimed> {
    fn leases(&self) -> &[Claimed] {
        self
    }
}

/// What one look brought.
struct Look {
    settled: RowResults<()>,
    messages: Vec<Claimed>,
    received: Result<Timestamp, MessagingError>,
    is_settling: bool,
}

impl Leases for Look {
    fn leases(&self) -> &[Claimed] {
        &self.messages
    }
}

impl SpoolProvider {
    /// Does something that leases messages. What nobody is there to take any more is released.
    pub(crate) async fn lease<T: Leases + Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        work: impl FnOnce(&Shared) -> Result<T, MessagingError> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let (answer, answered) = oneshot::channel();
        let shared = self.shared().clone();
        let work = async move {
            let leasing = shared.clone();
            let result = blocking(move || work(&leasing)).await;
            if let Err(Ok(unwanted)) = answer.send(result) {
                let releases: Vec<_> =
                    unwanted.leases().iter().map(|claimed| work::release(&claimed.receipt)).collect();
                // Best effort: their leases run out.
                let _ = blocking(move || Ok(work::settle(&shared, &releases))).await;
            }
        };
        self.inner.under_way.carry_out(operation, ids.clone(), deadline, work).await?;
        answered.await.unwrap_or(Err(MessagingError::OutcomeUnknown { operation, ids, source: None }))
    }

    pub(crate) fn deliver(&self, claimed: Claimed) -> QueuedMessage {
        let Claimed { body, envelope, receipt } = claimed;
        self.inner.held.fetch_add(1, Ordering::Relaxed);
        QueuedMessage::new(body, envelope, receipt, self.inner.returns.clone())
    }

    /// Settles and claims; then, if there is nothing, waits for it as long as the options and the deadline allow.
    pub(crate) async fn settle_and_claim(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let wait = deadline.at_most(options.wait);
        let _open = self.kept_open(queues);
        // A file that was moved here a moment ago, and may still be written to, is as good as there: even somebody who
        // only looks waits for it, once.
        let settling = deadline.at_most(self.shared().options.grace_period.min(MOST_SETTLING).saturating_add(TICK));
        // Not somebody who has something else to do.
        let is_idle = settlements.is_empty() && self.inner.held.load(Ordering::Relaxed) == 0;
        let mut listener = (!options.wait.is_zero()).then(|| self.shared().wakes.listen(queues));
        let mut look = self.look(settlements, queues, options, deadline, listener.as_ref()).await?;
        look.is_settling &= is_idle;
        if look.is_settling && listener.is_none() {
            listener = Some(self.shared().wakes.listen(queues));
        }
        let settled = std::mem::take(&mut look.settled);
        self.count_settled(&settled);
        let received = loop {
            let next = match look.received {
                Err(error) => break Err(error),
                Ok(_) if !look.messages.is_empty() => {
                    break Ok(look.messages.into_iter().map(|claimed| self.deliver(claimed)).collect());
                }
                Ok(next) => next,
            };
            let wait = if look.is_settling && wait.has_passed() { settling } else { wait };
            let Some(listener) = listener.as_ref().filter(|_| !wait.has_passed()) else { break Ok(Vec::new()) };
            if self.news(listener, next, wait).await == News::Closed || deadline.has_passed() {
                break Ok(Vec::new());
            }
            match self.look(Vec::new(), queues, options, deadline, Some(listener)).await {
                Ok(again) => look = Look { is_settling: again.is_settling && is_idle, ..again },
                // The wait was answered already: nothing was there. What a look that was cut off leased is released.
                Err(MessagingError::OutcomeUnknown { source: None, .. }) if deadline.has_passed() => {
                    break Ok(Vec::new());
                }
                Err(MessagingError::Closed { .. }) => break Ok(Vec::new()),
                Err(error) => break Err(error),
            }
        };
        Ok(SettledAndReceived { settled, received })
    }

    async fn look(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
        listener: Option<&Listener>,
    ) -> Result<Look, MessagingError> {
        if let Some(listener) = listener {
            listener.begin_look();
        }
        let operation = if settlements.is_empty() { "receive" } else { "settle" };
        let ids = settlements.iter().map(|settlement| settlement.receipt.message_id()).collect();
        let mut queues = queues.to_vec();
        if queues.len() > 1 {
            // Begins with a random one, so that none is always served last.
            let first = rand::random_range(0..queues.len());
            queues.rotate_left(first);
        }
        let (options, closing) = (options.clone(), self.inner.under_way.closing());
        let step = move |shared: &Shared| {
            let mut look = Look {
                settled: work::settle(shared, &settlements),
                messages: Vec::new(),
                received: Ok(Timestamp::MAX),
                is_settling: false,
            };
            let still_leased = |row: &&Result<(), MessagingError>| {
                row.as_ref()
                    .is_err_and(|error| error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. }))
            };
            // What could not be settled for now makes room for nothing.
            let room = options.max.saturating_sub(look.settled.iter().filter(still_leased).count());
            for queue in &queues {
                // When the connection was closed meanwhile, what is there is left to others.
                if look.messages.len() >= room || *closing.borrow() {
                    break;
                }
                match work::claim(shared, queue, &options, room - look.messages.len()) {
                    Ok(Claim { messages, next, is_settling }) => {
                        look.is_settling |= is_settling;
                        look.messages.extend(messages);
                        look.received = look.received.map(|known| known.min(next));
                    }
                    Err(_) if !look.messages.is_empty() => break,
                    Err(error) => look.received = Err(error),
                }
            }
            Ok(look)
        };
        let look = self.lease(operation, ids, deadline, step).await?;
        if let Some(listener) = listener {
            listener.end_look(look.received.as_ref().map_or(Timestamp::MAX, |next| *next));
        }
        Ok(look)
    }

    /// These queues stay open, and watched, as long as somebody has this.
    fn kept_open(&self, queues: &[QueueName]) -> Vec<Arc<Queue>> {
        queues.iter().filter_map(|queue| self.shared().queue(queue).ok()).collect()
    }

    /// Waits until a look may find something.
    async fn news(&self, listener: &Listener, next: Timestamp, wait: Deadline) -> News {
        let mut closing = self.inner.under_way.closing();
        let news = async {
            tokio::select! {
                biased;
                _ = closing.wait_for(|closed| *closed) => News::Closed,
                () = listener.called() => News::LookAgain,
                () = self.until(next) => News::LookAgain,
            }
        };
        wait.limit(news).await.unwrap_or(News::LookAgain)
    }

    async fn until(&self, time: Timestamp) {
        if time == Timestamp::MAX {
            std::future::pending::<()>().await;
        }
        self.shared().options.clock.sleep_until(time).await;
    }

    /// Hints: one for every change that could have made a message receivable, and one whenever a time comes at which
    /// one becomes due.
    pub(crate) async fn wake_ups(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        let open = self.kept_open(std::slice::from_ref(queue));
        let listener = self.shared().wakes.listen(std::slice::from_ref(queue));
        let seen = self.shared().options.clock.now();
        // From here on the folder is watched.
        let next = self.next_due_after(queue, &listener, seen, deadline).await?;
        let state = (self.clone(), queue.clone(), (listener, open), next);
        Ok(WakeUps::new(stream::unfold(state, |(provider, queue, (listener, open), next)| async move {
            match provider.news(&listener, next, Deadline::never()).await {
                News::Closed => None,
                News::LookAgain => {
                    let seen = provider.shared().options.clock.now();
                    // A look that failed promises nothing: the next news comes by a call, or the owner polls anyway.
                    let next = provider.next_due_after(&queue, &listener, seen, Deadline::default()).await;
                    Some(((), (provider, queue, (listener, open), next.unwrap_or(Timestamp::MAX))))
                }
            }
        })))
    }

    async fn next_due_after(
        &self,
        queue: &QueueName,
        listener: &Listener,
        after: Timestamp,
        deadline: Deadline,
    ) -> Result<Timestamp, MessagingError> {
        listener.begin_look();
        let queue = queue.clone();
        let next = self.on_disk("subscribe", deadline, move |shared| work::next_due(shared, &queue, after)).await?;
        listener.end_look(next);
        Ok(next)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    LookAgain,
    Closed,
}
