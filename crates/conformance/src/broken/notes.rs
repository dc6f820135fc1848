//! What a broken store remembers in order to be broken.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{
    Bytes, Envelope, Key, LeaseToken, Message, MessageId, QueueName, QueuedMessage, ReceiptHandle, ReturnLease,
};
use tokio::time::Instant;

/// Notes on everything that passed through.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    times: u64,
    keys: HashMap<MessageId, Key>,
    newest: HashMap<MessageId, ReceiptHandle>,
    deliveries: HashMap<MessageId, (Bytes, Envelope)>,
    leased: HashMap<QueueName, MessageId>,
    settled: HashSet<LeaseToken>,
    peeked_at: HashSet<QueueName>,
    first_ends: HashMap<LeaseToken, Instant>,
}

/// Nobody takes this lease back: the message was handed out by mistake.
struct Nobody;

impl ReturnLease for Nobody {
    fn return_lease(&self, _receipt: ReceiptHandle) {}
}

impl Notes {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the second time, the fourth and so on.
    pub(super) fn is_second(&self) -> bool {
        let mut pages = self.pages();
        pages.times += 1;
        pages.times.is_multiple_of(2)
    }

    /// Takes a message's ordering key away, so that the store does not know of it.
    pub(super) fn take_key(&self, message: &mut Message) {
        if let Some(key) = message.ordering_key.take() {
            self.pages().keys.insert(message.id, key);
        }
    }

    pub(super) fn give_key_back(&self, message: &mut QueuedMessage) {
        message.envelope.ordering_key = self.pages().keys.get(&message.id()).cloned();
    }

    pub(super) fn delivered(&self, message: &QueuedMessage) {
        let mut pages = self.pages();
        let id = message.id();
        pages.newest.insert(id, message.receipt().clone());
        pages.deliveries.insert(id, (message.message.clone(), message.envelope.clone()));
        pages.leased.insert(message.envelope.queue.clone(), id);
    }

    pub(super) fn settled(&self, receipt: &ReceiptHandle) {
        let mut pages = self.pages();
        pages.settled.insert(receipt.token());
        if pages.leased.get(receipt.queue()) == Some(&receipt.message_id()) {
            pages.leased.remove(receipt.queue());
        }
    }

    /// This lease was granted for so long.
    pub(super) fn granted(&self, receipt: &ReceiptHandle, visibility: Duration) {
        // One that lasts longer than the clock goes does not end here.
        let end = Instant::now().checked_add(visibility);
        self.pages().first_ends.extend(end.map(|end| (receipt.token(), end)));
    }

    /// Whether this lease would be over if it had not been extended.
    pub(super) fn is_past_its_first_end(&self, receipt: &ReceiptHandle) -> bool {
        self.pages().first_ends.get(&receipt.token()).is_some_and(|end| *end <= Instant::now())
    }

    pub(super) fn was_settled(&self, receipt: &ReceiptHandle) -> bool {
        self.pages().settled.contains(&receipt.token())
    }

    pub(super) fn peeked_at(&self, queue: &QueueName) {
        self.pages().peeked_at.insert(queue.clone());
    }

    pub(super) fn was_peeked_at(&self, queue: &QueueName) -> bool {
        self.pages().peeked_at.contains(queue)
    }

    /// Puts the receipt of the newest delivery in the place of an older one.
    pub(super) fn newest_receipt(&self, receipt: &mut ReceiptHandle) {
        if let Some(newest) = self.pages().newest.get(&receipt.message_id()) {
            *receipt = newest.clone();
        }
    }

    /// The queue in which a message with this id was delivered last.
    pub(super) fn last_queue(&self, id: MessageId) -> Option<QueueName> {
        Some(self.pages().newest.get(&id)?.queue().clone())
    }

    /// A copy of the message that a receipt is for, to be sent anew.
    pub(super) fn copy_of(&self, receipt: &ReceiptHandle) -> Option<Message> {
        let pages = self.pages();
        let (body, envelope) = pages.deliveries.get(&receipt.message_id())?;
        let mut message = Message::new(body.clone()).id(envelope.id);
        message.ordering_key.clone_from(&envelope.ordering_key);
        Some(message)
    }

    /// The message of this queue that was handed out last and not settled, once more.
    pub(super) fn leased_copy(&self, queue: &QueueName) -> Option<QueuedMessage> {
        let mut pages = self.pages();
        let id = pages.leased.remove(queue)?;
        let (body, envelope) = pages.deliveries.get(&id)?.clone();
        let receipt = pages.newest.get(&id)?.clone();
        Some(QueuedMessage::new(body, envelope, receipt, Arc::new(Nobody)))
    }
}
