//! The task operations of a database.

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

/// The result of one round of the enqueuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enqueued {
    /// Number of enqueued tasks.
    pub count: usize,
    /// If there were fewer than the limit, the known time until the next is due.
    pub next_due: Option<Duration>,
}

/// Outbox messages that were taken to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutboxBatch {
    /// The messages, oldest first.
    pub rows: Vec<OutboxRow>,
    /// If there were fewer than the limit, the known time until the next is due.
    pub next_due: Option<Duration>,
}

/// A message of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its row number.
    pub id: i64,
    /// The token of its taking: only its holder can report it as sent.
    pub token: i64,
    /// The queue.
    pub queue: QueueName,
    /// The message. Its id is the same each time that it is taken.
    pub message: Message,
}

/// Tasks of a type that are enqueued for longer than a delivery should take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranded {
    /// The task type.
    pub task_type: TaskType,
    /// Number of tasks of the type that are ENQUEUED and due, including recently sent ones.
    pub enqueued: u64,
    /// Number of their messages that are still in the outbox.
    pub in_outbox: u64,
    /// Number of tasks of the type that are PROCESSING, whose messages are in flight too. Counted up to the same bound.
    pub processing: u64,
}

/// Upper bound of the ended tasks of a state that [`TaskStore::counts`] reads, newest first.
pub const MOST_ENDED_COUNTED: u32 = 20_000;

/// Number of tasks of a type in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskCount {
    /// The task type.
    pub task_type: TaskType,
    /// The state.
    pub state: TaskState,
    /// The number. A lower bound if not all ended tasks were read.
    pub count: Measured<u64>,
}

/// The subject of a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskNotice {
    /// A task of one of these types may be claimable.
    Claimable(Vec<TaskType>),
    /// A task may be due to be enqueued, or a message may be in the outbox.
    ToSend,
}

