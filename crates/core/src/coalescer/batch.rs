//! What goes to the store in one piece, and what comes back.

use std::time::Duration;

use async_trait::async_trait;

use crate::disposition::{Disposition, Nack, Settlement};
use crate::error::{ErrorSource, MessagingError};
use crate::id::MessageId;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::receipt::{NativeRef, ReceiptHandle};
use crate::service::RowResults;

/// Carries batches out: the part that each provider writes.
#[async_trait]
pub trait BatchExecutor: Send + Sync + 'static {
    /// Carries out all rows, in one piece where the store can: extends, then settles, then sends, each in its order.
    ///
    /// A row that fails by itself without harm to the others (a lease that is over) is a row's result, not a failure
    /// of the batch.
    ///
    /// It must end: while it runs, its lane stands still. Whoever talks to a server bounds its own waiting and answers
    /// [`BatchFailure::Unknown`] when the bound is reached.
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure>;
}

/// A lease to be extended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendRow {
    /// The lease.
    pub receipt: ReceiptHandle,
    /// How long from now it lasts.
    pub extension: Duration,
}

/// A message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendRow {
    /// Where to.
    pub queue: QueueName,
    /// What.
    pub message: Message,
}

/// Rows that go to the store together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Leases to be extended; first, because they run out.
    pub extends: Vec<ExtendRow>,
    /// Leases to be ended; before the sends, because they free messages for others.
    pub settles: Vec<Settlement>,
    /// Messages to be sent.
    pub sends: Vec<SendRow>,
}

impl Batch {
    /// How many rows it has.
    pub fn len(&self) -> usize {
        self.extends.len() + self.settles.len() + self.sends.len()
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts it in the middle, keeps the first half and answers the second. The order of the rows stays.
    pub(super) fn split_off_second_half(&mut self) -> Self {
        let half = self.len() / 2;
        let extends = half.min(self.extends.len());
        let settles = (half - extends).min(self.settles.len());
        let sends = half - extends - settles;
        Self {
            extends: self.extends.split_off(extends),
            settles: self.settles.split_off(settles),
            sends: self.sends.split_off(sends),
        }
    }

    /// Removes all rows but keeps their memory for the next batch.
    pub(super) fn clear(&mut self) {
        self.extends.clear();
        self.settles.clear();
        self.sends.clear();
    }
}

/// What became of a batch: one result a row, in the order of the rows.
#[derive(Debug, Clone, Default)]
pub struct BatchReply {
    /// The receipt by which each lease goes on.
    pub extends: RowResults<ReceiptHandle>,
    /// What became of the settles.
    pub settles: RowResults<()>,
    /// The id of each message, or of the one that already has its dedup key.
    pub sends: RowResults<MessageId>,
}

/// The answers of a store that knows when a lease ends: the lease goes on by the receipt that it has.
pub fn with_same_receipts(rows: &[ExtendRow], extended: RowResults<()>) -> RowResults<ReceiptHandle> {
    rows.iter().zip(extended).map(|(row, extended)| extended.map(|()| row.receipt.clone())).collect()
}

/// Why a batch was not carried out.
#[derive(Debug, Clone)]
pub enum BatchFailure {
    /// Nothing took effect, because the store refuses some row. The batch is split until that row stands alone.
    Rejected(MessagingError),
    /// Nothing took effect, and no row is at fault. Every caller gets this error.
    NotDone(MessagingError),
    /// The answer was lost: all of it or nothing may have taken effect.
    Unknown(MessagingError),
}

/// A row of one of the three lanes.
pub(super) trait Row: Send + 'static {
    type Answer: Send + 'static;

    /// The word for it in errors.
    const OPERATION: &'static str;

    fn id(&self) -> MessageId;

    /// What it counts towards a batch's bytes.
    fn bytes(&self) -> usize;

    fn unknown(ids: Vec<MessageId>, source: ErrorSource) -> MessagingError {
        MessagingError::OutcomeUnknown { operation: Self::OPERATION, ids, source: Some(source) }
    }
}

impl Row for ExtendRow {
    type Answer = ReceiptHandle;
    const OPERATION: &'static str = "extend";

    fn id(&self) -> MessageId {
        self.receipt.message_id()
    }

    fn bytes(&self) -> usize {
        receipt_bytes(&self.receipt)
    }
}

impl Row for Settlement {
    type Answer = ();
    const OPERATION: &'static str = "settle";

    fn id(&self) -> MessageId {
        self.receipt.message_id()
    }

    fn bytes(&self) -> usize {
        let error = match &self.disposition {
            Disposition::Nack(Nack::Retry { error, .. } | Nack::DeadLetter { error, .. }) => {
                error.as_ref().map_or(0, String::len)
            }
            Disposition::Ack | Disposition::Nack(Nack::Release) => 0,
        };
        receipt_bytes(&self.receipt) + error
    }
}

impl Row for SendRow {
    type Answer = MessageId;
    const OPERATION: &'static str = "send";

    fn id(&self) -> MessageId {
        self.message.id
    }

    fn bytes(&self) -> usize {
        let keys = [&self.message.ordering_key, &self.message.dedup_key];
        let keys: usize = keys.into_iter().flatten().map(|key| key.as_str().len()).sum();
        self.message.body.len() + self.message.headers.byte_len() + keys
    }
}

/// Message and token, and what the store itself needs to find the message.
fn receipt_bytes(receipt: &ReceiptHandle) -> usize {
    32 + match receipt.native() {
        NativeRef::Row(_) => 8,
        NativeRef::Handle(handle) => handle.len(),
    }
}
