//! The operations of a store for [`Provider`](crate::Provider), one method each.

use std::collections::HashSet;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider_core::coalescer::Coalescer;
use postrider_core::{
    ArchivePage, ArchiveQuery, Capabilities, DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery,
    DeadLetterReason, DeadLetterSelection, Deadline, Envelope, MessageAttempt, MessageId, MessagingError,
    PeekedMessage, QueueHealthReport, QueueName, QueueStats, QueuedMessage, ReceiptHandle, ReceiveOptions,
    RedriveReport, ReturnLease, RowResults, Settlement, Timestamp, WakeUps,
};
use tokio::sync::watch;

use crate::patience::Patience;
use crate::undone::Undone;

/// A message that was leased.
#[derive(Debug)]
pub struct Claimed {
    /// The body.
    pub body: Bytes,
    /// Headers, keys, counts and times.
    pub envelope: Envelope,
    /// The lease.
    pub receipt: ReceiptHandle,
}

/// Turns leased messages into messages whose lease goes back when they are dropped.
#[derive(Clone)]
pub struct Deliver(pub(crate) Arc<dyn ReturnLease>);

impl fmt::Debug for Deliver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deliver")
    }
}

impl Deliver {
    /// The message for the caller.
    pub fn message(&self, claimed: Claimed) -> QueuedMessage {
        QueuedMessage::new(claimed.body, claimed.envelope, claimed.receipt, self.0.clone())
    }
}

/// One look at queues: settles, then leases what is due.
#[derive(Debug)]
pub struct Look {
    /// Settlements to carry out first, in the transaction of the claim where there is one; at most
    /// [`Store::MOST_TOGETHER`].
    pub settlements: Vec<Settlement>,
    /// The queues to lease from, in this order. Empty when the connection is closing.
    pub queues: Vec<QueueName>,
    /// Number of messages, lease duration and limits.
    pub options: ReceiveOptions,
    /// The deadline of the caller.
    pub deadline: Deadline,
    /// The bounds of the wait, for a store that waits inside a look.
    pub patience: Patience,
    /// Turns leases into messages.
    pub deliver: Deliver,
}

/// The result of a look.
#[derive(Debug)]
pub struct Looked {
    /// The results of the settlements, in their order.
    pub settled: RowResults<()>,
    /// The leased messages.
    pub messages: Vec<QueuedMessage>,
    /// Why nothing could be leased, although the settlements have results.
    pub failed: Option<MessagingError>,
    /// The next due time, if the store reports it; [`Timestamp::MAX`] means never.
    pub next: Timestamp,
    /// Whether the look stopped early: the next one follows without a wait.
    pub is_cut_short: bool,
    /// Whether a message is due so soon that even a receive without a wait waits for it.
    pub is_imminent: bool,
}

impl Default for Looked {
    fn default() -> Self {
        Self {
            settled: Vec::new(),
            messages: Vec::new(),
            failed: None,
            next: Timestamp::MAX,
            is_cut_short: false,
            is_imminent: false,
        }
    }
}

/// Which messages of a queue are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Those without a valid lease.
    Unleased,
    /// All messages.
    Everything,
}

/// A part of a selection of dead letters: those after `after`, in the order of deaths.
#[derive(Debug, Clone)]
pub struct DeadPart {
    /// The queue, or its dead-letter queue.
    pub queue: QueueName,
    /// The selection of its dead letters.
    pub selection: DeadLetterSelection,
    /// The position of the last death in the previous part.
    pub after: i64,
    /// Upper bound of the dead letters in this part.
    pub limit: usize,
    /// Messages that earlier parts have redriven. One that is dead again is left alone.
    pub revived: Arc<HashSet<MessageId>>,
}

impl DeadPart {
    /// The position at which the next part begins, after one with `chosen` dead letters that ended with `last`; `None`
    /// at the end.
    pub fn next(&self, chosen: usize, last: Option<i64>) -> Option<i64> {
        match self.selection {
            DeadLetterSelection::Ids(_) => None,
            DeadLetterSelection::All | DeadLetterSelection::Reason(_) => last.filter(|_| chosen >= self.limit),
        }
    }
}

