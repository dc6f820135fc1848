//! What a store does for [`Provider`](crate::Provider): one method an operation.

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
    /// Its bytes.
    pub body: Bytes,
    /// What belongs to it.
    pub envelope: Envelope,
    /// The lease.
    pub receipt: ReceiptHandle,
}

/// Turns leased messages into messages that go back when they are dropped.
#[derive(Clone)]
pub struct Deliver(pub(crate) Arc<dyn ReturnLease>);

impl fmt::Debug for Deliver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deliver")
    }
}

impl Deliver {
    /// The message for its caller.
    pub fn message(&self, claimed: Claimed) -> QueuedMessage {
        QueuedMessage::new(claimed.body, claimed.envelope, claimed.receipt, self.0.clone())
    }
}

/// One look at queues: settle, then lease what is due.
#[derive(Debug)]
pub struct Look {
    /// Leases to end first, in the transaction of the claim where there is one; at most [`Store::MOST_TOGETHER`].
    pub settlements: Vec<Settlement>,
    /// The queues to lease from, in this order. Empty when the connection is closing.
    pub queues: Vec<QueueName>,
    /// How many messages, and for how long.
    pub options: ReceiveOptions,
    /// When the answer must be there.
    pub deadline: Deadline,
    /// How long a store that waits by itself waits.
    pub patience: Patience,
    /// Makes messages of leases.
    pub deliver: Deliver,
}

/// What a look brought.
#[derive(Debug)]
pub struct Looked {
    /// What became of the settlements, in their order.
    pub settled: RowResults<()>,
    /// What was leased.
    pub messages: Vec<QueuedMessage>,
    /// Why nothing could be leased, when the settlements have their results all the same.
    pub failed: Option<MessagingError>,
    /// When something becomes due, where the store says so; [`Timestamp::MAX`] is never.
    pub next: Timestamp,
    /// Whether there is more to be done now: the next look follows without a wait.
    pub is_cut_short: bool,
    /// Whether something is about to be due, so that even a receive without a wait waits for it.
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
    /// Every one.
    Everything,
}

/// A part of a selection of dead letters: what died after `after`, in the order of deaths.
#[derive(Debug, Clone)]
pub struct DeadPart {
    /// The queue, or its dead-letter queue.
    pub queue: QueueName,
    /// Which of its dead letters.
    pub selection: DeadLetterSelection,
    /// The death that was the last of the part before.
    pub after: i64,
    /// Upper bound of the letters.
    pub limit: usize,
    /// Messages that the parts before have revived. One that has died again is left alone.
    pub revived: Arc<HashSet<MessageId>>,
}

impl DeadPart {
    /// The part after one that had `chosen` dead letters and ended with `last`, if there is one.
    pub fn next(&self, chosen: usize, last: Option<i64>) -> Option<i64> {
        match self.selection {
            DeadLetterSelection::Ids(_) => None,
            DeadLetterSelection::All | DeadLetterSelection::Reason(_) => last.filter(|_| chosen >= self.limit),
        }
    }
}

