//! A message, as its receiver holds it.

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

/// Takes back the leases of dropped messages. Implemented by providers.
pub trait ReturnLease: Send + Sync {
    /// Makes the message receivable again, best effort, with its delivery still counted. Must not block.
    fn return_lease(&self, receipt: ReceiptHandle);
}

/// A leased message: its body, its envelope, and the receipt that settles it.
///
/// Settling consumes the receipt ([`into_receipt`](Self::into_receipt), or the message itself where a receipt is
/// expected). A message that is dropped unsettled is returned to its queue, best effort, with its delivery counted; in
/// any case its lease expires.
#[derive(Debug)]
pub struct QueuedMessage<T = Bytes> {
    /// The body.
    pub message: T,
    /// The envelope.
    pub envelope: Envelope,
    lease: Lease,
}

/// A delivery without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The message's id.
    pub id: MessageId,
    /// The queue that it was received from.
    pub queue: QueueName,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// The headers.
    pub headers: Headers,
    /// The ordering key.
    pub ordering_key: Option<Key>,
    /// The dedup key.
    pub dedup_key: Option<Key>,
    /// The priority.
    pub priority: Priority,
    /// When the message expires.
    pub expires_at: Option<Timestamp>,
    /// The number of this delivery, from 1.
    pub receive_count: u32,
    /// Number of failed attempts.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Timestamp,
    /// When the lease ends unless it is extended, by the store's clock.
    pub lease_expires_at: Timestamp,
}

impl Envelope {
    /// The time between the first delivery of the message and `now`.
    pub fn since_first_attempt(&self, now: Timestamp) -> Duration {
        now.since(self.first_attempt_at)
    }
}

impl QueuedMessage<Bytes> {
    /// Creates a delivery. For providers: `on_drop` takes the lease back if the message is dropped unsettled.
    pub fn new(body: Bytes, envelope: Envelope, receipt: ReceiptHandle, on_drop: Arc<dyn ReturnLease>) -> Self {
        Self { message: body, envelope, lease: Lease(Some((receipt, on_drop))) }
    }
}

impl<T> QueuedMessage<T> {
    /// Replaces the body.
    pub fn with_message<U>(self, message: U) -> QueuedMessage<U> {
        QueuedMessage { message, envelope: self.envelope, lease: self.lease }
    }

    /// The message's id.
    pub fn id(&self) -> MessageId {
        self.envelope.id
    }

    /// The number of this delivery, from 1.
    pub fn receive_count(&self) -> u32 {
        self.envelope.receive_count
    }

    /// The receipt, to extend the lease.
    pub fn receipt(&self) -> &ReceiptHandle {
        self.lease.receipt()
    }

    /// Replaces the receipt by the one that an extend returned.
    pub fn goes_on_by(&mut self, receipt: ReceiptHandle) {
        self.lease.goes_on_by(receipt);
    }

    /// Takes the receipt: its owner is responsible for the message from now on.
    pub fn into_receipt(self) -> ReceiptHandle {
        self.lease.into_receipt()
    }

    /// Splits the message. The owner of the receipt is responsible for the message.
    pub fn into_parts(self) -> (T, Envelope, ReceiptHandle) {
        (self.message, self.envelope, self.lease.into_receipt())
    }

    /// Splits the message and keeps the lease, which still returns the message when it is dropped.
    pub fn into_leased_parts(self) -> (T, Envelope, Lease) {
        (self.message, self.envelope, self.lease)
    }

    /// Reverses [`into_leased_parts`](Self::into_leased_parts).
    pub fn from_leased_parts(message: T, envelope: Envelope, lease: Lease) -> Self {
        Self { message, envelope, lease }
    }

    /// The `requeue` flag of other queues, with a backoff for the failures of this message.
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

/// The lease of a message. Dropping it returns the message to its queue, best effort, with its delivery counted.
// A separate type, so that the message around it can be split.
pub struct Lease(Option<(ReceiptHandle, Arc<dyn ReturnLease>)>);

impl Lease {
    /// The receipt, to extend the lease.
    pub fn receipt(&self) -> &ReceiptHandle {
        match &self.0 {
            Some((receipt, _)) => receipt,
            // `into_receipt` consumes the lease, so the lease is never empty here.
            None => unreachable!("a lease has its receipt until it is taken"),
        }
    }

    /// Replaces the receipt by the one that an extend returned.
    pub fn goes_on_by(&mut self, receipt: ReceiptHandle) {
        if let Some((own, _)) = &mut self.0 {
            *own = receipt;
        }
    }

    /// Takes the receipt: its owner is responsible for the message from now on.
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
