//! What a database does beyond [`Store`]: one method for each operation, in one transaction or in several that each
//! keep the law.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::coalescer::{ExtendRow, SendRow};
use postrider_core::{Deadline, MessageId, QueueName, ReceiptHandle, ReceiveOptions, RowResults, Settlement};
use postrider_provider::{Claimed, Store, Undone};

use crate::wakes::{Listener, Wakes};

/// The result of a settle and claim.
#[derive(Debug)]
pub struct Taken<C> {
    /// The results of the settlements, in their order.
    pub settled: RowResults<()>,
    /// The leased messages.
    pub messages: Vec<Claimed>,
    /// Work that the claim found and could not do in its own transaction.
    pub chores: C,
}

/// When a message can be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// A message can be received now.
    Now,
    /// The known time until a message can be received.
    In(Duration),
}

/// The row and the ordering key of a message that existed when a removal began.
pub type Present = (i64, Option<String>);

/// A database that keeps messages. Clones are the same store.
pub trait SqlStore: Store<Listener = Listener> {
    /// Work that a claim leaves for after its transaction.
    type Chores: Send;

    /// The waiting receivers of this process.
    fn wakes(&self) -> &Arc<Wakes>;

    /// Upper bound of the time that a waiting receiver goes without a look of its own.
    fn poll_interval(&self) -> Duration;

    /// Subscribes to the notifications of other processes about these queues.
    fn hear(&self, queues: &[QueueName]) {
        let _ = queues;
    }

    /// Stores messages.
    fn send(&self, rows: &[SendRow]) -> impl Future<Output = Result<RowResults<MessageId>, Undone>> + Send;

    /// Ends leases.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<RowResults<()>, Undone>> + Send;

    /// Extends leases.
    fn extend(&self, rows: &[ExtendRow]) -> impl Future<Output = Result<RowResults<()>, Undone>> + Send;

    /// Gives back the leases of dropped messages.
    fn give_up(&self, receipts: &[ReceiptHandle]) -> impl Future<Output = Result<(), Undone>> + Send;

    /// Settles, then leases messages of one queue, in one transaction.
    fn settle_and_claim(
        &self,
        settlements: &[Settlement],
        queue: &QueueName,
        wanted: usize,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Taken<Self::Chores>, Undone>> + Send;

    /// Does the chores of a claim: dead-letters messages and puts keys in order. Returns whether there may be more to
    /// claim now.
    fn do_chores(&self, queue: &QueueName, chores: Self::Chores) -> impl Future<Output = Result<bool, Undone>> + Send;

    /// When a message of the queue can be received.
    fn next_due(&self, queue: &QueueName) -> impl Future<Output = Result<Due, Undone>> + Send;
}
