//! The options of a store.

use std::time::Duration;

use postrider_core::{ArchivePolicy, Limits, MessagingError};

/// The options of a store. The defaults are safe.
#[derive(Debug, Clone)]
pub struct MysqlOptions {
    /// Maximum number of open connections.
    pub pool_size: usize,
    /// Which messages are archived.
    pub archive: ArchivePolicy,
    /// How long archived messages are kept.
    pub archive_retention: Duration,
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
    /// Time limit of a step of a transaction.
    pub statement_timeout: Duration,
    /// Worker name in failed attempts; by default the host name and the process id.
    pub worker: Option<String>,
}

impl Default for MysqlOptions {
    fn default() -> Self {
        Self {
            pool_size: 10,
            archive: ArchivePolicy::default(),
            archive_retention: Duration::from_secs(7 * 24 * 3600),
            poll_interval: Duration::from_secs(1),
            auto_migrate: true,
            create_queues: true,
            limits: Limits::default(),
            connect_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            worker: None,
        }
    }
}

impl MysqlOptions {
    pub(crate) fn worker_name(&self) -> String {
        self.worker.clone().unwrap_or_else(|| {
            let host = nix::sys::utsname::uname().map(|host| host.nodename().to_string_lossy().into_owned());
            format!("{}:{}", host.unwrap_or_else(|_| "unknown".into()), std::process::id())
        })
    }

    /// Refuses invalid options.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
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
    fn zeros_are_refused() {
        assert!(MysqlOptions::default().check().is_ok());
        assert!(MysqlOptions { pool_size: 0, ..Default::default() }.check().is_err());
        assert!(MysqlOptions { poll_interval: Duration::ZERO, ..Default::default() }.check().is_err());
    }
}
