//! Tasks, beside the queues in the same schema.
//!
//! Every transition is one conditional statement over arrays, which also writes what belongs to it: the history, the
//! message or the row of the outbox, the event of a death. Ends and the following claim are one pipelined transaction.
//! Ended tasks stay in the table; hot statements use partial indexes without them.
//!
//! **Order.** Of the tasks of an ordering key all but the head are blocked. A transition never waits for a key's lock,
//! because it may be part of a caller's transaction: a task with a key is created blocked, an end leaves the key
//! without a head, and both note the key. The process that noted it promotes the next task right after the commit
//! ([`keys`]); if that process died, the next claim does. A unique index ensures that no key has two heads.
//!
//! **Locks.** Statements that lock several tasks do so in the order of their ids, or skip locked rows. So no two
//! batches deadlock.

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

/// Lower bound of the message size: the message that delivers a task and the event of a death must fit.
const SMALLEST_BODY: usize = 4096;

/// The tasks and schedules of a schema. Clones share one connection and close with it.
#[derive(Debug, Clone)]
pub struct PostgresTasks {
    provider: PostgresProvider,
    tasks: Arc<Tasks>,
}

/// The state that all calls share.
#[derive(Debug)]
struct Tasks {
    shared: Arc<Shared>,
    routes: TaskRoutes,
    /// Claims and enqueuer rounds, counted for the rotation of priorities and types.
    turns: AtomicU64,
}

impl PostgresTasks {
    /// Returns the tasks of the schema that a connection is open to.
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
                format!("tasks send messages of up to {SMALLEST_BODY} bytes, and {largest} are allowed; raise it");
            return Err(MessagingError::invalid("max_message_bytes", why));
        }
        Ok(Self { provider, tasks: Arc::new(Tasks { shared, routes, turns: AtomicU64::new(0) }) })
    }

    /// Returns the connection of the tasks.
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

    /// Runs one statement in a transaction of its own.
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
