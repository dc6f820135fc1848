//! What a database does beyond [`Store`]: one method an operation, each in one transaction, or in several of which each
//! leaves the law kept.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::coalescer::{ExtendRow, SendRow};
use postrider_core::{Deadline, MessageId, QueueName, ReceiptHandle, ReceiveOptions, RowResults, Settlement};
use postrider_provider::{Claimed, Store, Undone};

use crate::wakes::{Listener, Wakes};

/// What a settle and a claim brought.
#[derive(Debug)]
pub struct Taken<C> {
    /// What became of the settlements, in their order.
    pub settled: RowResults<()>,
    /// What was leased for the caller.
    pub messages: Vec<Claimed>,
    /// What the claim found and could not do in its own transaction.
    pub chores: C,
}

/// When something can be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It may be received now.
    Now,
    /// After so long, as far as is known.
    In(Duration),
}

/// A message that was there when a removal began: its row and its key.
pub type Present = (i64, Option<String>);

/// A database that keeps messages. Clones are the same store.
pub trait SqlStore: Store<Listener = Listener> {
    /// What a claim leaves to be done after its transaction.
    type Chores: Send;

    /// The waiting receivers of this process.
    fn wakes(&self) -> &Arc<Wakes>;

    /// How long a waiting receiver goes without a look of its own.
    fn poll_interval(&self) -> Duration;

    /// Receivers wait for these queues: from now on, hear of what other processes send.
    fn hear(&self, queues: &[QueueName]) {
        let _ = queues;
    }

    /// Stores messages.
    fn send(&self, rows: &[SendRow]) -> impl Future<Output = Result<RowResults<MessageId>, Undone>> + Send;

    /// Ends leases.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<RowResults<()>, Undone>> + Send;

    /// Extends leases.
    fn extend(&self, rows: &[ExtendRow]) -> impl Future<Output = Result<RowResults<()>, Undone>> + Send;

    /// Gives leases back whose messages were dropped.
    fn give_up(&self, receipts: &[ReceiptHandle]) -> impl Future<Output = Result<(), Undone>> + Send;

    /// Ends leases and leases messages of one queue, in one transaction.
    fn settle_and_claim(
        &self,
        settlements: &[Settlement],
        queue: &QueueName,
        wanted: usize,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Taken<Self::Chores>, Undone>> + Send;

    /// Does what a claim left to be done: buries what must die, puts keys in order. Answers whether there may be more to
    /// claim now.
    fn do_chores(&self, queue: &QueueName, chores: Self::Chores) -> impl Future<Output = Result<bool, Undone>> + Send;

    /// When something in a queue can be received.
    fn next_due(&self, queue: &QueueName) -> impl Future<Output = Result<Due, Undone>> + Send;
}
