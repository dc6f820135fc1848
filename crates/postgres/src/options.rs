//! The options of a store.

use std::time::Duration;

use postrider_core::{ArchivePolicy, Limits, MessagingError};
use postrider_pg::{ConnectionOptions, Schema};

use crate::sql::Sql;
use crate::{Database, PROVIDER};

/// How waiting receivers learn of messages that other processes send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WakeUpMode {
    /// `LISTEN` and `NOTIFY` on a separate connection, and a look every `poll_interval`.
    #[default]
    Notify,
    /// Only a look every `poll_interval`. Sessions keep no state, so this works behind a pooler in transaction mode,
    /// such as PgBouncer.
    PollOnly,
}

/// The options of a store. The defaults are safe.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The schema that holds the tables.
    pub schema: String,
    /// Maximum number of open connections; listening takes one more.
    pub pool_size: usize,
    /// Which messages are archived.
    pub archive: ArchivePolicy,
    /// How long archived messages are kept.
    pub archive_retention: Duration,
    /// How waiting receivers learn of messages that other processes send.
    pub wake_up: WakeUpMode,
    /// Interval of the looks of a waiting receiver.
    pub poll_interval: Duration,
    /// Whether opening applies missing migrations.
    pub auto_migrate: bool,
    /// Whether a send creates a queue that is missing.
    pub create_queues: bool,
    /// Limits of sizes and times.
    pub limits: Limits,
    /// Time limit to connect, and to get a free connection of the pool.
    pub connect_timeout: Duration,
    /// Time limit of a statement.
    pub statement_timeout: Duration,
    /// Worker name in failed attempts; by default the host name and the process id.
    pub worker: Option<String>,
    /// `application_name` of the connections; by default `postrider`.
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
    /// Returns the options of the connection.
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

    /// Returns the database of a URL, with the statements for the schema.
    pub(crate) fn database(&self, url: &str) -> Result<Database, MessagingError> {
        self.check()?;
        Database::new(url, &self.connection(), Sql::new(Schema::new(&self.schema)))
    }

    /// Refuses invalid options.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
        Schema::check(&self.schema)?;
        let zero = [
            ("pool_size", self.pool_size == 0),
            ("poll_interval", self.poll_interval.is_zero()),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("statement_timeout", self.statement_timeout.is_zero()),
        ];
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(MessagingError::invalid(name, "it is 0; use a positive value")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_and_zeros_are_refused() {
        assert!(PostgresOptions::default().check().is_ok());
        for schema in ["", "a b", "a\"b", "pg_x", &"x".repeat(64)] {
            assert!(PostgresOptions { schema: schema.into(), ..Default::default() }.check().is_err(), "{schema:?}");
        }
        assert!(PostgresOptions { pool_size: 0, ..Default::default() }.check().is_err());
        assert!(PostgresOptions { poll_interval: Duration::ZERO, ..Default::default() }.check().is_err());
    }
}
