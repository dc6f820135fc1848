//! Tasks, beside the queues in the same file.
//!
//! Every transition is a few statements on rows that are found by their number, inside the writer's one transaction. So
//! nothing is ever locked here and nothing is decided twice: a row is read, judged at the transaction's time, and changed.
//! What is told of a transition is a row of `message` or of `outbox` in the same transaction.
//!
//! Ended tasks stay in the table. Every search of the hot path goes through a partial index that leaves them out, so a
//! claim costs the same behind a million of them (`costs.rs` counts it).
//!
//! **What was rejected.** A table of their own for tasks that have ended: each would be written once more and removed
//! once more, and whoever looks for a task would have to look twice.

mod claim;
mod contract;
#[cfg(test)]
mod costs;
mod create;
mod finish;
mod hints;
mod keys;
mod look;
mod operate;
mod outbox;
mod post;
mod record;
mod schedules;
mod step;
#[cfg(test)]
mod tests;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use postrider_core::task::{Created, Finish, NewTask, Post, TaskLease, TaskMode, TaskOutcome, TaskRoutes, TaskType};
use postrider_core::{Deadline, MessagingError};
use rusqlite::Transaction;

use crate::SqliteProvider;
use crate::error::Failure;
use crate::session::Session;
use crate::writer::work::Unclaimed;
use step::TaskStep;

/// The message that delivers a task and the event of a death must fit into a message, however large the file allows
/// messages to be.
const SMALLEST_BODY: usize = 4096;

/// The tasks and schedules in a file. Clones are the same; all of them close with the connection that they were made of.
#[derive(Debug, Clone)]
pub struct SqliteTasks {
    provider: SqliteProvider,
    routes: Arc<TaskRoutes>,
    /// Counts claims and rounds of the enqueuer, for the turns of the least urgent and of the types.
    turns: Arc<AtomicU64>,
}

impl SqliteTasks {
    /// The tasks in the file that a connection is open to.
    pub fn new(provider: SqliteProvider, routes: TaskRoutes) -> Result<Self, MessagingError> {
        // Whether a longer name makes one as well is seen when a task of that type is made.
        routes.queue(&TaskType::new("t")?)?;
        if let Some(queue) = routes.dead_events.as_ref().filter(|queue| queue.holds_dead_letters()) {
            let why = format!("'{queue}' holds dead letters; name a queue that can be sent to");
            return Err(MessagingError::invalid("queue of dead-task events", why));
        }
        let sends_here = routes.post == Post::Here && (routes.mode == TaskMode::Queue || routes.dead_events.is_some());
        let largest = provider.shared().desk.rules.capabilities.limits.max_body_bytes;
        if sends_here && largest < SMALLEST_BODY {
            let why =
                format!("tasks are told of in messages of up to {SMALLEST_BODY} bytes, and {largest} are allowed");
            return Err(MessagingError::invalid("max_message_bytes", why));
        }
        Ok(Self { provider, routes: Arc::new(routes), turns: Arc::default() })
    }

    /// The connection that the tasks are reached by.
    pub fn provider(&self) -> &SqliteProvider {
        &self.provider
    }

    /// Makes a task inside the caller's own transaction: it is there if and only if the caller's changes are.
    ///
    /// The same rules hold as for any creation. Begin the transaction with
    /// [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate) and keep it short: nobody else can
    /// write to the file until it ends. An error leaves the transaction as it was before the call, for the caller to
    /// commit or to roll back.
    pub fn create_in(&self, transaction: &Transaction<'_>, task: &NewTask) -> Result<Created, MessagingError> {
        let store = self.provider.store();
        store.inside("create", transaction, |session| TaskStep::new(session, &self.routes).create(task))
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }

    fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.begin(operation, deadline)
    }

    /// Has the writer do something in its next transaction, and waits for the answer.
    async fn write<T: Unclaimed + Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        step: impl FnMut(&mut TaskStep<'_, '_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.provider.write(operation, deadline, self.in_session(step)).await
    }

    /// [`Self::write`], for work that only hands out leases: it is left out when nobody waits for it any more.
    async fn lease<T: Unclaimed + Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        step: impl FnMut(&mut TaskStep<'_, '_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.provider.lease(operation, Vec::new(), deadline, self.in_session(step)).await
    }

    fn in_session<T>(
        &self,
        mut step: impl FnMut(&mut TaskStep<'_, '_>) -> Result<T, Failure> + Send + 'static,
    ) -> impl FnMut(&mut Session<'_>) -> Result<T, Failure> + Send + 'static {
        let routes = self.routes.clone();
        move |session| step(&mut TaskStep::new(session, &routes))
    }

    /// Runs a look in one read transaction.
    async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        look: impl FnOnce(&rusqlite::Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.provider.shared().readers.read(operation, deadline, look).await
    }
}

/// A lease on a task that nobody was there to take. It was never seen, so the attempt is not counted.
#[derive(Debug)]
pub(crate) struct UnheldTask {
    pub(crate) lease: TaskLease,
    pub(crate) routes: Arc<TaskRoutes>,
}

impl UnheldTask {
    /// Gives it back.
    pub(crate) fn release(&self, session: &mut Session<'_>) -> rusqlite::Result<()> {
        let released = Finish { lease: self.lease, outcome: TaskOutcome::Released };
        // One that was lost meanwhile needs no giving back.
        TaskStep::new(session, &self.routes).finish(&released).map(|_| ())
    }
}
