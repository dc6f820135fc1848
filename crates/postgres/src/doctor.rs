//! `doctor`: checks of a database that holds queues.

use postrider_core::{BoxFuture, Deadline, Finding, MessagingError};
use postrider_pg::doctor::examine;

use crate::options::PostgresOptions;
use crate::{PostgresStore, migrations};

/// The tables that the provider reads and writes.
const TABLES: &[&str] = &[
    "message",
    "message_archive",
    "failed_attempt",
    "dead_letter",
    "queue",
    "queue_pause",
    "unplaced",
    "idempotency",
    "task",
    "task_unplaced",
    "task_attempt",
    "task_revision",
    "outbox",
    "task_schedule",
    "state_record",
];

/// The tables whose rows come and go.
const BUSY: &[&str] = &["message", "message_archive", "dead_letter", "task", "task_unplaced", "outbox"];

impl PostgresStore {
    /// Examines a database and its server. Returns findings, each with its fix; changes nothing. Fails only for a URL
    /// or options that are invalid.
    pub fn examine(
        url: &str,
        options: PostgresOptions,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
            let database = options.database(url)?;
            Ok(examine(&database, &migrations::of(&database.sql.schema), TABLES, BUSY, deadline).await)
        })
    }
}
