//! The contract of a provider, on bytes.
//!
//! There are three small traits. [`MessagingService`] is the path of every message; [`QueueAdmin`] and [`DeadLetters`]
//! are for administration. A provider implements the required methods. The short forms are provided by the trait, so
//! that every provider has one send path, one claim path and one settle path.

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

/// The result of each row of a batch, in the order of the rows.
pub type RowResults<T> = Vec<Result<T, MessagingError>>;

/// The result of [`MessagingService::settle_and_receive`].
#[derive(Debug)]
pub struct SettledAndReceived {
    /// The results of the settlements.
    pub settled: RowResults<()>,
    /// The new messages. The settlements are valid even if this failed.
    pub received: Result<Vec<QueuedMessage>, MessagingError>,
}

/// Whether the lease may still be held after a settlement failed with this error.
pub fn is_still_leased(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

/// Send, receive, settle: the lifecycle of a message.
///
/// The outer error of a batch means that no row was executed, unless it is `OutcomeUnknown`, which names the rows that
/// may have been. The error of a row concerns only that row.
#[async_trait]
pub trait MessagingService: Send + Sync + 'static {
    /// The provider's name, in receipts, errors and metrics.
    fn provider_name(&self) -> &'static str;

    /// The capabilities of the provider.
    fn capabilities(&self) -> &Capabilities;

    /// Creates a queue unless it exists.
    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError>;

    /// Creates the queues that do not exist.
    async fn ensure_queues(&self, queues: &[QueueName], deadline: Deadline) -> Result<(), MessagingError> {
        for queue in queues {
            self.ensure_queue(queue, deadline).await?;
        }
        Ok(())
    }

    /// Sends messages, in order. A message has its id as result once it is durable.
    ///
    /// The sender keeps ids unique: an id that is sent twice without a dedup key names two messages, and operations by
    /// id use the older one.
    ///
    /// If the dedup key of a message is taken, its result is the id of the message that has the key.
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
    /// A queue that does not exist is empty. Messages past their delivery limit or expiry are dead-lettered and do not
    /// count towards `max`.
    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError>;

    /// Settles messages. A row whose lease has ended has the result `VisibilityExpired` and changes nothing.
    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError>;

    /// Settles one message of this queue.
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
    /// Takes the message or its receipt. If the call fails, a message passed by value is lost to the caller until its
    /// lease expires; pass `&message` to keep it.
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

    /// Gives one message back: retries, releases or dead-letters it.
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

    /// Settles messages and leases the next ones, from one or several queues; in one round trip if the provider can. A
    /// message that could not be settled is still leased, and reduces `options.max` by one.
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

    /// Sets the end of a lease to *now + extension* by the store's clock, and returns the receipt that is valid from
    /// now on.
    ///
    /// If the store tracks the end of leases, that is the same receipt. Otherwise the receipt contains the end: the
    /// returned one contains the new end, and other processes accept only that one until then. Both name the same lease
    /// (its token), so settling with either ends it.
    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError>;

    /// Leases one message by its id, by the rules of any receive: `None` if it does not exist, is not due, is leased,
    /// or is not the head of its key.
    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError>;

    /// A stream of hints that the queue may have a message to receive.
    ///
    /// A hint contains no message and promises none; it only ends a wait early. Pending hints are merged.
    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError>;

    /// Checks that the store answers.
    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError>;

    /// Closes this connection: refuses new calls, ends waiting receives, and finishes running calls.
    ///
    /// Leases stay with the owners of their receipts until they expire, if receipts are valid on other connections
    /// ([`Feature::PortableReceipts`]); otherwise their messages go back.
    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError>;
}

/// The result of a batch of one row.
pub(crate) fn only_row<T>(rows: RowResults<T>, operation: &'static str) -> Result<T, MessagingError> {
    rows.into_iter()
        .next()
        .unwrap_or_else(|| Err(MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: None }))
}

