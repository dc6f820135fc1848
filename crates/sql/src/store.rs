//! What a database does for [`SqlProvider`](crate::SqlProvider): one method an operation.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider_core::coalescer::{ExtendRow, SendRow};
use postrider_core::{
    Begun, Capabilities, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Deadline, Envelope,
    IdempotencyKey, IdempotencyToken, MessageAttempt, MessageId, PeekedMessage, QueueName, QueueStats, ReceiptHandle,
    ReceiveOptions, RedriveReport, RowResults, Settlement, Standing,
};

use crate::undone::Undone;
use crate::wakes::Wakes;

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

/// Which messages of a queue go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Those that nobody has leased.
    Unleased,
    /// Every one.
    Everything,
}

/// A message that was there when a removal began: its row and its key.
pub type Present = (i64, Option<String>);

/// A part of a selection of dead letters: what died after `after`, in the order of deaths.
#[derive(Debug, Clone)]
pub struct Part {
    /// The queue, or its dead-letter queue.
    pub queue: QueueName,
    /// Which of its dead letters.
    pub selection: DeadLetterSelection,
    /// The death that was the last of the part before.
    pub after: i64,
    /// How many at most.
    pub limit: usize,
}

impl Part {
    /// Where the next part begins, if there is one, after one that ended with `last` and had `chosen` dead letters.
    pub fn next(&self, chosen: usize, last: Option<i64>) -> Option<i64> {
        match self.selection {
            DeadLetterSelection::Ids(_) => None,
            DeadLetterSelection::All | DeadLetterSelection::Reason(_) => last.filter(|_| chosen >= self.limit),
        }
    }
}

/// A database that keeps messages. Clones are the same store.
///
/// A method that changes something does so in one transaction, or in several of which each leaves the law kept.
pub trait SqlStore: Clone + Debug + Send + Sync + 'static {
    /// The provider's name in receipts and errors.
    const PROVIDER: &'static str;

    /// What a claim leaves to be done after its transaction.
    type Chores: Send;

    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Who waits for its queues in this process.
    fn wakes(&self) -> &Arc<Wakes>;

    /// How long a waiting receiver goes without a look of its own.
    fn poll_interval(&self) -> Duration;

    /// Whether a send or a redrive creates a queue that is missing.
    fn creates_queues(&self) -> bool;

    /// Somebody begins to wait for these queues: from now on, hear of what other processes send.
    fn listen(&self, queues: &[QueueName]) {
        let _ = queues;
    }

    /// Tells other processes at once what has not been told yet.
    fn flush(&self, deadline: Deadline) -> impl Future<Output = ()> + Send {
        let _ = deadline;
        std::future::ready(())
    }

    /// Whether the server answers.
    fn health_check(&self, deadline: Deadline) -> impl Future<Output = Result<(), Undone>> + Send;

    /// Lists a queue as existing.
    fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), Undone>> + Send;

    /// Stores messages.
    fn send(&self, rows: &[SendRow]) -> impl Future<Output = Result<RowResults<MessageId>, Undone>> + Send;

    /// Ends leases.
    fn settle(&self, settlements: &[Settlement]) -> impl Future<Output = Result<RowResults<()>, Undone>> + Send;

    /// Extends leases.
    fn extend(&self, rows: &[ExtendRow]) -> impl Future<Output = Result<RowResults<()>, Undone>> + Send;

    /// Gives leases back that nobody will use.
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

    /// Leases one message by its id, if it may be received now.
    fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Option<Claimed>, Undone>> + Send;

    /// When something in a queue can be received.
    fn next_due(&self, queue: &QueueName) -> impl Future<Output = Result<Due, Undone>> + Send;

    /// All queues.
    fn list_queues(&self, deadline: Deadline) -> impl Future<Output = Result<Vec<QueueName>, Undone>> + Send;

    /// Those of the queues that exist, by the names of their origins.
    fn queues_exist(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> impl Future<Output = Result<HashSet<String>, Undone>> + Send;

    /// What is in a queue.
    fn stats(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<QueueStats, Undone>> + Send;

    /// The messages that will be received next.
    fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<PeekedMessage>, Undone>> + Send;

    /// The failed attempts that are kept of a message, oldest first. Asked only of a store that keeps a history.
    fn attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<MessageAttempt>, Undone>> + Send {
        let _ = (queue, id, deadline);
        std::future::ready(Ok(Vec::new()))
    }

    /// Holds a queue's messages back, or lets them go again.
    fn set_paused(
        &self,
        queue: &QueueName,
        is_paused: bool,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Undone>> + Send;

    /// Takes a queue off the list. Its messages are removed apart, before or after.
    fn unlist(&self, queue: &QueueName, deadline: Deadline) -> impl Future<Output = Result<(), Undone>> + Send;

    /// The messages of a queue at this moment, in chunks. A removal goes through these and no others, or new ones would
    /// keep it going for ever.
    fn present(
        &self,
        operation: &'static str,
        queue: &QueueName,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Vec<Present>>, Undone>> + Send;

    /// Removes those of a queue's messages that are still there, and answers how many.
    fn remove_some(
        &self,
        operation: &'static str,
        queue: &QueueName,
        chosen: &[Present],
        removal: Removal,
    ) -> impl Future<Output = Result<u64, Undone>> + Send;

    /// A page of dead letters.
    fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> impl Future<Output = Result<DeadLetterPage, Undone>> + Send;

    /// Changes a dead letter.
    fn edit_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: &DeadLetterEdit,
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), Undone>> + Send;

    /// What a redrive would do.
    fn rehearse(&self, part: &Part, target: &QueueName) -> impl Future<Output = Result<RedriveReport, Undone>> + Send;

    /// Brings dead letters back to life. Answers where the next part begins as well.
    fn redrive(
        &self,
        part: &Part,
        target: &QueueName,
    ) -> impl Future<Output = Result<(RedriveReport, Option<i64>), Undone>> + Send;

    /// Removes dead letters for good. Answers how many, and where the next part begins.
    fn purge_dead(&self, part: &Part) -> impl Future<Output = Result<(u64, Option<i64>), Undone>> + Send;
}

/// A change to a record of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordChange {
    /// The work goes on for so long.
    Extend(Duration),
    /// The work is done.
    Complete,
    /// The work was given up.
    Abandon,
}

impl RecordChange {
    /// What it is called in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Extend(_) => "extend",
            Self::Complete => "complete",
            Self::Abandon => "abandon",
        }
    }
}

/// A database that also keeps records of work that was done.
pub trait SqlRecords: SqlStore {
    /// Begins work, unless it is done or somebody is at it.
    fn begin_work(
        &self,
        key: &IdempotencyKey,
        lease: Duration,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Begun, Undone>> + Send;

    /// Changes the record of work that the token's holder began.
    fn change_work(
        &self,
        token: &IdempotencyToken,
        change: RecordChange,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Standing, Undone>> + Send;

    /// Forgets records that are older than this, and answers how many.
    fn forget_work(&self, older_than: Duration, deadline: Deadline)
    -> impl Future<Output = Result<u64, Undone>> + Send;
}
