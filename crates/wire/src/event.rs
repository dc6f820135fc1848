//! What is told as it happens, by server-sent events.

use postrider_core::QueueName;
use serde::{Deserialize, Serialize};

use super::queue::Stats;

/// The event that says that there may be something to receive or to claim. Its data is `{}`.
pub const WAKE: &str = "wake";

/// The event of queues that have changed.
pub const QUEUES: &str = "queues";

/// The event of queues that are no more.
pub const GONE: &str = "gone";

/// The event of a job that has changed; its data is the job.
pub const JOB: &str = "job";

/// The event that says that something about tasks may have changed. Its data is `{}`.
pub const TASKS: &str = "tasks";

/// The event that says that something about schedules may have changed. Its data is `{}`.
pub const SCHEDULES: &str = "schedules";

/// The event that says that more has changed than this reader took in time: all of it is to be asked for again. Its data is
/// `{}`.
pub const RESYNC: &str = "resync";

/// The event that says that the server is still there. Its data is `{}`.
pub const PING: &str = "ping";

/// Data of `queues`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueuesChanged {
    /// Those that have changed.
    pub queues: Vec<Stats>,
}

/// Data of `gone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuesGone {
    /// Those that are no more.
    pub queues: Vec<QueueName>,
}
