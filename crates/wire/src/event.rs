//! Server-sent events.

use postrider_core::QueueName;
use serde::{Deserialize, Serialize};

use super::queue::Stats;

/// There may be something to receive or to claim. Data: `{}`.
pub const WAKE: &str = "wake";

/// Queues have changed. Data: [`QueuesChanged`].
pub const QUEUES: &str = "queues";

/// Queues were deleted. Data: [`QueuesGone`].
pub const GONE: &str = "gone";

/// A job has changed. Data: the job.
pub const JOB: &str = "job";

/// Tasks may have changed. Data: `{}`.
pub const TASKS: &str = "tasks";

/// Schedules may have changed. Data: `{}`.
pub const SCHEDULES: &str = "schedules";

/// The client was too slow and missed changes: it must read everything again. Data: `{}`.
pub const RESYNC: &str = "resync";

/// The connection is alive. Data: `{}`.
pub const PING: &str = "ping";

/// Data of `queues`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueuesChanged {
    /// The changed queues.
    pub queues: Vec<Stats>,
}

/// Data of `gone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuesGone {
    /// The deleted queues.
    pub queues: Vec<QueueName>,
}
