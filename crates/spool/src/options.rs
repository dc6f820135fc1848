//! Options of a spool.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{Clock, Limits, WallClock};

use crate::ordering_field::OrderingField;

/// Which foreign files in `incoming/` are messages. Names with a leading dot never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Files {
    /// Files whose names end in `.json`. Their content must be JSON.
    #[default]
    Json,
    /// All files. Only those whose names end in `.json` must be JSON.
    Any,
}

/// How changes by other processes are detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Watch {
    /// By inotify where the file system supports it, else by polling.
    #[default]
    Auto,
    /// By polling.
    Poll,
}

/// Options of a spool.
#[derive(Debug, Clone)]
pub struct SpoolOptions {
    /// Whether a send creates a missing queue.
    pub create_queues: bool,
    /// Limits of messages.
    pub limits: Limits,
    /// Which foreign files are messages.
    pub files: Files,
    /// Fields with the ordering key of a foreign file: the first entry that the file has.
    pub ordering_key: Vec<OrderingField>,
    /// Time for which a file that was not renamed into `incoming/` must be unmodified before it is claimed.
    pub grace_period: Duration,
    /// How changes by other processes are detected.
    pub watch: Watch,
    /// Polling interval without inotify.
    pub poll_interval: Duration,
    /// Time limit of a call's wait for the lock of its queue; then it fails with a retryable error.
    pub lock_timeout: Duration,
    /// Clock of leases and due times. Must be the same for all processes on a spool.
    pub clock: Arc<dyn Clock>,
}

impl Default for SpoolOptions {
    fn default() -> Self {
        Self {
            create_queues: true,
            limits: Limits::default(),
            files: Files::default(),
            ordering_key: Vec::new(),
            grace_period: Duration::from_secs(2),
            watch: Watch::default(),
            poll_interval: Duration::from_millis(500),
            lock_timeout: Duration::from_secs(10),
            clock: Arc::new(WallClock::new()),
        }
    }
}
