//! What a database does for tasks.

use std::time::Duration;

use async_trait::async_trait;
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
use crate::stats::Measured;

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

/// Bound of the ended tasks of a state that [`TaskStore::counts`] looks at, newest first.
pub const MOST_ENDED_COUNTED: u32 = 20_000;

/// How many tasks of a type are in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskCount {
    /// The type.
    pub task_type: TaskType,
    /// The state.
    pub state: TaskState,
    /// How many. Approximate where ended tasks were not all looked at: then there are at least as many.
    pub count: Measured<u64>,
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
#[async_trait]
pub trait TaskStore: Send + Sync + 'static {
    /// The store's name, in errors and metrics.
    fn store_name(&self) -> &'static str;

    /// How ids reach workers, and where deaths are told.
    fn routes(&self) -> &TaskRoutes;

    /// The largest payload or result that is accepted.
    fn max_payload_bytes(&self) -> usize;

    /// Makes tasks, in their order. A task whose idempotency key is taken answers the task that has it.
    async fn create(&self, tasks: Vec<NewTask>, deadline: Deadline) -> Result<RowResults<Created>, MessagingError>;

    /// Ends attempts, and claims what is due: PENDING or ENQUEUED, the first of its ordering key, not past its deadline;
    /// the most urgent first, and now and then the least urgent.
    async fn finish_and_claim(
        &self,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<FinishedAndClaimed, MessagingError>;

    /// Ends attempts.
    async fn finish(&self, finished: Vec<Finish>, deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        Ok(self.finish_and_claim(finished, None, deadline).await?.finished)
    }

    /// Claims what is due.
    async fn claim(&self, claim: ClaimTasks, deadline: Deadline) -> Result<FinishedAndClaimed, MessagingError> {
        self.finish_and_claim(Vec::new(), Some(claim), deadline).await
    }

    /// Claims these tasks, each by the same rules. The same id twice is claimed once.
    async fn claim_by_id(
        &self,
        ids: &[TaskId],
        lease: Duration,
        worker: &str,
        deadline: Deadline,
    ) -> Result<Vec<ClaimAnswer>, MessagingError>;

    /// Lets leases end at now + `lease`, and keeps what is told of progress.
    async fn heartbeat(
        &self,
        heartbeats: Vec<Heartbeat>,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError>;

    /// Whether leases are still held. Changes nothing.
    async fn standings(&self, leases: &[TaskLease], deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError>;

    /// Leases that have run out, the longest ago first. Changes nothing.
    async fn lost_leases(&self, limit: usize, deadline: Deadline) -> Result<Vec<LostLease>, MessagingError>;

    /// Ends attempts whose lease has run out, as [`Retry`](super::TaskOutcome::Retry) or
    /// [`Dead`](super::TaskOutcome::Dead). One that was renewed or ended meanwhile is left alone.
    async fn reap(&self, lost: Vec<Finish>, deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError>;

    /// Tasks whose deadline has passed die, worked on or not. Answers up to `limit` of them.
    async fn expire_overdue(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, MessagingError>;

    /// Calls tasks off. Each answers the state that it left.
    async fn cancel(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<TaskState>, MessagingError>;

    /// Makes tasks that wait for their time due now.
    async fn run_now(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError>;

    /// Brings dead tasks back: PENDING, due now, with all their attempts before them, at the end of their ordering key
    /// and without the deadline that they may have missed.
    async fn replay(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError>;

    /// Changes the payload of a dead task and keeps the one before. Answers the number of the new revision.
    async fn edit_payload(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError>;

    /// Payloads that a task had before, oldest first.
    async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, MessagingError>;

    /// Reads a task.
    async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, MessagingError>;

    /// Every attempt of a task, oldest first.
    async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError>;

    /// Lists tasks, newest first.
    async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError>;

    /// Counts tasks by type and state, each pair once at most; a pair that is missing has no task that was found. What is
    /// PENDING, ENQUEUED or PROCESSING is counted exactly. Of the others the newest are looked at, up to
    /// [`MOST_ENDED_COUNTED`]: of those that are DEAD, of those that are CANCELED, and of all tasks for those that
    /// SUCCEEDED.
    async fn counts(&self, deadline: Deadline) -> Result<Vec<TaskCount>, MessagingError>;

    /// Sends up to `limit` tasks on their way that are PENDING and due: ENQUEUED, with a message to their queue.
    async fn enqueue_due(&self, limit: usize, deadline: Deadline) -> Result<Enqueued, MessagingError>;

    /// Types of which some task has been ENQUEUED, due and unclaimed for longer than `grace`.
    async fn stranded(&self, grace: Duration, deadline: Deadline) -> Result<Vec<Stranded>, MessagingError>;

    /// Sends up to `limit` of a type's tasks again that have been ENQUEUED, due and unclaimed for longer than `grace`, the
    /// longest due first. Answers how many.
    async fn resend(
        &self,
        task_type: &TaskType,
        limit: usize,
        grace: Duration,
        deadline: Deadline,
    ) -> Result<usize, MessagingError>;

    /// Takes up to `limit` due messages out of the outbox to be sent. Nobody else gets them for as long as `lease`.
    async fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<OutboxBatch, MessagingError>;

    /// These messages were sent, for certain. Rows that somebody else has taken since stay.
    async fn outbox_sent(&self, rows: &[(i64, i64)], deadline: Deadline) -> Result<(), MessagingError>;

    /// Removes tasks that SUCCEEDED or were CANCELED at least `older_than` ago, with their history. Dead tasks stay.
    /// Answers how many.
    async fn forget_finished(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError>;

    /// A stream of hints, here and from other processes. A hint promises nothing; it only shortens a wait.
    async fn subscribe_tasks(&self, notice: TaskNotice, deadline: Deadline) -> Result<WakeUps, MessagingError>;
}
