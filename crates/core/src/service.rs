//! The contract of a provider: bytes in, bytes out.
//!
//! Three small traits. [`MessagingService`] is the path that every message takes; [`QueueAdmin`] and [`DeadLetters`]
//! are for people and tools. A provider writes the required methods; the short forms come with the trait, so that
//! there is one send path, one claim path and one settle path on every provider.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;

use crate::capabilities::{Capabilities, Feature};
use crate::clock::Timestamp;
use crate::dead_letter::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Redrive, RedriveReport,
};
use crate::deadline::Deadline;
use crate::disposition::{Nack, Settlement};
use crate::error::MessagingError;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::lifecycle::LiveState;
use crate::message::{ContentType, Key, Message, Priority};
use crate::queue_name::QueueName;
use crate::queued_message::QueuedMessage;
use crate::receipt::ReceiptHandle;
use crate::receive_options::ReceiveOptions;
use crate::receive_several;
use crate::stats::{QueueHealthReport, QueueStats};

/// What became of each row of a batch, in the order of the rows.
pub type RowResults<T> = Vec<Result<T, MessagingError>>;

/// What one call of [`MessagingService::settle_and_receive`] did.
#[derive(Debug)]
pub struct SettledAndReceived {
    /// What became of each settlement.
    pub settled: RowResults<()>,
    /// The new messages. The settlements stand even when this failed.
    pub received: Result<Vec<QueuedMessage>, MessagingError>,
}

