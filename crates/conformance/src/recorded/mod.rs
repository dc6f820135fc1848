//! A provider that records the history of its calls.

mod admin;
mod service;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod unanswering;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use postrider_core::{
    DeadLetter, DeadLetterQuery, DeadLetters, Deadline, Feature, MessageId, MessagingError, MessagingService,
    QueueAdmin, QueueName, QueuedMessage, ReceiptHandle, ReturnLease, Support,
};

use crate::history::{
    Begun, BodyHash, DeadRecord, Delivery, Dropped, FinalState, History, LeaseOutcome, Operation, Outcome,
};

/// A provider with a history: forwards every call and records it.
///
/// Several of them, each with its own provider and worker, can write into one history.
#[derive(Debug)]
pub struct Recorded<P> {
    provider: P,
    history: History,
    worker: u32,
    /// Deliveries whose leases end with the connection, on stores without portable receipts.
    unsettled: Mutex<Vec<Dropped>>,
}

impl<P> Recorded<P> {
    /// Records the calls to `provider` as those of `worker`.
    pub fn new(provider: P, history: History, worker: u32) -> Self {
        Self { provider, history, worker, unsettled: Mutex::default() }
    }

    /// The wrapped provider. Calls made to it directly are not recorded.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// The recorded history.
    pub fn history(&self) -> &History {
        &self.history
    }

    fn begin<R: Into<Operation> + Clone>(&self, rows: Vec<R>) -> Call<R> {
        let (history, worker) = (self.history.clone(), self.worker);
        let begun = history.begin_call(worker, || rows.iter().cloned().map(Into::into).collect());
        Call { begun, history, worker, rows }
    }

    /// The record of a delivery, and the delivery with its drop watched.
    fn watch_drop(&self, received: QueuedMessage) -> (Delivery, QueuedMessage) {
        let (body, envelope) = (received.message.clone(), received.envelope.clone());
        let receipt = received.receipt().clone();
        let delivery = Delivery {
            id: envelope.id,
            token: receipt.token(),
            receive_count: envelope.receive_count,
            attempts_count: envelope.attempts_count,
            ordering_key: envelope.ordering_key.as_ref().map(ToString::to_string),
            body_hash: BodyHash::of(&body),
        };
        let watch =
            DropWatch { history: self.history.clone(), worker: self.worker, received: Mutex::new(Some(received)) };
        (delivery, QueuedMessage::new(body, envelope, receipt, Arc::new(watch)))
    }
}

impl<P: MessagingService + QueueAdmin + DeadLetters> Recorded<P> {
    /// Records the contents of the queues. Call it once, after everything that could be received has been settled.
    pub async fn record_final(&self, queues: &[QueueName], deadline: Deadline) -> Result<(), MessagingError> {
        for queue in queues {
            let start = self.history.now();
            let dead_letters = self.all_dead_letters(queue, deadline).await?;
            let live = self.all_live(queue, deadline).await?;
            let state = FinalState { queue: queue.clone(), dead_letters, live };
            self.history.record_call(self.worker, start, [state.into()]);
        }
        Ok(())
    }

    async fn all_dead_letters(&self, queue: &QueueName, deadline: Deadline) -> Result<Vec<DeadRecord>, MessagingError> {
        let mut records = Vec::new();
        let mut query = DeadLetterQuery { limit: 1_000, ..DeadLetterQuery::default() };
        loop {
            let page = self.provider.list_dead_letters(queue, &query, deadline).await?;
            records.extend(page.letters.iter().map(DeadRecord::from));
            if page.next.is_none() {
                return Ok(records);
            }
            query.after = page.next;
        }
    }

    async fn all_live(&self, queue: &QueueName, deadline: Deadline) -> Result<Option<Vec<MessageId>>, MessagingError> {
        // An emulated peek sees a sample; the rest would look lost.
        if *self.provider.capabilities().support(Feature::Peek) != Support::Native {
            return Ok(None);
        }
        let mut limit = 1_000;
        loop {
            let live = self.provider.peek(queue, limit, deadline).await?;
            if live.len() < limit {
                return Ok(Some(live.iter().map(|message| message.id).collect()));
            }
            limit *= 10;
        }
    }
}

impl From<&DeadLetter> for DeadRecord {
    fn from(letter: &DeadLetter) -> Self {
        Self {
            id: letter.id,
            origin: letter.origin.clone(),
            reason: letter.reason.clone(),
            deliveries_count: letter.deliveries_count,
            body_hash: BodyHash::of(&letter.body),
        }
    }
}

/// A call under way, with rows of unknown outcomes. It is recorded on drop, with the outcomes filled in by then, so
/// that a cancelled call stays unknown.
struct Call<R: Into<Operation>> {
    history: History,
    worker: u32,
    begun: Begun,
    rows: Vec<R>,
}

impl<R: Into<Operation>> Drop for Call<R> {
    fn drop(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        self.history.end_call(self.worker, self.begun, rows.into_iter().map(Into::into));
    }
}

/// Returns a dropped message to its provider and records the drop.
struct DropWatch {
    history: History,
    worker: u32,
    // The provider's own message; dropping it returns the lease. A lock, because `return_lease` takes `&self`.
    received: Mutex<Option<QueuedMessage>>,
}

impl ReturnLease for DropWatch {
    fn return_lease(&self, receipt: ReceiptHandle) {
        let dropped = Dropped::from(&receipt);
        // Recorded first: from here on the lease may end.
        self.history.record_call(self.worker, self.history.now(), [dropped.into()]);
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(received);
    }
}

impl Drop for DropWatch {
    fn drop(&mut self) {
        // The receipt was taken out of the watched message: the provider's own must not return the lease.
        if let Some(received) = self.received.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            received.into_receipt();
        }
    }
}

impl fmt::Debug for DropWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DropWatch").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl From<&ReceiptHandle> for Dropped {
    fn from(receipt: &ReceiptHandle) -> Self {
        Self { queue: receipt.queue().clone(), id: receipt.message_id(), token: receipt.token() }
    }
}

/// The outcome of a failed call: failed when the error promises that nothing was done, else unknown.
fn failure<T>(error: &MessagingError) -> Outcome<T> {
    if promises_nothing_done(error) { Outcome::Failed(error.to_string()) } else { Outcome::Unknown }
}

fn outcome<T>(result: Result<T, &MessagingError>) -> Outcome<T> {
    result.map_or_else(failure, Outcome::Done)
}

fn lease_outcome(result: Result<(), &MessagingError>) -> LeaseOutcome {
    match result {
        Ok(()) => LeaseOutcome::Done,
        Err(MessagingError::VisibilityExpired { .. }) => LeaseOutcome::Expired,
        Err(error) if promises_nothing_done(error) => LeaseOutcome::Failed(error.to_string()),
        Err(_) => LeaseOutcome::Unknown,
    }
}

/// Whether an error means that the store did nothing. Errors not listed here may mean anything.
fn promises_nothing_done(error: &MessagingError) -> bool {
    matches!(
        error,
        MessagingError::Connection { .. }
            | MessagingError::Busy { .. }
            | MessagingError::DeadlineExceeded { .. }
            | MessagingError::Closed { .. }
            | MessagingError::InvalidInput { .. }
            | MessagingError::InvalidReceipt { .. }
            | MessagingError::NotSupported { .. }
            | MessagingError::QueueNotFound { .. }
            | MessagingError::CircuitBreakerOpen { .. }
            | MessagingError::Provider { .. }
    )
}
