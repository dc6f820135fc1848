//! How PGMQ is used.

use std::time::Duration;

use postrider_core::{ArchivePolicy, Limits, MessagingError};
use postrider_pg::{ConnectionOptions, Schema};

use crate::PROVIDER;

/// How PGMQ is used. The defaults are safe.
#[derive(Debug, Clone)]
pub struct PgmqOptions {
    /// The schema that holds what PGMQ has no place for: paused queues, dedup keys and long delays.
    pub schema: String,
    /// How many connections are open at most; listening takes one more.
    pub pool_size: usize,
    /// Which messages are kept after their end.
    pub archive: ArchivePolicy,
    /// How long they are kept.
    pub archive_retention: Duration,
    /// Whether waiting receivers hear of new messages by `LISTEN`, and queues tell of what other clients insert. Without
    /// it nothing is kept in a session, so that a pooler works that hands out connections for a transaction at a time.
    pub enable_pg_notify: bool,
    /// How long after one notification of a queue PGMQ sends no other.
    pub notify_throttle: Duration,
    /// How long a waiting receiver goes without a look of its own.
    pub poll_interval: Duration,
    /// A message without keys that is due later than this after its send waits beside the queue.
    pub long_delay: Duration,
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
    /// How the server is reached.
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

    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
        Schema::check(&self.schema)?;
        if self.schema == "pgmq" {
            return Err(MessagingError::invalid("schema", "'pgmq' is PGMQ's own; name another"));
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
            // Every insert of a queue would then wait for one row.
            Some(("notify_throttle", _)) => {
                Err(MessagingError::invalid("notify_throttle", "it is 0, and senders would wait for each other"))
            }
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
        assert!(PgmqOptions::default().check().is_ok());
        for schema in ["", "a b", "pg_x", "pgmq"] {
            assert!(PgmqOptions { schema: schema.into(), ..Default::default() }.check().is_err(), "{schema:?}");
        }
        assert!(PgmqOptions { pool_size: 0, ..Default::default() }.check().is_err());
        assert!(PgmqOptions { notify_throttle: Duration::ZERO, ..Default::default() }.check().is_err());
    }
}
