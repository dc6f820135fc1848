//! What a database does for tasks.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use super::claim::{ClaimAnswer, ClaimTasks, LostLease, TaskLease};
use super::finish::{Finish, FinishedAndClaimed, Heartbeat, TaskStanding};
use super::names::{TaskId, TaskType};
use super::new_task::{Created, NewTask};
use super::query::{TaskPage, TaskQuery};
use super::record::{PayloadRevision, Task, TaskAttempt};
use super::routes::TaskRoutes;
use super::state::TaskState;
use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::service::{RowResults, WakeUps};

/// What one round of the enqueuer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enqueued {
    /// How many tasks were sent on their way.
    pub count: usize,
    /// When fewer than the limit were: how long until the next is due, as far as is known.
    pub next_due: Option<Duration>,
}

/// Messages of the outbox that were taken to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutboxBatch {
    /// The messages, oldest first.
    pub rows: Vec<OutboxRow>,
    /// When fewer than the limit were taken: how long until the next is due, as far as is known.
    pub next_due: Option<Duration>,
}

/// A message of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its number in the outbox.
    pub id: i64,
    /// Of whoever has taken it: only that one may say that it was sent.
    pub token: i64,
    /// Where it goes.
    pub queue: QueueName,
    /// What it says. Its id is the same each time that it is taken.
    pub message: Message,
}

/// Tasks of a type that have been on their way for longer than a message should take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranded {
    /// The type.
    pub task_type: TaskType,
    /// How many tasks of the type are ENQUEUED and due, those that were sent lately included.
    pub enqueued: u64,
    /// How many of their messages are still in the outbox.
    pub in_outbox: u64,
    /// How many tasks of the type are PROCESSING: their messages are in flight as well. Counted up to the same bound.
    pub processing: u64,
}

/// What a hint is wanted of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskNotice {
    /// A task of one of these types may be claimable.
    Claimable(Vec<TaskType>),
    /// A task may be waiting to be sent on its way, or a message in the outbox.
    ToSend,
}

