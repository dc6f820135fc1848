//! Options of opening a file.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{ArchivePolicy, Clock, Limits, WallClock};

/// The failures that an accepted message survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// All but a failure of the disk: each commit is on the disk before it is answered (`synchronous=FULL`).
    #[default]
    PowerLoss,
    /// A crash of the process, but not of the host: a power loss or a crash of the system may undo the last commits,
    /// which were already answered (`synchronous=NORMAL`). The file stays intact.
    ProcessCrashOnly,
}

/// Options of opening a file. The defaults are safe.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// The failures that an accepted message survives.
    pub durability: Durability,
    /// Which settled and purged messages are archived.
    pub archive: ArchivePolicy,
    /// How long archived messages are kept.
    pub archive_retention: Duration,
    /// Whether opening creates the file and applies missing migrations.
    pub auto_migrate: bool,
    /// Whether the tables may be created in a database of another program. The owner's `application_id` and
    /// `user_version` are left alone.
    pub share_file: bool,
    /// Whether a send creates a queue that is missing.
    pub create_queues: bool,
    /// Accepted sizes and times.
    pub limits: Limits,
    /// How long a call waits for the write lock before it fails with an error that can be retried.
    pub lock_timeout: Duration,
    /// Size of the write-ahead log from which on it is checkpointed at the next opportunity.
    pub wal_limit_bytes: u64,
    /// Worker name recorded with failed attempts; unset, the host's name and the process id.
    pub worker: Option<String>,
    /// Clock that decides about leases and due times. All processes on a file must agree on it.
    pub clock: Arc<dyn Clock>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            archive: ArchivePolicy::default(),
            archive_retention: Duration::from_secs(7 * 24 * 3600),
            auto_migrate: true,
            share_file: false,
            create_queues: true,
            limits: Limits::default(),
            lock_timeout: Duration::from_secs(10),
            wal_limit_bytes: 16 * 1024 * 1024,
            worker: None,
            clock: Arc::new(WallClock::new()),
        }
    }
}

impl SqliteOptions {
    pub(crate) fn worker_name(&self) -> String {
        self.worker.clone().unwrap_or_else(|| {
            let host = nix::sys::utsname::uname().map(|host| host.nodename().to_string_lossy().into_owned());
            format!("{}:{}", host.unwrap_or_else(|_| "unknown".into()), std::process::id())
        })
    }
}