/// A store of tasks. Each method is one transaction, by the store's clock. A batch is executed completely or not at
/// all, except where each row has its own result.
///
/// A transition includes in its transaction: the history of attempts, the message that delivers a retry, the event of a
/// death, and the release of the next task of an ordering key. [`routes`](TaskStore::routes) names the queues of
/// messages and events.
#[async_trait]
pub trait TaskStore: Send + Sync + 'static {
    /// The store's name, in errors and metrics.
    fn store_name(&self) -> &'static str;

    /// The queues of task ids and of death events.
    fn routes(&self) -> &TaskRoutes;

    /// Upper bound of a payload or result.
    fn max_payload_bytes(&self) -> usize;

    /// Creates tasks, in order. A task whose idempotency key is taken has the existing task as its result.
    async fn create(&self, tasks: Vec<NewTask>, deadline: Deadline) -> Result<RowResults<Created>, MessagingError>;

    /// Finishes attempts, and claims due tasks: PENDING or ENQUEUED, the first of their ordering key, not past their
    /// deadline. The most urgent come first, and now and then the least urgent.
    async fn finish_and_claim(
        &self,
        finished: Vec<Finish>,
        claim: Option<ClaimTasks>,
        deadline: Deadline,
    ) -> Result<FinishedAndClaimed, MessagingError>;

    /// Finishes attempts.
    async fn finish(&self, finished: Vec<Finish>, deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError> {
        Ok(self.finish_and_claim(finished, None, deadline).await?.finished)
    }

    /// Claims due tasks.
    async fn claim(&self, claim: ClaimTasks, deadline: Deadline) -> Result<FinishedAndClaimed, MessagingError> {
        self.finish_and_claim(Vec::new(), Some(claim), deadline).await
    }

    /// Claims these tasks by the same rules. A repeated id is claimed once.
    async fn claim_by_id(
        &self,
        ids: &[TaskId],
        lease: Duration,
        worker: &str,
        deadline: Deadline,
    ) -> Result<Vec<ClaimAnswer>, MessagingError>;

    /// Sets the end of leases to *now + lease*, and stores the reported progress.
    async fn heartbeat(
        &self,
        heartbeats: Vec<Heartbeat>,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Vec<TaskStanding>, MessagingError>;

    /// Whether leases are still valid. Changes nothing.
    async fn standings(&self, leases: &[TaskLease], deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError>;

    /// Expired leases, the longest expired first. Changes nothing.
    async fn lost_leases(&self, limit: usize, deadline: Deadline) -> Result<Vec<LostLease>, MessagingError>;

    /// Finishes attempts whose lease has expired, as [`Retry`](super::TaskOutcome::Retry) or
    /// [`Dead`](super::TaskOutcome::Dead). An attempt that was extended or finished meanwhile is left alone.
    async fn reap(&self, lost: Vec<Finish>, deadline: Deadline) -> Result<Vec<TaskStanding>, MessagingError>;

    /// Ends tasks past their deadline as dead, even during an attempt. Returns up to `limit` of them.
    async fn expire_overdue(&self, limit: usize, deadline: Deadline) -> Result<Vec<TaskId>, MessagingError>;

    /// Cancels tasks. The result of each is the state that it left.
    async fn cancel(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<TaskState>, MessagingError>;

    /// Makes waiting tasks due now.
    async fn run_now(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError>;

    /// Replays dead tasks: PENDING, due now, with fresh attempts, at the tail of their ordering key, and without a
    /// deadline that has passed.
    async fn replay(&self, ids: &[TaskId], deadline: Deadline) -> Result<RowResults<()>, MessagingError>;

    /// Changes the payload of a dead task and keeps the previous one. Returns the number of the new revision.
    async fn edit_payload(&self, id: TaskId, payload: Bytes, deadline: Deadline) -> Result<u32, MessagingError>;

    /// The earlier payloads of a task, oldest first.
    async fn revisions(&self, id: TaskId, deadline: Deadline) -> Result<Vec<PayloadRevision>, MessagingError>;

    /// Reads a task.
    async fn get(&self, id: TaskId, deadline: Deadline) -> Result<Option<Task>, MessagingError>;

    /// The attempts of a task, oldest first.
    async fn attempts(&self, id: TaskId, deadline: Deadline) -> Result<Vec<TaskAttempt>, MessagingError>;

    /// Lists tasks, newest first.
    async fn list(&self, query: &TaskQuery, deadline: Deadline) -> Result<TaskPage, MessagingError>;

    /// Counts tasks by type and state. Each pair occurs at most once; a missing pair has no counted task. PENDING,
    /// ENQUEUED and PROCESSING tasks are counted exactly. For the others the newest are read, up to
    /// [`MOST_ENDED_COUNTED`]: of the DEAD ones, of the CANCELED ones, and of all tasks for the SUCCEEDED ones.
    async fn counts(&self, deadline: Deadline) -> Result<Vec<TaskCount>, MessagingError>;

    /// Enqueues up to `limit` tasks that are PENDING and due: they become ENQUEUED, with a message to their queue.
    async fn enqueue_due(&self, limit: usize, deadline: Deadline) -> Result<Enqueued, MessagingError>;

    /// Types with a task that has been ENQUEUED, due and unclaimed for longer than `grace`.
    async fn stranded(&self, grace: Duration, deadline: Deadline) -> Result<Vec<Stranded>, MessagingError>;

    /// Sends messages again for up to `limit` tasks of a type that have been ENQUEUED, due and unclaimed for longer
    /// than `grace`, the longest due first. Returns their number.
    async fn resend(
        &self,
        task_type: &TaskType,
        limit: usize,
        grace: Duration,
        deadline: Deadline,
    ) -> Result<usize, MessagingError>;

    /// Takes up to `limit` due messages from the outbox to be sent. No other relay gets them during `lease`.
    async fn take_outbox(
        &self,
        limit: usize,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<OutboxBatch, MessagingError>;

    /// Removes messages from the outbox that were confirmed. Rows that another relay has taken meanwhile stay.
    async fn outbox_sent(&self, rows: &[(i64, i64)], deadline: Deadline) -> Result<(), MessagingError>;

    /// Removes tasks that SUCCEEDED or were CANCELED at least `older_than` ago, with their history. Dead tasks stay.
    /// Returns the number of removed tasks.
    async fn forget_finished(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError>;

    /// A stream of hints about changes in this and other processes. A hint promises nothing; it only ends a wait early.
    async fn subscribe_tasks(&self, notice: TaskNotice, deadline: Deadline) -> Result<WakeUps, MessagingError>;
}
