//! What a broker does for [`Connection`](crate::Connection): one method for each operation.

use std::collections::HashSet;
use std::fmt::Debug;

use postrider_core::coalescer::{BatchFailure, CoalescerConfig, ExtendRow, SendRow};
use postrider_core::{
    Capabilities, Deadline, MessageId, MessagingError, QueueName, QueueStats, ReceiptHandle, ReceiveOptions,
    RowResults, Settlement, WakeUps,
};
use postrider_provider::{Claimed, Patience};

use crate::stored::Stored;

/// A message that is held to be read or moved.
#[derive(Debug)]
pub struct Held {
    /// The message.
    pub stored: Stored,
    /// Its number within the hold.
    pub place: u64,
}

/// Messages of one queue that are held for a moment: no other consumer sees them meanwhile.
pub trait Hold: Send + 'static {
    /// Takes up to `count` further messages, in order. An empty answer means that there are no more.
    fn take(&mut self, count: usize) -> impl Future<Output = Result<Vec<Held>, MessagingError>> + Send;

    /// Removes messages that were taken.
    fn remove(&mut self, places: &[u64]) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Stores a copy of each message in a queue, and removes the taken message that it replaces once the copy is
    /// durable.
    fn move_to(
        &mut self,
        queue: &QueueName,
        moved: Vec<(u64, Stored)>,
    ) -> impl Future<Output = Result<RowResults<()>, MessagingError>> + Send;

    /// Releases the remaining messages.
    fn put_back(self) -> impl Future<Output = Result<(), MessagingError>> + Send;
}

/// A broker that keeps messages. Clones share the connection.
pub trait Broker: Clone + Debug + Send + Sync + 'static {
    /// The provider's name in receipts and errors.
    const PROVIDER: &'static str;

    /// Messages that are held for a moment.
    type Hold: Hold;

    /// The capabilities of the broker.
    fn capabilities(&self) -> &Capabilities;

    /// Whether a send or a redrive creates a missing queue.
    fn creates_queues(&self) -> bool;

    /// The bounds of its batches.
    fn batches(&self) -> CoalescerConfig {
        CoalescerConfig::new(Self::PROVIDER)
    }

    /// Number of send batches that run at the same time. Messages with ordering keys are sent one batch after the
    /// other.
    fn senders(&self) -> usize {
        1
    }

    /// Checks that the broker answers.
    fn health_check(&self, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Creates a queue and its dead-letter queue, unless they exist.
    fn ensure_queue(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Stores messages.
    fn send(&self, rows: &[SendRow]) -> impl Future<Output = Result<RowResults<MessageId>, BatchFailure>> + Send;

    /// Called after messages were stored in a queue; waits until they survive a crash, if the broker's answer does not
    /// say so. An error means that the outcome is unknown.
    fn sent(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send {
        let _ = (queue, deadline);
        std::future::ready(Ok(()))
    }

    /// Ends leases.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<RowResults<()>, BatchFailure>> + Send;

    /// Extends leases, and returns the receipt that is valid from now on.
    fn extend(
        &self,
        rows: &[ExtendRow],
    ) -> impl Future<Output = Result<RowResults<ReceiptHandle>, BatchFailure>> + Send;

    /// Gives back leases whose messages were dropped or have no caller.
    fn give_up(&self, receipts: &[ReceiptHandle]) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Leases messages, and waits for the first one within `patience`. Dead-letters what is past its limits.
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

    /// Whether a queue exists: `None` if it does not, an error text if it cannot be used.
    fn is_usable(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<Result<(), String>>, MessagingError>> + Send;

    /// The counts of a queue.
    fn stats(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<QueueStats, MessagingError>> + Send;

    /// Pauses or resumes a queue.
    fn set_paused(
        &self,
        queue: &QueueName,
        is_paused: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Removes the messages that are not leased, and returns their number.
    fn purge(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<u64, MessagingError>> + Send;

    /// Removes a queue and everything that belongs to it.
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

    /// Closes the connection. Its leases go back if receipts are valid on this connection only.
    fn close(&self, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send;
}

/// The ids of messages.
pub(crate) fn ids(messages: &[Stored]) -> HashSet<MessageId> {
    messages.iter().map(|stored| stored.id).collect()
}
