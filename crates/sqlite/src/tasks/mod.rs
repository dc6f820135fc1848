//! Tasks, in the same file as the queues.
//!
//! Every transition is a few statements on rows that are found by their number, in one transaction of the writer. So no
//! row needs a lock: a transition reads a row, decides at the transaction's time, and changes it. The messages of a
//! transition are rows of `message` or of `outbox` in the same transaction.
//!
//! Ended tasks stay in the table. Every search of the hot path goes through a partial index that leaves them out, so a
//! claim costs the same behind a million of them (`costs.rs` counts it).
//!
//! **What was rejected.** A separate table for ended tasks: each would be written and removed once more, and every
//! search for a task would have to read both.

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
mod record;
mod schedules;
mod step;
mod task_messages;
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
use crate::writer::work::Answer;
pub(crate) use finish::TaskHeldColumns;
pub(crate) use record::{ClaimableColumns, TaskByIdColumns};
use step::TaskStep;

/// The smallest body limit with which the message that delivers a task and the event of a death always fit.
const SMALLEST_BODY: usize = 4096;

/// The tasks and schedules in a file. Clones share the connection and close with it.
#[derive(Debug, Clone)]
pub struct SqliteTasks {
    provider: SqliteProvider,
    routes: Arc<TaskRoutes>,
    /// Number of claims and enqueuer runs, from which the order of priorities and types follows.
    rounds: Arc<AtomicU64>,
}

impl SqliteTasks {
    /// The tasks in the file of this connection.
    pub fn new(provider: SqliteProvider, routes: TaskRoutes) -> Result<Self, MessagingError> {
        // Whether a longer type name gives a valid queue name too is checked when a task of that type is created.
        routes.queue(&TaskType::new("t")?)?;
        if let Some(queue) = routes.dead_events.as_ref().filter(|queue| queue.holds_dead_letters()) {
            let why = format!("'{queue}' holds dead letters; name a queue that can be sent to");
            return Err(MessagingError::invalid("queue of dead-task events", why));
        }
        let sends_here = routes.post == Post::Here && (routes.mode == TaskMode::Queue || routes.dead_events.is_some());
        let largest = provider.shared().context.rules.capabilities.limits.max_body_bytes;
        if sends_here && largest < SMALLEST_BODY {
            let why = format!(
                "the messages of tasks need up to {SMALLEST_BODY} bytes, but only {largest} are allowed; raise it"
            );
            return Err(MessagingError::invalid("max_message_bytes", why));
        }
        Ok(Self { provider, routes: Arc::new(routes), rounds: Arc::default() })
    }

    /// The connection that the tasks use.
    pub fn provider(&self) -> &SqliteProvider {
        &self.provider
    }

    /// Creates a task inside the caller's own transaction: both are committed together.
    ///
    /// The same rules hold as for any creation. Begin the transaction with
    /// [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate) and keep it short: no other
    /// connection can write to the file until it ends. An error leaves the transaction as it was before the call, for
    /// the caller to commit or to roll back.
    pub fn create_in(&self, transaction: &Transaction<'_>, task: &NewTask) -> Result<Created, MessagingError> {
        let store = self.provider.store();
        store.inside("create", transaction, |session| TaskStep::new(session, &self.routes).create(task))
    }

    fn next_round(&self) -> u64 {
        self.rounds.fetch_add(1, Ordering::Relaxed)
    }

    fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        self.provider.begin(operation, deadline)
    }

    /// Runs a step in the writer's next transaction, and waits for the answer.
    async fn write<T: Answer + Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        step: impl FnMut(&mut TaskStep<'_, '_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.provider.write(operation, deadline, self.in_session(step)).await
    }

    /// [`Self::write`] for a step that only leases: it is skipped when its caller has gone.
    async fn lease<T: Answer + Send + 'static>(
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

    /// Runs a query in one read transaction.
    async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.provider.shared().readers.read(operation, deadline, query).await
    }
}

/// A lease on a task whose caller has gone. The task was never received, so the attempt is not counted.
#[derive(Debug)]
pub(crate) struct UndeliveredTask {
    pub(crate) lease: TaskLease,
    pub(crate) routes: Arc<TaskRoutes>,
}

impl UndeliveredTask {
    /// Returns the lease.
    pub(crate) fn release(&self, session: &mut Session<'_>) -> rusqlite::Result<()> {
        let released = Finish { lease: self.lease, outcome: TaskOutcome::Released };
        // A lease that was lost meanwhile needs no return.
        TaskStep::new(session, &self.routes).finish(&released).map(|_| ())
    }
}