/// A connection to a store. Clones share the connection.
///
/// A method that changes something does so in one transaction, or in several that each keep the law. An error of the
/// caller converts into [`Undone`] unchanged.
pub trait Store: Clone + Debug + Send + Sync + 'static {
    /// The provider's name in receipts and errors.
    const PROVIDER: &'static str;

    /// Upper bound of the settlements that share the transaction of a claim. More are settled in batches before the
    /// claim; with 0, all are.
    const MOST_TOGETHER: usize;

    /// Upper bound of the dead letters of one redrive or purge step. `usize::MAX` for a store that takes the whole
    /// selection at once.
    const DEAD_CHUNK: usize;

    /// Whether one look can cover several queues.
    const LOOKS_AT_SEVERAL: bool = true;

    /// Whether an operation runs in its own task, so that it ends properly when its caller leaves. `false` for a store
    /// whose writer already ensures that.
    const SPAWNS: bool = true;

    /// A receiver's registration for wake-ups.
    type Listener: Debug + Send + Sync + 'static;

    /// Messages of a queue that are removed in one step.
    type Chunk: Send + 'static;

    /// The capabilities of the store.
    fn capabilities(&self) -> &Capabilities;

    /// Whether a send or a redrive creates a missing queue.
    fn creates_queues(&self) -> bool;

    /// Starts the coalescers of a connection: the ordered lane first, then further ones for messages without ordering
    /// keys.
    fn batches(&self) -> Result<Vec<Coalescer>, MessagingError>;

    /// Called after messages were stored; waits until they survive a crash, if that takes longer than the batch. An
    /// error means that the outcome is unknown.
    fn sent(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send {
        let _ = (queue, deadline);
        std::future::ready(Ok(()))
    }

    /// Returns the leases of dropped messages.
    fn returns(&self) -> Arc<dyn ReturnLease>;

    /// Releases leases whose messages no caller has seen: their deliveries are not counted. Not called if
    /// [`Store::SPAWNS`] is `false`.
    fn release(&self, receipts: Vec<ReceiptHandle>) -> impl Future<Output = ()> + Send {
        drop(receipts);
        std::future::ready(())
    }

    /// Checks that the store answers.
    fn health_check(&self, deadline: Deadline) -> impl Future<Output = Result<(), Undone>> + Send;

    /// Closes the connection, after its last operation.
    fn close(&self, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send {
        let _ = deadline;
        std::future::ready(Ok(()))
    }

    // --- Receiving ---

    /// Registers a receiver for wake-ups of these queues. `None` if a look itself waits, within its [`Patience`].
    fn listen(&self, queues: &[QueueName]) -> Option<Self::Listener>;

    /// Called when a look begins: every later change must wake the listener.
    fn begin_look(&self, listener: &Self::Listener) {
        let _ = listener;
    }

    /// Called when a look has ended; the next one follows at `next` at the latest.
    fn end_look(&self, listener: &Self::Listener, next: Timestamp) {
        let _ = (listener, next);
    }

    /// Settles and leases.
    fn look(&self, look: Look) -> impl Future<Output = Result<Looked, Undone>> + Send;

    /// Waits until another look may find something.
    fn news(&self, listener: &Self::Listener, queues: &[QueueName], next: Timestamp)
    -> impl Future<Output = ()> + Send;

    /// How long a receive waits for a message that is about to be due.
    fn imminent_within(&self) -> Duration {
        Duration::ZERO
    }

    /// Leases one message by its id, if it can be received now.
    fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deliver: &Deliver,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<QueuedMessage>, Undone>> + Send;

    /// Hints until the connection closes: one for each change that may have made a message receivable, and one at each
    /// time at which a message becomes due.
    fn wake_ups(
        &self,
        queue: &QueueName,
        closing: watch::Receiver<bool>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<WakeUps, MessagingError>> + Send;

    // --- Queues ---

    /// Creates a queue unless it exists.
    fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), Undone>> + Send;

    /// All queues.
    fn list_queues(&self, deadline: Deadline) -> impl Future<Output = Result<Vec<QueueName>, Undone>> + Send;

    /// Which of the queues exist and are usable.
    fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> impl Future<Output = Result<QueueHealthReport, Undone>> + Send;

    /// The counts of a queue.
    fn stats(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<QueueStats, Undone>> + Send;

    /// The messages of a queue, in send order.
    fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<PeekedMessage>, Undone>> + Send {
        async move {
            let rows = self.peek_rows(queue, 0, limit, deadline).await?;
            Ok(rows.into_iter().map(|(_, message)| message).collect())
        }
    }

    /// Messages after a row, with their row numbers, in send order. Called only if the store supports actions on
    /// waiting messages.
    fn peek_rows(
        &self,
        queue: &QueueName,
        after: i64,
        limit: usize,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<(i64, PeekedMessage)>, Undone>> + Send {
        let _ = (queue, after, limit, deadline);
        std::future::ready(Ok(Vec::new()))
    }

    /// The kept failed attempts of a message, oldest first. Called only if the store keeps them.
    fn attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<MessageAttempt>, Undone>> + Send {
        let _ = (queue, id, deadline);
        std::future::ready(Ok(Vec::new()))
    }

    /// A page of the archive. Called only if the store has one.
    fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> impl Future<Output = Result<ArchivePage, Undone>> + Send {
        let _ = (queue, query, deadline);
        std::future::ready(Ok(ArchivePage::default()))
    }

    /// Makes a waiting message due. Called only if the store supports actions on waiting messages.
    fn deliver_now(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Undone>> + Send {
        let _ = (queue, id, deadline);
        std::future::ready(Ok(()))
    }

    /// Moves a waiting message to the dead letters. Called only if the store supports actions on waiting messages.
    fn dead_letter_waiting(
        &self,
        queue: &QueueName,
        id: MessageId,
        reason: DeadLetterReason,
        error: Option<String>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Undone>> + Send {
        let _ = (queue, id, reason, error, deadline);
        std::future::ready(Ok(()))
    }

    /// Pauses or resumes a queue.
    fn set_paused(
        &self,
        queue: &QueueName,
        is_paused: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Undone>> + Send;

    /// The messages of a queue at this moment, in chunks. A removal covers only these, because it would never end if it
    /// included new messages.
    fn present(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Self::Chunk>, Undone>> + Send;

    /// Removes the messages of a chunk that still exist; returns their number.
    fn remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chunk: Self::Chunk,
        removal: Removal,
        deadline: Deadline,
    ) -> impl Future<Output = Result<u64, Undone>> + Send;

    /// Removes a queue from the list. Returns whether its messages remain, to be removed in chunks.
    fn unlist(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<bool, Undone>> + Send;

    // --- Dead letters ---

    /// The selection without what the store cannot hold, and which therefore matches nothing.
    fn findable(selection: &DeadLetterSelection) -> DeadLetterSelection {
        selection.clone()
    }

    /// A page of dead letters. Without `bodies`, a store may leave bodies and headers empty.
    fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        bodies: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Result<DeadLetterPage, Undone>> + Send;

    /// One dead letter.
    fn get_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<DeadLetter>, Undone>> + Send {
        let selection = DeadLetterSelection::Ids(vec![id]);
        async move {
            let query = DeadLetterQuery { selection, limit: 1, ..DeadLetterQuery::default() };
            Ok(self.list_dead(queue, &query, true, deadline).await?.letters.pop())
        }
    }

    /// The ids of the selected dead letters, oldest death first; with `error`, only those with exactly this error text.
    /// `None` if the store can only list them.
    fn find_dead(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<Vec<MessageId>>, Undone>> + Send {
        let _ = (queue, selection, error, deadline);
        std::future::ready(Ok(None))
    }

    /// Edits a dead letter, and returns its new state.
    fn edit_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> impl Future<Output = Result<DeadLetter, Undone>> + Send;

    /// What a redrive would do.
    fn rehearse(
        &self,
        part: &DeadPart,
        target: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<RedriveReport, Undone>> + Send;

    /// Redrives dead letters. Also returns where the next part begins.
    fn redrive(
        &self,
        part: &DeadPart,
        target: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(RedriveReport, Option<i64>), Undone>> + Send;

    /// Purges dead letters. Returns their number, and where the next part begins.
    fn purge_dead(
        &self,
        part: &DeadPart,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(u64, Option<i64>), Undone>> + Send;
}
