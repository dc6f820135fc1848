//! The state that the faults need.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{
    Bytes, Envelope, Key, LeaseToken, Message, MessageId, QueueName, QueuedMessage, ReceiptHandle, ReturnLease,
};
use tokio::time::Instant;

/// What passed through the broken store.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    calls: u64,
    keys: HashMap<MessageId, Key>,
    newest: HashMap<MessageId, ReceiptHandle>,
    deliveries: HashMap<MessageId, (Bytes, Envelope)>,
    leased: HashMap<QueueName, MessageId>,
    settled: HashSet<LeaseToken>,
    peeked_at: HashSet<QueueName>,
    first_ends: HashMap<LeaseToken, Instant>,
}

/// Ignores the return: the message was delivered by mistake.
struct IgnoreReturn;

impl ReturnLease for IgnoreReturn {
    fn return_lease(&self, _receipt: ReceiptHandle) {}
}

impl Notes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is an even-numbered call.
    pub(super) fn is_even_call(&self) -> bool {
        let mut state = self.state();
        state.calls += 1;
        state.calls.is_multiple_of(2)
    }

    /// Removes the ordering key, so that the store does not see it.
    pub(super) fn hide_key(&self, message: &mut Message) {
        if let Some(key) = message.ordering_key.take() {
            self.state().keys.insert(message.id, key);
        }
    }

    pub(super) fn restore_key(&self, message: &mut QueuedMessage) {
        message.envelope.ordering_key = self.state().keys.get(&message.id()).cloned();
    }

    pub(super) fn delivered(&self, message: &QueuedMessage) {
        let mut state = self.state();
        let id = message.id();
        state.newest.insert(id, message.receipt().clone());
        state.deliveries.insert(id, (message.message.clone(), message.envelope.clone()));
        state.leased.insert(message.envelope.queue.clone(), id);
    }

    pub(super) fn settled(&self, receipt: &ReceiptHandle) {
        let mut state = self.state();
        state.settled.insert(receipt.token());
        if state.leased.get(receipt.queue()) == Some(&receipt.message_id()) {
            state.leased.remove(receipt.queue());
        }
    }

    /// Records the length of a granted lease.
    pub(super) fn granted(&self, receipt: &ReceiptHandle, visibility: Duration) {
        // An end beyond the clock's range never comes.
        let end = Instant::now().checked_add(visibility);
        self.state().first_ends.extend(end.map(|end| (receipt.token(), end)));
    }

    /// Whether the lease would have expired without its extensions.
    pub(super) fn is_past_its_first_end(&self, receipt: &ReceiptHandle) -> bool {
        self.state().first_ends.get(&receipt.token()).is_some_and(|end| *end <= Instant::now())
    }

    pub(super) fn was_settled(&self, receipt: &ReceiptHandle) -> bool {
        self.state().settled.contains(&receipt.token())
    }

    pub(super) fn peeked_at(&self, queue: &QueueName) {
        self.state().peeked_at.insert(queue.clone());
    }

    pub(super) fn was_peeked_at(&self, queue: &QueueName) -> bool {
        self.state().peeked_at.contains(queue)
    }

    /// Replaces a receipt by the newest one of its message.
    pub(super) fn newest_receipt(&self, receipt: &mut ReceiptHandle) {
        if let Some(newest) = self.state().newest.get(&receipt.message_id()) {
            *receipt = newest.clone();
        }
    }

    /// The queue of the last delivery of a message with this id.
    pub(super) fn last_queue(&self, id: MessageId) -> Option<QueueName> {
        Some(self.state().newest.get(&id)?.queue().clone())
    }

    /// A copy of the receipt's message, to be sent again.
    pub(super) fn copy_of(&self, receipt: &ReceiptHandle) -> Option<Message> {
        let state = self.state();
        let (body, envelope) = state.deliveries.get(&receipt.message_id())?;
        let mut message = Message::new(body.clone()).id(envelope.id);
        message.ordering_key.clone_from(&envelope.ordering_key);
        Some(message)
    }

    /// A second delivery of the queue's last unsettled message.
    pub(super) fn leased_copy(&self, queue: &QueueName) -> Option<QueuedMessage> {
        let mut state = self.state();
        let id = state.leased.remove(queue)?;
        let (body, envelope) = state.deliveries.get(&id)?.clone();
        let receipt = state.newest.get(&id)?.clone();
        Some(QueuedMessage::new(body, envelope, receipt, Arc::new(IgnoreReturn)))
    }
}