/// Administration of queues.
#[async_trait]
pub trait QueueAdmin: Send + Sync + 'static {
    /// All queues, by name, without dead-letter queues.
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError>;

    /// The counts of a queue; all zero if it does not exist.
    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError>;

    /// Which of the queues exist and are usable.
    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError>;

    /// Returns up to `limit` messages without leasing them, in send order.
    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError>;

    /// Returns a page of messages without leasing them, in send order. Messages that are added or removed between two
    /// pages do not move others to another page.
    ///
    /// Requires [`Feature::WaitingMessages`].
    async fn peek_page(
        &self,
        queue: &QueueName,
        query: &PeekQuery,
        deadline: Deadline,
    ) -> Result<PeekPage, MessagingError>;

    /// The kept failed attempts of a message in the queue or among its dead letters, oldest first. Empty if there are
    /// none or the message does not exist.
    ///
    /// The last [`KEPT_ATTEMPTS`] are kept until the message is acknowledged or purged. A redrive removes them.
    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError>;

    /// A page of the archive of a queue, newest end first, including purged dead letters. A page can be short or empty
    /// and still have a next page ([`archive`](crate::archive)).
    ///
    /// The store's settings decide what is archived and for how long ([`ArchivePolicy`](crate::ArchivePolicy)).
    async fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> Result<ArchivePage, MessagingError>;

    /// Sends an archived message to its queue again, and returns the new id. The header
    /// [`SENT_AGAIN_FROM`](crate::archive::SENT_AGAIN_FROM) of the new message names the archived one.
    async fn send_again(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError>;

    /// Makes a waiting message due now. If it is not the head of its key, it still waits for the head.
    ///
    /// This method and the next two refuse a leased message with [`MessagingError::MessageLeased`].
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

    /// Removes a waiting message for good. It is archived like a purged dead letter.
    async fn delete_waiting(&self, queue: &QueueName, id: MessageId, deadline: Deadline) -> Result<(), MessagingError>;

    /// Removes all messages of the queue that are not leased, and returns their number. Dead letters stay.
    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError>;

    /// Pauses receives from the queue. Sends and settles continue.
    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError>;

    /// Resumes receives from the queue.
    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError>;

    /// Removes the queue with all of its messages and dead letters. Leases on them end.
    ///
    /// A dead-letter queue cannot be removed separately; use [`DeadLetters::purge_dead_letters`] to empty it.
    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError>;
}

/// A message, as a peek shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeekedMessage {
    /// The message's id.
    pub id: MessageId,
    /// The body.
    pub body: Bytes,
    /// How the body is encoded.
    pub content_type: ContentType,
    /// Its headers.
    pub headers: Headers,
    /// The ordering key.
    pub ordering_key: Option<Key>,
    /// The priority.
    pub priority: Priority,
    /// The state.
    pub state: LiveState,
    /// Number of deliveries.
    pub deliveries_count: u32,
    /// Number of failed attempts.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it can next be received: its due time, or the end of its lease.
    pub next_attempt_at: Timestamp,
    /// The last known error text.
    pub last_error: Option<String>,
}

/// Number of failed attempts that are kept for a message.
pub const KEPT_ATTEMPTS: u32 = 10;

/// A failed attempt of a handler. An expired lease is not one, because its outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageAttempt {
    /// The number of the failure since the message was sent or redriven, from 1.
    pub attempt: u32,
    /// When the message was delivered.
    pub started_at: Option<Timestamp>,
    /// When the handler reported the failure.
    pub failed_at: Timestamp,
    /// The process that reported it, if the store records it.
    pub worker: Option<String>,
    /// The error text.
    pub error: Option<String>,
}

/// The dead letters of a queue. `queue` is the origin or its dead-letter queue.
#[async_trait]
pub trait DeadLetters: Send + Sync + 'static {
    /// Lists dead letters, oldest death first.
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError>;

    /// The ids of selected dead letters, oldest death first; with `error`, only those with exactly this error text.
    /// Nothing else is read if the store can search for it.
    async fn find_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, MessagingError> {
        let mut query = DeadLetterQuery { selection: selection.clone(), ..DeadLetterQuery::default() };
        let wanted: Option<HashSet<MessageId>> = match selection {
            // A store would search each page of a long list of ids from the beginning.
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

    /// Lists dead letters without bodies and headers, oldest death first, for counting and searching.
    async fn list_dead_letter_summaries(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterSummaryPage, MessagingError> {
        // Whole dead letters are read, so only a few at a time: a page of the largest would be a gigabyte.
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

    /// Edits a dead letter that is not leased, and returns its new state.
    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError>;

    /// Redrives dead letters: same ids, counts reset, at the tail of their keys.
    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError>;

    /// Removes dead letters that are not leased for good, and returns their number.
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
    /// Wraps a stream of hints.
    pub fn new(stream: impl Stream<Item = ()> + Send + 'static) -> Self {
        Self(Box::pin(stream))
    }

    /// Waits for the next hint; `None` at the end.
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

/// Refuses a message that needs a feature which the provider refuses.
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
