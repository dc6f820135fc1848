//! How a spool is opened.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{Clock, Limits, WallClock};

use crate::ordering_field::OrderingField;

/// Which files that others put into `incoming/` are messages. Names that begin with a dot never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Files {
    /// Those whose names end in `.json`. Their content must be JSON.
    #[default]
    Json,
    /// All of them. Only those whose names end in `.json` must be JSON.
    Any,
}

/// How changes by others are noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Watch {
    /// By inotify where the file system has it, by looking elsewhere.
    #[default]
    Auto,
    /// By looking.
    Poll,
}

/// How a spool is opened. The defaults are safe.
#[derive(Debug, Clone)]
pub struct SpoolOptions {
    /// Whether a send creates a queue that is missing.
    pub create_queues: bool,
    /// Sizes and times that are accepted.
    pub limits: Limits,
    /// Which files of others are messages.
    pub files: Files,
    /// Where the ordering key of a file of others is: the first of these that the file has.
    pub ordering_key: Vec<OrderingField>,
    /// How long a file that was not renamed into `incoming/` must not have been written to before it is taken.
    pub grace_period: Duration,
    /// How changes by others are noticed.
    pub watch: Watch,
    /// How often is looked where inotify is not there.
    pub poll_interval: Duration,
    /// How long a call waits while other processes change the same queue, before it fails with an error that can be
    /// retried.
    pub lock_timeout: Duration,
    /// The clock that judges leases and due times. All processes on a spool must agree on it.
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
