//! Tasks, beside the queues in the same schema.
//!
//! Every transition is one conditional statement over arrays, and whatever belongs to it is part of the same statement:
//! the history, the message or the row of the outbox, the event of a death. Ends and the claim that follows them are one
//! pipelined transaction. Ended tasks stay in the table; every search of the hot path goes through a partial index that
//! leaves them out.
//!
//! **Order.** Of the tasks of an ordering key all but one are marked as blocked. Nobody waits for a key's lock inside a
//! transition, because that may be part of a caller's own transaction: a task with a key is made blocked, an end leaves
//! the key without a head, and both leave a note. Whoever wrote it puts the key in order right after the commit
//! ([`keys`]); where that process died, the next claim finds the note. A unique index sees to it that no key ever has two
//! heads.
//!
//! **Locks.** Statements that lock several tasks do so in the order of their ids, or pass by what others have. So no two
//! batches can wait for each other.

mod change;
mod claim;
mod columns;
mod contract;
mod create;
mod finish;
mod hints;
mod holders;
mod in_transaction;
mod keys;
mod look;
mod outbox;
mod rows;
mod schedules;
mod send;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use postgres_types::ToSql;
use postrider_core::task::{MAX_TASK_TYPE, NewTask, Post, TaskMode, TaskRoutes, TaskType};
use postrider_core::{Deadline, MessagingError};
use postrider_provider::Undone;
use tokio_postgres::Row;

use crate::PostgresProvider;
use crate::sql::Sql;
use crate::store::Shared;

/// The message that delivers a task and the event of a death must fit into a message, however large the options allow
/// messages to be.
const SMALLEST_BODY: usize = 4096;

/// The tasks and schedules of a schema. Clones are the same; all of them close with the connection that they were made
/// of.
#[derive(Debug, Clone)]
pub struct PostgresTasks {
    provider: PostgresProvider,
    tasks: Arc<Tasks>,
}

/// What all calls share.
#[derive(Debug)]
struct Tasks {
    shared: Arc<Shared>,
    routes: TaskRoutes,
    /// Counts claims and rounds of the enqueuer, for the turns of the least urgent and of the types.
    turns: AtomicU64,
}

impl PostgresTasks {
    /// The tasks of the schema that a connection is open to.
    pub fn new(provider: PostgresProvider, routes: TaskRoutes) -> Result<Self, MessagingError> {
        routes.queue(&TaskType::new("t".repeat(MAX_TASK_TYPE))?)?;
        if let Some(queue) = routes.dead_events.as_ref().filter(|queue| queue.holds_dead_letters()) {
            let why = format!("'{queue}' holds dead letters; name a queue that can be sent to");
            return Err(MessagingError::invalid("queue of dead-task events", why));
        }
        let shared = provider.store().shared.clone();
        let largest = shared.capabilities.limits.max_body_bytes;
        let sends_here = routes.post == Post::Here && (routes.mode == TaskMode::Queue || routes.dead_events.is_some());
        if sends_here && largest < SMALLEST_BODY {
            let why =
                format!("tasks are told of in messages of up to {SMALLEST_BODY} bytes, and {largest} are allowed");
            return Err(MessagingError::invalid("max_message_bytes", why));
        }
        Ok(Self { provider, tasks: Arc::new(Tasks { shared, routes, turns: AtomicU64::new(0) }) })
    }

    /// The connection that the tasks are reached by.
    pub fn provider(&self) -> &PostgresProvider {
        &self.provider
    }
}

impl Tasks {
    fn sql(&self) -> &Sql {
        &self.shared.database.sql
    }

    fn max_payload_bytes(&self) -> usize {
        self.shared.capabilities.limits.max_body_bytes
    }

    fn check(&self, task: &NewTask) -> Result<(), MessagingError> {
        task.check(self.max_payload_bytes())
    }

    /// One statement.
    async fn ask(
        &self,
        operation: &'static str,
        deadline: Deadline,
        statement: &str,
        parameters: Vec<&(dyn ToSql + Sync)>,
    ) -> Result<Vec<Row>, Undone> {
        self.shared.ask(operation, deadline, statement, parameters).await
    }
}