/// Keeps tasks: each method is one transaction, by the store's clock. A batch is carried out whole or not at all, except
/// where each row has an answer of its own.
///
/// Whatever belongs to a transition is part of its transaction: the history of attempts, the message that delivers a
/// retry, the event of a death, the turn of the next task of an ordering key. Messages and events go where
/// [`routes`](TaskStore::routes) say.
pub trait TaskStore: Send + Sync + 'static {
    /// The store's name, in errors and metrics.
    fn store_name(&self) -> &'static str;

    /// How ids reach workers, and where deaths are told.
    fn routes(&self) -> &TaskRoutes;

    /// The largest payload or result that is accepted.
    fn max_payload_bytes(&self) -> usize;

    /// Makes tasks, in their order. A task whose idempotency key is taken answers the task that has it.
    fn create(
        &self,
        tasks: Vec<NewTask>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<RowResults<Created>, MessagingError>> + Send;

    /// Ends attempts, and claims what is due: PENDING or ENQUEUED, the first of its ordering key, not past its deadline;
    /// the most urgent first, and now and then the least urgent.
    fn finish_and_claim(
        &self,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<FinishedAndClaimed, MessagingError>> + Send;

    /// Ends attempts.
    fn finish(
        &self,
        finished: Vec<Finish>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<TaskStanding>, MessagingError>> + Send {
        async move { Ok(self.finish_and_claim(finished, None, deadline).await?.finished) }
    }

    /// Claims what is due.
    fn claim(
        &self,
        claim: ClaimTasks,
        deadline: Deadline,
    ) -> impl Future<Output = Result<FinishedAndClaimed, MessagingError>> + Send {
        async move { self.finish_and_claim(Vec::new(), Some(claim), deadline).await }
    }

    /// Claims these tasks, each by the same rules. The same id twice is claimed once.
    fn claim_by_id(
        &self,
        ids: &[TaskId],
        lease: Duration,
        worker: &str,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<ClaimAnswer>, MessagingError>> + Send;

    /// Lets leases end at now + `lease`, and keeps what is told of progress.
    fn heartbeat(
        &self,
        heartbeats: Vec<Heartbeat>,
        lease: Duration,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<TaskStanding>, MessagingError>> + Send;

    /// Whether leases are still held. Changes nothing.
    fn standings(
        &self,
        leases: &[TaskLease],
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<TaskStanding>, MessagingError>> + Send;

    /// Leases that have run out, the longest ago first. Changes nothing.
    fn lost_leases(
        &self,
        limit: usize,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<LostLease>, MessagingError>> + Send;

    /// Ends attempts whose lease has run out, as [`Retry`](super::TaskOutcome::Retry) or
    /// [`Dead`](super::TaskOutcome::Dead). One that was renewed or ended meanwhile is left alone.
    fn reap(
        &self,
        lost: Vec<Finish>,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<TaskStanding>, MessagingError>> + Send;

    /// Tasks whose deadline has passed die, worked on or not. Answers up to `limit` of them.
    fn expire_overdue(
        &self,
        limit: usize,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<TaskId>, MessagingError>> + Send;

    /// Calls tasks off. Each answers the state that it left.
    fn cancel(
        &self,
        ids: &[TaskId],
        deadline: Deadline,
    ) -> impl Future<Output = Result<RowResults<TaskState>, MessagingError>> + Send;

    /// Makes tasks that wait for their time due now.
    fn run_now(
        &self,
        ids: &[TaskId],
        deadline: Deadline,
    ) -> impl Future<Output = Result<RowResults<()>, MessagingError>> + Send;

    /// Brings dead tasks back: PENDING, due now, with all their attempts before them, at the end of their ordering key
    /// and without the deadline that they may have missed.
    fn replay(
        &self,
        ids: &[TaskId],
        deadline: Deadline,
    ) -> impl Future<Output = Result<RowResults<()>, MessagingError>> + Send;

    /// Changes the payload of a dead task and keeps the one before. Answers the number of the new revision.
    fn edit_payload(
        &self,
        id: TaskId,
        payload: Bytes,
        deadline: Deadline,
    ) -> impl Future<Output = Result<u32, MessagingError>> + Send;

    /// Payloads that a task had before, oldest first.
    fn revisions(
        &self,
        id: TaskId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<PayloadRevision>, MessagingError>> + Send;

    /// Reads a task.
    fn get(&self, id: TaskId, deadline: Deadline) -> impl Future<Output = Result<Option<Task>, MessagingError>> + Send;

    /// Every attempt of a task, oldest first.
    fn attempts(
        &self,
        id: TaskId,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<TaskAttempt>, MessagingError>> + Send;

    /// Lists tasks, newest first.
    fn list(
        &self,
        query: &TaskQuery,
        deadline: Deadline,
    ) -> impl Future<Output = Result<TaskPage, MessagingError>> + Send;

    /// Sends up to `limit` tasks on their way that are PENDING and due: ENQUEUED, with a message to their queue.
    fn enqueue_due(
        &self,
        limit: usize,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Enqueued, MessagingError>> + Send;

    /// Types of which some task has been ENQUEUED, due and unclaimed for longer than `grace`.
    fn stranded(
        &self,
        grace: Duration,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<Stranded>, MessagingError>> + Send;

    /// Sends up to `limit` of a type's tasks again that have been ENQUEUED, due and unclaimed for longer than `grace`, the
    /// longest due first. Answers how many.
    fn resend(
        &self,
        task_type: &TaskType,
        limit: usize,
        grace: Duration,
        deadline: Deadline,
    ) -> impl Future<Output = Result<usize, MessagingError>> + Send;

    /// Takes up to `limit` due messages out of the outbox to be sent. Nobody else gets them for as long as `lease`.
    fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> impl Future<Output = Result<OutboxBatch, MessagingError>> + Send;

    /// These messages were sent, for certain. Rows that somebody else has taken since stay.
    fn outbox_sent(
        &self,
        rows: &[(i64, i64)],
        deadline: Deadline,
    ) -> impl Future<Output = Result<(), MessagingError>> + Send;

    /// Removes tasks that SUCCEEDED or were CANCELED at least `older_than` ago, with their history. Dead tasks stay.
    /// Answers how many.
    fn forget_finished(
        &self,
        older_than: Duration,
        deadline: Deadline,
    ) -> impl Future<Output = Result<u64, MessagingError>> + Send;

    /// A stream of hints, here and from other processes. A hint promises nothing; it only shortens a wait.
    fn subscribe_tasks(
        &self,
        notice: TaskNotice,
        deadline: Deadline,
    ) -> impl Future<Output = Result<WakeUps, MessagingError>> + Send;
}
