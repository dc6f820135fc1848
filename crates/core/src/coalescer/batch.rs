//! A batch of rows for the store, and its reply.

use std::time::Duration;

use async_trait::async_trait;

use crate::disposition::{Disposition, Nack, Settlement};
use crate::error::{ErrorSource, MessagingError};
use crate::id::MessageId;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::receipt::{NativeRef, ReceiptHandle};
use crate::service::RowResults;

/// Executes batches. Implemented by each provider.
#[async_trait]
pub trait BatchExecutor: Send + Sync + 'static {
    /// Executes all rows, in one step if the store can: extends, then settles, then sends, each in order.
    ///
    /// A row that fails without effect on the others (a lease that has ended) is a result of that row, not a failure of
    /// the batch.
    ///
    /// It must return, because its lane is blocked meanwhile. An executor that talks to a server limits its wait, and
    /// returns [`BatchFailure::Unknown`] at the limit.
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure>;
}

/// A lease to be extended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendRow {
    /// The lease.
    pub receipt: ReceiptHandle,
    /// The duration of the lease from now on.
    pub extension: Duration,
}

/// A message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendRow {
    /// The queue.
    pub queue: QueueName,
    /// The message.
    pub message: Message,
}

/// Rows that are executed together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Leases to be extended. They come first, because leases expire.
    pub extends: Vec<ExtendRow>,
    /// Leases to be ended. They come before the sends, because they make messages receivable.
    pub settles: Vec<Settlement>,
    /// Messages to be sent.
    pub sends: Vec<SendRow>,
}

impl Batch {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.extends.len() + self.settles.len() + self.sends.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Splits the batch in the middle; keeps the first half and returns the second. The order of the rows is kept.
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

    /// Removes all rows and keeps the allocated memory.
    pub(super) fn clear(&mut self) {
        self.extends.clear();
        self.settles.clear();
        self.sends.clear();
    }
}

/// The results of a batch: one for each row, in the order of the rows.
#[derive(Debug, Clone, Default)]
pub struct BatchReply {
    /// The receipts of the extended leases.
    pub extends: RowResults<ReceiptHandle>,
    /// The results of the settles.
    pub settles: RowResults<()>,
    /// The id of each message, or of the one that already has its dedup key.
    pub sends: RowResults<MessageId>,
}

/// The extend results of a store that tracks the end of a lease itself: the receipts stay the same.
pub fn with_same_receipts(rows: &[ExtendRow], extended: RowResults<()>) -> RowResults<ReceiptHandle> {
    rows.iter().zip(extended).map(|(row, extended)| extended.map(|()| row.receipt.clone())).collect()
}

/// Why a batch was not executed.
#[derive(Debug, Clone)]
pub enum BatchFailure {
    /// Nothing was done, because the store rejects a row. The batch is split until that row is alone.
    Rejected(MessagingError),
    /// Nothing was done, and no row is at fault. Every caller gets this error.
    NotDone(MessagingError),
    /// The answer was lost: the whole batch or nothing was done.
    Unknown(MessagingError),
}

/// A row of one of the three lanes.
pub(super) trait Row: Send + 'static {
    type Answer: Send + 'static;

    /// The operation's name in errors.
    const OPERATION: &'static str;

    fn id(&self) -> MessageId;

    /// The size of the row, for the bounds of a batch.
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

/// The size of message id, token and native reference.
fn receipt_bytes(receipt: &ReceiptHandle) -> usize {
    32 + match receipt.native() {
        NativeRef::Row(_) => 8,
        NativeRef::Handle(handle) => handle.len(),
    }
}
