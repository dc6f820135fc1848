//! The options of a store.

use std::time::Duration;

use postrider_core::{ArchivePolicy, Limits, MessagingError};
use postrider_pg::{ConnectionOptions, Schema};

use crate::PROVIDER;

/// The options of a store. The defaults are safe.
#[derive(Debug, Clone)]
pub struct PgmqOptions {
    /// The schema of the tables that PGMQ lacks: paused queues, dedup keys and long delays.
    pub schema: String,
    /// Maximum number of open connections; listening takes one more.
    pub pool_size: usize,
    /// Which messages are archived.
    pub archive: ArchivePolicy,
    /// How long archived messages are kept.
    pub archive_retention: Duration,
    /// Whether waiting receivers `LISTEN`, and queues notify of inserts by other clients. Without it sessions keep no
    /// state, so it works behind a pooler in transaction mode.
    pub enable_pg_notify: bool,
    /// Minimum interval of PGMQ's notifications of one queue.
    pub notify_throttle: Duration,
    /// Interval of the looks of a waiting receiver.
    pub poll_interval: Duration,
    /// Delay above which a message without keys waits beside the queue.
    pub long_delay: Duration,
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

impl Default for PgmqOptions {
    fn default() -> Self {
        Self {
            schema: "postrider_pgmq".into(),
            pool_size: 10,
            archive: ArchivePolicy::default(),
            archive_retention: Duration::from_secs(7 * 24 * 3600),
            enable_pg_notify: true,
            notify_throttle: Duration::from_millis(250),
            poll_interval: Duration::from_secs(1),
            long_delay: Duration::from_secs(60),
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

impl PgmqOptions {
    /// Returns the options of the connection.
    pub(crate) fn connection(&self) -> ConnectionOptions {
        ConnectionOptions {
            provider: PROVIDER,
            pool_size: self.pool_size,
            connect_timeout: self.connect_timeout,
            statement_timeout: self.statement_timeout,
            application_name: self.application_name.clone(),
            keeps_settings: self.enable_pg_notify,
        }
    }

    /// Refuses invalid options.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
        Schema::check(&self.schema)?;
        if self.schema == "pgmq" {
            return Err(MessagingError::invalid("schema", "'pgmq' is PGMQ's own; use another name"));
        }
        let zero = [
            ("pool_size", self.pool_size == 0),
            ("poll_interval", self.poll_interval.is_zero()),
            ("long_delay", self.long_delay.is_zero()),
            ("notify_throttle", self.notify_throttle.is_zero()),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("statement_timeout", self.statement_timeout.is_zero()),
        ];
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            // Every insert into a queue would then wait for one row.
            Some(("notify_throttle", _)) => Err(MessagingError::invalid(
                "notify_throttle",
                "it is 0, so senders would wait for each other; use more",
            )),
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
        assert!(PgmqOptions::default().check().is_ok());
        for schema in ["", "a b", "pg_x", "pgmq"] {
            assert!(PgmqOptions { schema: schema.into(), ..Default::default() }.check().is_err(), "{schema:?}");
        }
        assert!(PgmqOptions { pool_size: 0, ..Default::default() }.check().is_err());
        assert!(PgmqOptions { notify_throttle: Duration::ZERO, ..Default::default() }.check().is_err());
    }
}
