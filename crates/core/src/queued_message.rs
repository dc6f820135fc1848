//! A message as its receiver holds it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::disposition::Nack;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::{ContentType, Key, Priority};
use crate::queue_name::QueueName;
use crate::receipt::ReceiptHandle;

/// Takes back the leases of messages that were dropped. A provider's part.
pub trait ReturnLease: Send + Sync {
    /// Makes the message receivable again, best effort, with its delivery still counted. Must not block.
    fn return_lease(&self, receipt: ReceiptHandle);
}

/// A leased message: its body, what is known about it, and the receipt that settles it.
///
/// Settling takes the receipt out ([`into_receipt`](Self::into_receipt), or the message itself wherever a receipt is
/// taken). A message that is dropped with its receipt still inside is returned to its queue, best effort, with the
/// delivery still counted; the guarantee is the end of its lease.
#[derive(Debug)]
pub struct QueuedMessage<T = Bytes> {
    /// What the message says.
    pub message: T,
    /// What is known about it.
    pub envelope: Envelope,
    lease: Lease,
}

/// Everything about a delivery but its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The message's identity.
    pub id: MessageId,
    /// The queue that it was received from.
    pub queue: QueueName,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// Text beside the body.
    pub headers: Headers,
    /// The key that it is ordered by.
    pub ordering_key: Option<Key>,
    /// The key that keeps it single.
    pub dedup_key: Option<Key>,
    /// How urgent it is.
    pub priority: Priority,
    /// When it is too late to handle it.
    pub expires_at: Option<Timestamp>,
    /// Which delivery this is: 1 the first time.
    pub receive_count: u32,
    /// How often a handler has failed on it before.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Timestamp,
    /// When the lease ends, by the store's clock, if it is not extended.
    pub lease_expires_at: Timestamp,
}

impl Envelope {
    /// How long ago, when this delivery was made, the message was first delivered.
    pub fn since_first_attempt(&self, now: Timestamp) -> Duration {
        now.since(self.first_attempt_at)
    }
}

impl QueuedMessage<Bytes> {
    /// A delivery. For providers: `on_drop` takes the lease back when the message is dropped unsettled.
    pub fn new(body: Bytes, envelope: Envelope, receipt: ReceiptHandle, on_drop: Arc<dyn ReturnLease>) -> Self {
        Self { message: body, envelope, lease: Lease(Some((receipt, on_drop))) }
    }
}

impl<T> QueuedMessage<T> {
    /// The same delivery with another body: its value instead of its bytes.
    pub fn with_message<U>(self, message: U) -> QueuedMessage<U> {
        QueuedMessage { message, envelope: self.envelope, lease: self.lease }
    }

    /// The message's identity.
    pub fn id(&self) -> MessageId {
        self.envelope.id
    }

    /// Which delivery this is: 1 the first time.
    pub fn receive_count(&self) -> u32 {
        self.envelope.receive_count
    }

    /// The receipt, to extend the lease by while the message is at hand.
    pub fn receipt(&self) -> &ReceiptHandle {
        self.lease.receipt()
    }

    /// Goes on by the receipt that an extend answered.
    pub fn goes_on_by(&mut self, receipt: ReceiptHandle) {
        self.lease.goes_on_by(receipt);
    }

    /// Takes the receipt out: from now on whoever has it answers for the message.
    pub fn into_receipt(self) -> ReceiptHandle {
        self.lease.into_receipt()
    }

    /// Takes the message apart. Whoever has the receipt answers for the message.
    pub fn into_parts(self) -> (T, Envelope, ReceiptHandle) {
        (self.message, self.envelope, self.lease.into_receipt())
    }

    /// Takes the message apart and leaves its lease to somebody who goes on looking after it.
    pub fn into_leased_parts(self) -> (T, Envelope, Lease) {
        (self.message, self.envelope, self.lease)
    }

    /// What [`into_leased_parts`](Self::into_leased_parts) took apart.
    pub fn from_leased_parts(message: T, envelope: Envelope, lease: Lease) -> Self {
        Self { message, envelope, lease }
    }

    /// `requeue` as other queues have it, with a backoff that grows with this message's failures.
    pub fn requeue(&self, requeue: bool) -> Nack {
        Nack::requeue(requeue, self.envelope.attempts_count)
    }
}

impl<T> From<QueuedMessage<T>> for ReceiptHandle {
    fn from(message: QueuedMessage<T>) -> Self {
        message.into_receipt()
    }
}

impl<T> From<&QueuedMessage<T>> for ReceiptHandle {
    fn from(message: &QueuedMessage<T>) -> Self {
        message.receipt().clone()
    }
}

/// The lease of a message. Dropped, it returns the message to its queue, best effort, with the delivery still counted.
// A type of its own, so that the message around it can be taken apart.
pub struct Lease(Option<(ReceiptHandle, Arc<dyn ReturnLease>)>);

impl Lease {
    /// The receipt, to extend the lease by.
    pub fn receipt(&self) -> &ReceiptHandle {
        match &self.0 {
            Some((receipt, _)) => receipt,
            // Only `into_receipt` empties it, and that consumes the lease.
            None => unreachable!("a lease has its receipt until it is taken"),
        }
    }

    /// Goes on by the receipt that an extend answered.
    pub fn goes_on_by(&mut self, receipt: ReceiptHandle) {
        if let Some((own, _)) = &mut self.0 {
            *own = receipt;
        }
    }

    /// Takes the receipt out: from now on whoever has it answers for the message.
    pub fn into_receipt(mut self) -> ReceiptHandle {
        match self.0.take() {
            Some((receipt, _)) => receipt,
            None => unreachable!("a lease has its receipt until it is taken"),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((receipt, provider)) = self.0.take() {
            provider.return_lease(receipt);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map(|(receipt, _)| receipt).fmt(f)
    }
}
