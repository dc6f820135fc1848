//! What a broker does for [`Connection`](crate::Connection): one method an operation.

use std::collections::HashSet;
use std::fmt::Debug;

use postrider_core::coalescer::{BatchFailure, CoalescerConfig, ExtendRow, SendRow};
use postrider_core::{
    Capabilities, Deadline, MessageId, MessagingError, QueueName, QueueStats, ReceiptHandle, ReceiveOptions,
    RowResults, Settlement, WakeUps,
};
use postrider_provider::{Claimed, Patience};

use crate::stored::Stored;

/// A message that is held for a moment, to be looked at or moved.
#[derive(Debug)]
pub struct Held {
    /// The message.
    pub stored: Stored,
    /// Which of the held ones it is.
    pub place: u64,
}

/// Messages of one queue that are held for a moment: nobody else sees them meanwhile.
pub trait Hold: Send + 'static {
    /// Takes up to `count` further messages, in their order. None means that there are no more.
    fn take(&mut self, count: usize) -> impl Future<Output = Result<Vec<Held>, MessagingError>> + Send;

    /// Removes messages that were taken.
    fn remove(&mut self, places: &[u64]) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Stores messages in a queue, each in the place of one that was taken, which is removed once its copy is durable.
    fn move_to(
        &mut self,
        queue: &QueueName,
        moved: Vec<(u64, Stored)>,
    ) -> impl Future<Output = Result<RowResults<()>, MessagingError>> + Send;

    /// Lets go of what is left.
    fn put_back(self) -> impl Future<Output = Result<(), MessagingError>> + Send;
}

/// A broker that keeps messages. Clones are the same connection to it.
pub trait Broker: Clone + Debug + Send + Sync + 'static {
    /// The provider's name in receipts and errors.
    const PROVIDER: &'static str;

    /// Messages that are held for a moment.
    type Hold: Hold;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Whether a send or a redrive creates a queue that is missing.
    fn creates_queues(&self) -> bool;

    /// How large its batches are.
    fn batches(&self) -> CoalescerConfig {
        CoalescerConfig::new(Self::PROVIDER)
    }

    /// How many batches of messages are sent at the same time. Those with ordering keys go one after the other.
    fn senders(&self) -> usize {
        1
    }

    /// Whether the broker answers.
    fn health_check(&self, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Makes a queue, and the one of its dead letters, if they are not there.
    fn ensure_queue(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Stores messages.
    fn send(&self, rows: &[SendRow]) -> impl Future<Output = Result<RowResults<MessageId>, BatchFailure>> + Send;

    /// Messages were stored in a queue: waits until they outlast a crash, if that takes longer than the broker's word. An
    /// error means that nobody knows.
    fn sent(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send {
        let _ = (queue, deadline);
        std::future::ready(Ok(()))
    }

    /// Ends leases.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<RowResults<()>, BatchFailure>> + Send;

    /// Extends leases, and answers the receipt by which each goes on.
    fn extend(
        &self,
        rows: &[ExtendRow],
    ) -> impl Future<Output = Result<RowResults<ReceiptHandle>, BatchFailure>> + Send;

    /// Gives leases back that nobody will use.
    fn give_up(&self, receipts: &[ReceiptHandle]) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Leases messages, and waits for the first of them as long as there is patience. Buries what must die on the way.
    fn receive(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
        patience: Patience,
    ) -> impl Future<Output = Result<Vec<Claimed>, MessagingError>> + Send;

    /// Hints that a queue may have something to receive.
    fn wake_ups(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<WakeUps, MessagingError>> + Send;

    /// All queues.
    fn list_queues(&self, deadline: Deadline) -> impl Future<Output = Result<Vec<QueueName>, MessagingError>> + Send;

    /// Whether a queue is there, and why it cannot be used if it is there and cannot.
    fn is_usable(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<Result<(), String>>, MessagingError>> + Send;

    /// What is in a queue.
    fn stats(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<QueueStats, MessagingError>> + Send;

    /// Holds a queue's messages back, or lets them go again.
    fn set_paused(
        &self,
        queue: &QueueName,
        is_paused: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Removes what nobody has leased, and answers how many that were.
    fn purge(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<u64, MessagingError>> + Send;

    /// Removes a queue with everything that belongs to it.
    fn delete_queue(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Holds messages of a queue that are not leased.
    fn hold(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Self::Hold, MessagingError>> + Send;

    /// The messages of a queue that this connection has leased.
    fn leased(&self, queue: &QueueName) -> Vec<Stored>;

    /// Ends the connection. What it had leased goes back where receipts are of no use elsewhere.
    fn close(&self, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send;
}

/// The ids of messages.
pub(crate) fn ids(messages: &[Stored]) -> HashSet<MessageId> {
    messages.iter().map(|stored| stored.id).collect()
}
