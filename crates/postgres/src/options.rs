//! How a database is used.

use std::time::Duration;

use postrider_core::{ArchivePolicy, Limits, MessagingError};
use postrider_pg::{ConnectionOptions, Schema};

use crate::sql::Sql;
use crate::{Database, PROVIDER};

/// How waiting receivers hear of messages that other processes send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WakeUpMode {
    /// By `LISTEN` and `NOTIFY`, on a connection of its own, and by a look every `poll_interval`.
    #[default]
    Notify,
    /// By a look every `poll_interval` alone. Nothing is kept in a session, so that this works behind a pooler that
    /// hands out connections for a transaction at a time, such as PgBouncer.
    PollOnly,
}

/// How a database is used. The defaults are safe.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The schema that holds the tables.
    pub schema: String,
    /// How many connections are open at most; listening takes one more.
    pub pool_size: usize,
    /// Which messages are kept after their end.
    pub archive: ArchivePolicy,
    /// How long they are kept.
    pub archive_retention: Duration,
    /// How waiting receivers hear of what other processes send.
    pub wake_up: WakeUpMode,
    /// How long a waiting receiver goes without a look of its own.
    pub poll_interval: Duration,
    /// Whether opening applies missing migrations.
    pub auto_migrate: bool,
    /// Whether a send creates a queue that is missing.
    pub create_queues: bool,
    /// Sizes and times that are accepted.
    pub limits: Limits,
    /// How long it may take to be connected, and to get a free connection of the pool.
    pub connect_timeout: Duration,
    /// How long a statement may take before it is given up.
    pub statement_timeout: Duration,
    /// What failed attempts are signed with; unset, the host's name and the process's number.
    pub worker: Option<String>,
    /// What the connections are called in the server's views; unset, `postrider`.
    pub application_name: Option<String>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "postrider".into(),
            pool_size: 10,
            archive: ArchivePolicy::default(),
            archive_retention: Duration::from_secs(7 * 24 * 3600),
            wake_up: WakeUpMode::default(),
            poll_interval: Duration::from_secs(1),
            auto_migrate: true,
            create_queues: true,
            limits: Limits::default(),
            connect_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            worker: None,
            application_name: None,
        }
    }
}

impl PostgresOptions {
    /// How the server is reached.
    pub(crate) fn connection(&self) -> ConnectionOptions {
        ConnectionOptions {
            provider: PROVIDER,
            pool_size: self.pool_size,
            connect_timeout: self.connect_timeout,
            statement_timeout: self.statement_timeout,
            application_name: self.application_name.clone(),
            keeps_settings: self.wake_up == WakeUpMode::Notify,
        }
    }

    /// The server that a URL names, with the statements for the schema.
    pub(crate) fn database(&self, url: &str) -> Result<Database, MessagingError> {
        self.check()?;
        Database::new(url, &self.connection(), Sql::new(Schema::new(&self.schema)))
    }

    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
        Schema::check(&self.schema)?;
        let zero = [
            ("pool_size", self.pool_size == 0),
            ("poll_interval", self.poll_interval.is_zero()),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("statement_timeout", self.statement_timeout.is_zero()),
        ];
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(MessagingError::invalid(name, "it is 0, and nothing could ever be done")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_zeros_are_refused() {
        assert!(PostgresOptions::default().check().is_ok());
        for schema in ["", "a b", "a\"b", "pg_x", &"x".repeat(64)] {
            assert!(PostgresOptions { schema: schema.into(), ..Default::default() }.check().is_err(), "{schema:?}");
        }
        assert!(PostgresOptions { pool_size: 0, ..Default::default() }.check().is_err());
        assert!(PostgresOptions { poll_interval: Duration::ZERO, ..Default::default() }.check().is_err());
    }
}
