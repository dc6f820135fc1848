//! The contract of a provider: bytes in, bytes out.
//!
//! Three small traits. [`MessagingService`] is the path that every message takes; [`QueueAdmin`] and [`DeadLetters`]
//! are for people and tools. A provider writes the required methods; the short forms come with the trait, so that
//! there is one send path, one claim path and one settle path on every provider.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use futures_util::future::BoxFuture;

use crate::archive::{ArchivePage, ArchiveQuery};
use crate::capabilities::{Capabilities, Feature};
use crate::clock::Timestamp;
use crate::dead_letter::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason, DeadLetterSelection,
    DeadLetterSummary, DeadLetterSummaryPage, Redrive, RedriveReport,
};
use crate::deadline::Deadline;
use crate::disposition::{Nack, Settlement};
use crate::error::MessagingError;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::message::{ContentType, Key, Message, Priority};
use crate::message_state::LiveState;
use crate::queue_name::QueueName;
use crate::queued_message::QueuedMessage;
use crate::receipt::ReceiptHandle;
use crate::receive_options::ReceiveOptions;
use crate::receive_several;
use crate::stats::{QueueHealthReport, QueueStats};
use crate::waiting::{PeekPage, PeekQuery};

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
pub fn is_still_leased(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

/// Send, receive, settle: the lifecycle of a message.
///
/// The outer error of a batch means that no row was carried out, unless it is `OutcomeUnknown`, which names the rows
/// that may have been; a row's own error speaks of that row alone.
#[async_trait]
pub trait MessagingService: Send + Sync + 'static {
    /// The provider's name, in receipts, errors and metrics.
    fn provider_name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Creates a queue if it is not there.
    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError>;

    /// Creates those of the queues that are not there.
    async fn ensure_queues(&self, queues: &[QueueName], deadline: Deadline) -> Result<(), MessagingError> {
        for queue in queues {
            self.ensure_queue(queue, deadline).await?;
        }
        Ok(())
    }

    /// Sends messages, in their order. Each answers its id once it is durable.
    ///
    /// An id is the sender's to keep single: sent twice without a dedup key, it names two messages, and whatever asks
    /// for a message by its id gets the older.
    ///
    /// A message whose dedup key is taken answers the id of the message that has it.
    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError>;

    /// Sends one message.
    async fn send_message(
        &self,
        queue: &QueueName,
        message: Message,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        only_row(self.send_batch(queue, vec![message], deadline).await?, "send")
    }

    /// Leases messages that are due.
    ///
    /// A queue that does not exist is like an empty one. Messages that have been delivered too often, or that have
    /// expired, are dead-lettered on the way and do not count towards `max`.
    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError>;

    /// Ends leases, each in its own way. A row whose lease is over answers `VisibilityExpired` and changes nothing.
    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError>;

    /// Ends the lease of one message of this queue.
    async fn settle_message(
        &self,
        queue: &QueueName,
        settlement: Settlement,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        settlement.receipt.check_queue(queue)?;
        only_row(self.settle(vec![settlement], deadline).await?, "settle")
    }

    /// Acknowledges one message.
    ///
    /// Takes the message, or its receipt. A message that is taken is gone also when the call fails, and then waits for
    /// the end of its lease; lend it (`&message`) to have it still at hand.
    fn ack_message<'a>(
        &'a self,
        queue: &'a QueueName,
        receipt: impl Into<ReceiptHandle>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), MessagingError>>
    where
        Self: Sized,
    {
        self.settle_message(queue, Settlement::ack(receipt), deadline)
    }

    /// Acknowledges messages of one queue.
    async fn ack_messages(
        &self,
        queue: &QueueName,
        receipts: Vec<ReceiptHandle>,
        deadline: Deadline,
    ) -> Result<RowResults<()>, MessagingError> {
        for receipt in &receipts {
            receipt.check_queue(queue)?;
        }
        self.settle(receipts.into_iter().map(Settlement::ack).collect(), deadline).await
    }

    /// Gives one message back: to be retried, released or dead-lettered.
    fn nack_message<'a>(
        &'a self,
        queue: &'a QueueName,
        receipt: impl Into<ReceiptHandle>,
        nack: impl Into<Nack>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), MessagingError>>
    where
        Self: Sized,
    {
        self.settle_message(queue, Settlement::nack(receipt, nack), deadline)
    }

    /// Settles what is done and leases what is next, from one or several queues: in one round trip where the
    /// provider can, in two calls where it cannot. What could not be settled for now is still leased, so it makes room for
    /// nothing: then fewer messages than `options.max` are leased.
    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
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

    /// Sets a lease's end to *now + extension*, by the store's clock, and answers the receipt by which the lease goes on.
    ///
    /// Where the store knows when a lease ends, that is the same receipt. Where it does not, the receipt carries the end:
    /// the answered one carries the new end, and in another process only that one is good until then. Both name the same
    /// lease (its token), so a settlement by either ends it.
    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError>;

    /// Leases one message by its id, by the same rules as any receive: `None` when it is not there, not due, leased,
    /// or not the head of its key.
    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError>;

    /// A stream of hints that the queue may have something to receive.
    ///
    /// A hint carries no message and promises none; it only shortens a wait. Hints that nobody took are merged.
    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError>;

    /// Whether the store answers.
    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError>;

    /// Ends this connection: nothing new is begun, waiting receives end, what was begun is finished.
    ///
    /// Leases stay with whoever has their receipts, until they run out, where receipts work on another connection
    /// ([`Feature::PortableReceipts`]); elsewhere their messages go back.
    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError>;
}

