//! Waiting for a message: registered first, then looked, then waited, so that nothing arrives unseen.

use std::sync::Arc;

use futures_util::stream;
use postrider_core::{
    Deadline, MessagingError, QueueName, QueuedMessage, ReceiveOptions, RowResults, SettledAndReceived, Settlement,
    Timestamp, WakeUps,
};

use crate::claim::next_due;
use crate::error::{Failure, by_law};
use crate::provider::SqliteProvider;
use crate::session::Session;
use crate::writer::Note;
use crate::writer::work::{Unclaimed, Unheld};
use postrider_core::wakes::Listener;

/// What one look brought.
struct Look {
    settled: RowResults<()>,
    messages: Vec<QueuedMessage>,
    next: Timestamp,
    is_cut_short: bool,
}

impl Unclaimed for Look {
    fn into_leases(self) -> Vec<Unheld> {
        self.messages.into_leases()
    }
}

impl SqliteProvider {
    /// Claims what is due; when there is nothing, waits for it as long as the options and the deadline allow.
    pub(crate) async fn claim_or_wait(
        &self,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let both = self.settle_and_claim(Vec::new(), queues, options, deadline).await?;
        both.received
    }

    /// Settles and claims in one transaction; then, if there is nothing, waits for it.
    pub(crate) async fn settle_and_claim(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let wait = deadline.at_most(options.wait);
        let listener = (!options.wait.is_zero()).then(|| self.shared().desk.wakes.listen(queues));
        let mut look = self.look(settlements, queues, options, deadline, listener.as_ref()).await?;
        let settled = std::mem::take(&mut look.settled);
        let received = loop {
            if !look.messages.is_empty() {
                break Ok(look.messages);
            }
            if !look.is_cut_short {
                let Some(listener) = listener.as_ref().filter(|_| !wait.has_passed()) else { break Ok(Vec::new()) };
                if self.news(listener, look.next, wait).await == News::Closed {
                    break Ok(Vec::new());
                }
            }
            // The wait was answered already: nothing was there. A look that the caller's own deadline cuts off takes
            // nothing away from that, because leases that nobody was there to take are given back.
            if deadline.has_passed() {
                break Ok(Vec::new());
            }
            match self.look(Vec::new(), queues, options, deadline, listener.as_ref()).await {
                Ok(next) => look = next,
                Err(MessagingError::OutcomeUnknown { source: None, .. }) if deadline.has_passed() => {
                    break Ok(Vec::new());
                }
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
        let (options, deliver, closed) = (options.clone(), self.deliver(), self.inner.closed.clone());
        let step = move |session: &mut Session<'_>| -> Result<Look, Failure> {
            let mut look = Look {
                settled: RowResults::with_capacity(settlements.len()),
                messages: Vec::new(),
                next: Timestamp::MAX,
                is_cut_short: false,
            };
            for settlement in &settlements {
                look.settled.push(by_law(session.settle(settlement))?);
            }
            if *closed.borrow() {
                // What is there is left to other connections.
                return Ok(look);
            }
            let mut options = options.clone();
            for queue in &queues {
                let claim = session.claim(queue, &options)?;
                options.max -= claim.messages.len().min(options.max);
                look.messages.extend(claim.messages.into_iter().map(&deliver));
                look.next = look.next.min(claim.next);
                look.is_cut_short |= claim.is_cut_short;
                if options.max == 0 {
                    break;
                }
            }
            Ok(look)
        };
        let look = self.lease(operation, ids, deadline, step).await?;
        if let Some(listener) = listener {
            listener.end_look(look.next);
        }
        Ok(look)
    }

    /// Waits until a look may find something.
    async fn news(&self, listener: &Listener, next: Timestamp, wait: Deadline) -> News {
        let mut closed = self.inner.closed.subscribe();
        let news = async {
            tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => News::Closed,
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
        self.shared().desk.options.clock.sleep_until(time).await;
    }

    /// Hints: one for every change that could have made a message receivable, and one whenever a time comes at which
    /// one becomes due.
    pub(crate) fn wake_ups(&self, queue: &QueueName) -> Result<WakeUps, MessagingError> {
        let name = queue.clone();
        let next = move |connection: &rusqlite::Connection, after| next_due(connection, &name, after);
        self.hints(std::slice::from_ref(queue), Arc::new(next))
    }

    /// Hints for whoever waits for news under these names, or for the next time that `next` finds.
    pub(crate) fn hints(&self, names: &[QueueName], next: NextDue) -> Result<WakeUps, MessagingError> {
        let listener = self.shared().desk.wakes.listen(names);
        self.writer()?.tell(Note::Listen);
        let seen = self.shared().desk.options.clock.now();
        let state = (self.clone(), next, listener, seen);
        Ok(WakeUps::new(stream::unfold(state, |(provider, next, listener, seen)| async move {
            let due = provider.next_due_after(&next, &listener, seen).await;
            match provider.news(&listener, due, Deadline::never()).await {
                News::Closed => None,
                News::LookAgain => {
                    let seen = provider.shared().desk.options.clock.now().max(seen);
                    Some(((), (provider, next, listener, seen)))
                }
            }
        })))
    }

    async fn next_due_after(&self, next: &NextDue, listener: &Listener, after: Timestamp) -> Timestamp {
        listener.begin_look();
        let next = next.clone();
        let look = move |connection: &rusqlite::Connection| Ok(next(connection, after)?);
        let next = self.shared().readers.read("subscribe", Deadline::default(), look).await;
        // A look that failed promises nothing: the next news comes by a call, or the stream's owner polls anyway.
        let next = next.unwrap_or(Timestamp::MAX);
        listener.end_look(next);
        next
    }
}

/// Finds the next time, after the given one, at which there is something by itself.
pub(crate) type NextDue = Arc<dyn Fn(&rusqlite::Connection, Timestamp) -> rusqlite::Result<Timestamp> + Send + Sync>;

#[derive(Debug, PartialEq, Eq)]
enum News {
    LookAgain,
    Closed,
}