/// Whether a settlement that failed like this may have left the lease as it was.
fn is_still_leased(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

/// Send, receive, settle: the lifecycle of a message.
///
/// The outer error of a batch means that no row was carried out, unless it is `OutcomeUnknown`, which names the rows
/// that may have been; a row's own error speaks of that row alone.
pub trait MessagingService: Send + Sync + 'static {
    /// The provider's name, in receipts, errors and metrics.
    fn provider_name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Creates a queue if it is not there.
    fn ensure_queue(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Creates those of the queues that are not there.
    fn ensure_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send {
        async move {
            for queue in queues {
                self.ensure_queue(queue, deadline).await?;
            }
            Ok(())
        }
    }

    /// Sends messages, in their order. Each answers its id once it is durable.
    ///
    /// An id is the sender's to keep single: sent twice without a dedup key, it names two messages, and whatever asks
    /// for a message by its id gets the older.
    ///
    /// A message whose dedup key is taken answers the id of the message that has it.
    fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<RowResults<MessageId>, MessagingError>> + Send;

    /// Sends one message.
    fn send_message(
        &self,
        queue: &QueueName,
        message: Message,
        deadline: Deadline,
    ) -> impl Future<Output = Result<MessageId, MessagingError>> + Send {
        async move { only_row(self.send_batch(queue, vec![message], deadline).await?, "send") }
    }

    /// Leases messages that are due.
    ///
    /// A queue that does not exist is like an empty one. Messages that have been delivered too often, or that have
    /// expired, are dead-lettered on the way and do not count towards `max`.
    fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<QueuedMessage>, MessagingError>> + Send;

    /// Ends leases, each in its own way. A row whose lease is over answers `VisibilityExpired` and changes nothing.
    fn settle(
        &self,
        settlements: Vec<Settlement>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<RowResults<()>, MessagingError>> + Send;

    /// Acknowledges one message.
    ///
    /// Takes the message, or its receipt. A message that is taken is gone also when the call fails, and then waits for
    /// the end of its lease; lend it (`&message`) to have it still at hand.
    fn ack_message(
        &self,
        queue: &QueueName,
        receipt: impl Into<ReceiptHandle> + Send,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send {
        let settlement = Settlement::ack(receipt);
        async move {
            settlement.receipt.check_queue(queue)?;
            only_row(self.settle(vec![settlement], deadline).await?, "ack")
        }
    }

    /// Acknowledges messages of one queue.
    fn ack_messages(
        &self,
        queue: &QueueName,
        receipts: Vec<ReceiptHandle>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<RowResults<()>, MessagingError>> + Send {
        async move {
            for receipt in &receipts {
                receipt.check_queue(queue)?;
            }
            self.settle(receipts.into_iter().map(Settlement::ack).collect(), deadline).await
        }
    }

    /// Gives one message back: to be retried, released or dead-lettered.
    fn nack_message(
        &self,
        queue: &QueueName,
        receipt: impl Into<ReceiptHandle> + Send,
        nack: impl Into<Nack> + Send,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send {
        let settlement = Settlement::nack(receipt, nack);
        async move {
            settlement.receipt.check_queue(queue)?;
            only_row(self.settle(vec![settlement], deadline).await?, "nack")
        }
    }

    /// Settles what is done and leases what is next, from one or several queues: in one round trip where the
    /// provider can, in two calls where it cannot. What could not be settled for now is still leased, so it makes room for
    /// nothing: then fewer messages than `options.max` are leased.
    fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> impl Future<Output = Result<SettledAndReceived, MessagingError>> + Send {
        async move {
            let settled = if settlements.is_empty() { Vec::new() } else { self.settle(settlements, deadline).await? };
            let kept = settled.iter().filter(|row| row.as_ref().is_err_and(is_still_leased)).count();
            let max = options.max.saturating_sub(kept);
            let received = if max == 0 && kept > 0 {
                Ok(Vec::new())
            } else {
                let options = ReceiveOptions { max, ..options.clone() };
                receive_several::receive(self, queues, &options, deadline).await
            };
            Ok(SettledAndReceived { settled, received })
        }
    }

    /// Sets a lease's end to *now + extension*, by the store's clock.
    fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Leases one message by its id, by the same rules as any receive: `None` when it is not there, not due, leased,
    /// or not the head of its key.
    fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<QueuedMessage>, MessagingError>> + Send;

    /// A stream of hints that the queue may have something to receive.
    ///
    /// A hint carries no message and promises none; it only shortens a wait. Hints that nobody took are merged.
    fn subscribe(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<WakeUps, MessagingError>> + Send;

    /// Whether the store answers.
    fn health_check(&self, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Ends this connection: nothing new is begun, waiting receives end, what was begun is finished.
    ///
    /// Leases stay with whoever has their receipts, until they run out, where receipts work on another connection
    /// ([`Feature::PortableReceipts`]); elsewhere their messages go back.
    fn close(&self, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send;
}

/// The answer of a batch of one row.
fn only_row<T>(rows: RowResults<T>, operation: &'static str) -> Result<T, MessagingError> {
    rows.into_iter()
        .next()
        .unwrap_or_else(|| Err(MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: None }))
}

/// What people and tools ask of queues.
pub trait QueueAdmin: Send + Sync + 'static {
    /// Every queue, by name. Dead-letter queues belong to their origin and are not listed apart.
    fn list_queues(&self, deadline: Deadline) -> impl Future<Output = Result<Vec<QueueName>, MessagingError>> + Send;

    /// What a queue holds; all zero when it does not exist.
    fn queue_stats(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<QueueStats, MessagingError>> + Send;

    /// Which of the queues are there and usable.
    fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> impl Future<Output = Result<QueueHealthReport, MessagingError>> + Send;

    /// Looks at up to `limit` messages without leasing them, in send order.
    fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<PeekedMessage>, MessagingError>> + Send;

    /// The failed attempts of a message that are still kept, oldest first: of one that lives in the queue or is among its
    /// dead letters. Empty when it has none, or is not there.
    ///
    /// The last [`KEPT_ATTEMPTS`] are kept, until the message is acknowledged or purged. A redrive begins anew.
    fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<MessageAttempt>, MessagingError>> + Send;

    /// Removes every message of the queue that nobody has leased, and answers how many. Dead letters stay.
    fn purge(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<u64, MessagingError>> + Send;

    /// Holds receives from the queue back. Sends and settles go on.
    fn pause(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Lets receives from the queue go on.
    fn resume(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Removes the queue with everything in it, dead letters included. Leases on its messages end.
    ///
    /// A dead-letter queue cannot be removed by itself; [`DeadLetters::purge_dead_letters`] empties it.
    fn delete_queue(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;
}

/// A message that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeekedMessage {
    /// Its identity.
    pub id: MessageId,
    /// Its bytes.
    pub body: Bytes,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// Its headers.
    pub headers: Headers,
    /// The key that it is ordered by.
    pub ordering_key: Option<Key>,
    /// How urgent it is.
    pub priority: Priority,
    /// Where it stands in its life.
    pub state: LiveState,
    /// How often it has been delivered.
    pub deliveries_count: u32,
    /// How often a handler has failed on it.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it can next be received: its due time, or the end of its lease.
    pub next_attempt_at: Timestamp,
    /// The last error text that is known.
    pub last_error: Option<String>,
}

/// So many failed attempts of a message are kept.
pub const KEPT_ATTEMPTS: u32 = 10;

/// An attempt of a handler that ended with a failure. A lease that ran out is none: nobody said how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageAttempt {
    /// Which failure of the message it was, counted since the message was sent or redriven; the first is 1.
    pub attempt: u32,
    /// When the message was delivered for it.
    pub started_at: Option<Timestamp>,
    /// When the handler said that it had failed.
    pub failed_at: Timestamp,
    /// The process that said so, where the store knows it.
    pub worker: Option<String>,
    /// What it said.
    pub error: Option<String>,
}

/// A queue's dead letters. `queue` is the origin; the dead-letter queue's own name means the same.
pub trait DeadLetters: Send + Sync + 'static {
    /// Lists dead letters, oldest death first.
    fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> impl Future<Output = Result<DeadLetterPage, MessagingError>> + Send;

    /// Reads one dead letter.
    fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<DeadLetter, MessagingError>> + Send;

    /// Changes one dead letter, which nobody may have leased, and answers it as it is now.
    fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> impl Future<Output = Result<DeadLetter, MessagingError>> + Send;

    /// Brings dead letters back to life: the same ids, the counts at zero, at the tail of their keys.
    fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> impl Future<Output = Result<RedriveReport, MessagingError>> + Send;

    /// Removes dead letters that nobody has leased, and answers how many.
    fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> impl Future<Output = Result<u64, MessagingError>> + Send;
}

/// The whole contract.
pub trait Provider: MessagingService + QueueAdmin + DeadLetters {}

impl<P: MessagingService + QueueAdmin + DeadLetters> Provider for P {}

/// A stream of wake-up hints.
pub struct WakeUps(Pin<Box<dyn Stream<Item = ()> + Send>>);

impl WakeUps {
    /// Wraps a provider's stream.
    pub fn new(stream: impl Stream<Item = ()> + Send + 'static) -> Self {
        Self(Box::pin(stream))
    }

    /// Waits for the next hint; `None` when there will be no more.
    pub async fn next(&mut self) -> Option<()> {
        std::future::poll_fn(|cx| self.0.as_mut().poll_next(cx)).await
    }
}

impl Stream for WakeUps {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl std::fmt::Debug for WakeUps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WakeUps")
    }
}

/// Refuses, before anything is done, what a message asks for and the provider refuses.
pub fn check_sendable(capabilities: &Capabilities, queue: &QueueName, message: &Message) -> Result<(), MessagingError> {
    if queue.holds_dead_letters() {
        return Err(MessagingError::invalid(
            "queue name",
            format!("'{queue}' holds dead letters and cannot be sent to; send to '{}'", queue.origin()),
        ));
    }
    if message.dedup_key.is_some() {
        capabilities.require(Feature::Dedup)?;
    }
    if message.ordering_key.is_some() {
        capabilities.require(Feature::OrderByKey)?;
    }
    if !message.delay.is_zero() {
        capabilities.require(Feature::Delay)?;
    }
    if message.expires.is_some() {
        capabilities.require(Feature::Expiry)?;
    }
    if message.priority != Priority::default() {
        capabilities.require(Feature::Priority)?;
    }
    message.check(&capabilities.limits)
}