/// The answer of a batch of one row.
pub(crate) fn only_row<T>(rows: RowResults<T>, operation: &'static str) -> Result<T, MessagingError> {
    rows.into_iter()
        .next()
        .unwrap_or_else(|| Err(MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: None }))
}

/// What people and tools ask of queues.
#[async_trait]
pub trait QueueAdmin: Send + Sync + 'static {
    /// Every queue, by name. Dead-letter queues belong to their origin and are not listed apart.
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError>;

    /// What a queue holds; all zero when it does not exist.
    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError>;

    /// Which of the queues are there and usable.
    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError>;

    /// Looks at up to `limit` messages without leasing them, in send order.
    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError>;

    /// A page of the queue's messages, in send order, without leasing them. What comes or goes between two pages moves none
    /// of the others from one page to another.
    ///
    /// A part of [`Feature::WaitingMessages`].
    async fn peek_page(
        &self,
        queue: &QueueName,
        query: &PeekQuery,
        deadline: Deadline,
    ) -> Result<PeekPage, MessagingError>;

    /// The failed attempts of a message that are still kept, oldest first: of one that lives in the queue or is among its
    /// dead letters. Empty when it has none, or is not there.
    ///
    /// The last [`KEPT_ATTEMPTS`] are kept, until the message is acknowledged or purged. A redrive begins anew.
    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError>;

    /// A page of the messages of the queue that are kept after their end, dead letters that were purged among them: newest
    /// end first. A page can be short, or empty, and name the next one ([`archive`](crate::archive)).
    ///
    /// What is kept, and for how long, is the store's setting ([`ArchivePolicy`](crate::ArchivePolicy)).
    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, MessagingError>;

    /// Sends an archived message to its queue again and answers the id of the new message, whose header
    /// [`SENT_AGAIN_FROM`](crate::archive::SENT_AGAIN_FROM) names the archived one.
    async fn send_again(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError>;

    /// Makes a waiting message due now. Behind the head of its key it still waits for its turn.
    ///
    /// This and the next two refuse a leased message with [`MessagingError::MessageLeased`].
    async fn deliver_now(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError>;

    /// Moves a waiting message to the dead letters.
    async fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> Result<(), MessagingError>;

    /// Removes a waiting message for good. It is archived as a purged dead letter is.
    async fn delete_waiting(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError>;

    /// Removes every message of the queue that nobody has leased, and answers how many. Dead letters stay.
    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError>;

    /// Holds receives from the queue back. Sends and settles go on.
    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError>;

    /// Lets receives from the queue go on.
    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError>;

    /// Removes the queue with everything in it, dead letters included. Leases on its messages end.
    ///
    /// A dead-letter queue cannot be removed by itself; [`DeadLetters::purge_dead_letters`] empties it.
    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError>;
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
#[async_trait]
pub trait DeadLetters: Send + Sync + 'static {
    /// Lists dead letters, oldest death first.
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError>;

    /// The ids of the dead letters of a selection, oldest death first; with an error's text, only those that died with
    /// exactly this one. Nothing else is read of them where the store can look for it.
    async fn find_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, MessagingError> {
        let mut query = DeadLetterQuery { selection: selection.clone(), ..DeadLetterQuery::default() };
        let wanted: Option<HashSet<MessageId>> = match selection {
            // Pages of a long list would each be looked for from its beginning.
            DeadLetterSelection::Ids(ids) if ids.len() > query.limit => {
                query.selection = DeadLetterSelection::All;
                Some(ids.iter().copied().collect())
            }
            _ => None,
        };
        let mut found = Vec::new();
        loop {
            let page = self.list_dead_letters(queue, &query, deadline).await?;
            let letters = page.letters.iter().filter(|letter| {
                wanted.as_ref().is_none_or(|wanted| wanted.contains(&letter.id))
                    && error.is_none_or(|error| letter.error.as_deref() == Some(error))
            });
            found.extend(letters.map(|letter| letter.id));
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Lists dead letters without their bodies and headers, oldest death first: what counting and searching reads.
    async fn list_dead_letter_summaries(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterSummaryPage, MessagingError> {
        // Whole letters are read, so few at a time: a page of the largest would be a gigabyte.
        const MOST_BYTES: usize = 16 * 1024 * 1024;
        let (mut page, mut part, mut portion) = (DeadLetterSummaryPage::default(), query.clone(), 16);
        loop {
            part.limit = portion.min(query.limit.saturating_sub(page.summaries.len()));
            let read = self.list_dead_letters(queue, &part, deadline).await?;
            let bytes: usize = read.letters.iter().map(|letter| letter.body.len() + letter.headers.byte_len()).sum();
            portion = if bytes > MOST_BYTES { (portion / 2).max(1) } else { portion * 2 };
            page.summaries.extend(read.letters.into_iter().map(DeadLetterSummary::from));
            page.next = read.next;
            if page.next.is_none() || page.summaries.len() >= query.limit {
                return Ok(page);
            }
            part.after.clone_from(&page.next);
        }
    }

    /// Reads one dead letter.
    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError>;

    /// Changes one dead letter, which nobody may have leased, and answers it as it is now.
    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError>;

    /// Brings dead letters back to life: the same ids, the counts at zero, at the tail of their keys.
    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError>;

    /// Removes dead letters that nobody has leased, and answers how many.
    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError>;
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
