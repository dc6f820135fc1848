//! What a broken store remembers in order to be broken.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use postrider_core::{
    Bytes, Envelope, Key, LeaseToken, Message, MessageId, QueueName, QueuedMessage, ReceiptHandle, ReturnLease,
};

/// Notes on everything that passed through.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    sends: u64,
    keys: HashMap<MessageId, Key>,
    newest: HashMap<MessageId, ReceiptHandle>,
    deliveries: HashMap<MessageId, (Bytes, Envelope)>,
    leased: HashMap<QueueName, MessageId>,
    settled: HashSet<LeaseToken>,
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

    pub(super) fn every_second_send(&self) -> bool {
        let mut pages = self.pages();
        pages.sends += 1;
        pages.sends.is_multiple_of(2)
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

    pub(super) fn was_settled(&self, receipt: &ReceiptHandle) -> bool {
        self.pages().settled.contains(&receipt.token())
    }

    /// Puts the receipt of the newest delivery in the place of an older one.
    pub(super) fn newest_receipt(&self, receipt: &mut ReceiptHandle) {
        if let Some(newest) = self.pages().newest.get(&receipt.message_id()) {
            *receipt = newest.clone();
        }
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