/// A connection to a store. Clones are the same connection.
///
/// A method that changes something does so in one transaction, or in several of which each leaves the law kept. Errors
/// of a caller's own mistake convert into [`Undone`] as they are.
pub trait Store: Clone + Debug + Send + Sync + 'static {
    /// The provider's name in receipts and errors.
    const PROVIDER: &'static str;

    /// Settlements that may share the transaction of a claim; more of them, and all where it is 0, go in batches before.
    const MOST_TOGETHER: usize;

    /// Dead letters of one redrive or purge step. A store that takes the whole selection at once says `usize::MAX`.
    const DEAD_CHUNK: usize;

    /// Whether one look can be at several queues. A store that pushes looks at one.
    const LOOKS_AT_SEVERAL: bool = true;

    /// Whether an operation runs in a task of its own, so that it is brought to its end when its caller leaves. A store
    /// whose writer does that already says `false`.
    const SPAWNS: bool = true;

    /// A receiver's registration for wake-ups.
    type Listener: Debug + Send + Sync + 'static;

    /// Messages of a queue that are removed in one step.
    type Chunk: Send + 'static;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Whether a send or a redrive creates a missing queue.
    fn creates_queues(&self) -> bool;

    /// Starts the batches of a connection: the lane that keeps the order, then further ones for messages without keys.
    fn batches(&self) -> Result<Vec<Coalescer>, MessagingError>;

    /// Messages were stored: waits until they outlast a crash, if that takes longer than the batch. An error means that
    /// it is unknown.
    fn sent(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send {
        let _ = (queue, deadline);
        std::future::ready(Ok(()))
    }

    /// Takes back the leases of dropped messages.
    fn returns(&self) -> Arc<dyn ReturnLease>;

    /// Releases leases that no caller has seen: their deliveries are not counted.
    /// Not asked of a store that brings its operations to their end by itself.
    fn release(&self, receipts: Vec<ReceiptHandle>) -> impl Future<Output = ()> + Send {
        drop(receipts);
        std::future::ready(())
    }

    /// Whether the store answers.
    fn health_check(&self, deadline: Deadline) -> impl Future<Output = Result<(), Undone>> + Send;

    /// Ends the connection, after its last operation.
    fn close(&self, deadline: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send {
        let _ = deadline;
        std::future::ready(Ok(()))
    }

    // --- Receiving ---

    /// Registers a receiver: from now on it hears of every change in these queues. `None` where a look waits by itself,
    /// as long as its [`Patience`] lasts.
    fn listen(&self, queues: &[QueueName]) -> Option<Self::Listener>;

    /// A look begins: whatever happens from now on is news for the listener.
    fn begin_look(&self, listener: &Self::Listener) {
        let _ = listener;
    }

    /// A look is over, and the next one comes at `next` at the latest.
    fn end_look(&self, listener: &Self::Listener, next: Timestamp) {
        let _ = (listener, next);
    }

    /// Settles and leases.
    fn look(&self, look: Look) -> impl Future<Output = Result<Looked, Undone>> + Send;

    /// Waits until another look may find something.
    fn news(&self, listener: &Self::Listener, queues: &[QueueName], next: Timestamp)
    -> impl Future<Output = ()> + Send;

    /// How long a receive waits for what is imminent.
    fn imminent_within(&self) -> Duration {
        Duration::ZERO
    }

    /// Leases one message by its id, if it may be received now.
    fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deliver: &Deliver,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<QueuedMessage>, Undone>> + Send;

    /// Hints, until the connection closes: one for every change that could have made a message receivable, and one
    /// whenever a time comes at which one becomes due.
    fn wake_ups(
        &self,
        queue: &QueueName,
        closing: watch::Receiver<bool>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<WakeUps, MessagingError>> + Send;

    // --- Queues ---

    /// Lists a queue as existing.
    fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), Undone>> + Send;

    /// All queues.
    fn list_queues(&self, deadline: Deadline) -> impl Future<Output = Result<Vec<QueueName>, Undone>> + Send;

    /// Which of the queues are there and usable.
    fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> impl Future<Output = Result<QueueHealthReport, Undone>> + Send;

    /// What is in a queue.
    fn stats(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<QueueStats, Undone>> + Send;

    /// The messages that will be received next.
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

    /// Messages behind a row, with the numbers of their rows, in send order. Asked only of a store that has actions on
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

    /// The failed attempts that are kept of a message, oldest first. Asked only of a store that keeps them.
    fn attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<MessageAttempt>, Undone>> + Send {
        let _ = (queue, id, deadline);
        std::future::ready(Ok(Vec::new()))
    }

    /// A page of the messages that are kept after their end. Asked only of a store that keeps them.
    fn archived(
        &self,
        queue: &QueueName,
        query: &ArchiveQuery,
        deadline: Deadline,
    ) -> impl Future<Output = Result<ArchivePage, Undone>> + Send {
        let _ = (queue, query, deadline);
        std::future::ready(Ok(ArchivePage::default()))
    }

    /// Makes a waiting message due. Asked only of a store that has actions on waiting messages.
    fn deliver_now(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Undone>> + Send {
        let _ = (queue, id, deadline);
        std::future::ready(Ok(()))
    }

    /// Moves a waiting message to the dead letters. Asked only of a store that has actions on waiting messages.
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

    /// Holds a queue's messages back, or lets them go again.
    fn set_paused(
        &self,
        queue: &QueueName,
        is_paused: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Undone>> + Send;

    /// The messages of a queue at this moment, in chunks. A removal goes through these and no others, or new messages
    /// would keep it going for ever.
    fn present(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Self::Chunk>, Undone>> + Send;

    /// Removes those messages of a chunk that are still there; answers their number.
    fn remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chunk: Self::Chunk,
        removal: Removal,
        deadline: Deadline,
    ) -> impl Future<Output = Result<u64, Undone>> + Send;

    /// Takes a queue off the list. Answers whether its messages are still there, to be removed in chunks.
    fn unlist(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<bool, Undone>> + Send;

    // --- Dead letters ---

    /// A selection as the store may be asked for it: without what it cannot hold, which no letter can have died of.
    fn findable(selection: &DeadLetterSelection) -> DeadLetterSelection {
        selection.clone()
    }

    /// A page of dead letters. Without `bodies` a store may leave bodies and headers empty.
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

    /// The ids of the dead letters of a selection, oldest death first; with an error's text, of those that died with
    /// exactly this one. `None` where the store can only list them.
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

    /// Changes a dead letter, and answers it as it is now.
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

    /// Revives dead letters. Answers where the next part begins as well.
    fn redrive(
        &self,
        part: &DeadPart,
        target: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(RedriveReport, Option<i64>), Undone>> + Send;

    /// Removes dead letters for good. Answers their number, and where the next part begins.
    fn purge_dead(
        &self,
        part: &DeadPart,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(u64, Option<i64>), Undone>> + Send;
}
