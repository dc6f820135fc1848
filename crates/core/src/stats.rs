//! Counts and health of queues.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::queue_name::QueueName;

/// A number with its accuracy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured<T> {
    /// Exact at the moment of the answer.
    Exact(T),
    /// Approximate, or slightly old.
    Approximate(T),
    /// The provider cannot measure it.
    Unknown,
}

impl<T: Copy> Measured<T> {
    /// The number, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Exact(value) | Self::Approximate(value) => Some(value),
            Self::Unknown => None,
        }
    }
}

/// The counts of a queue. Each has the same meaning on every provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueName,
    /// Messages that are due and not leased, including those that wait behind the head of their key.
    pub ready: Measured<u64>,
    /// Messages with a valid lease.
    pub in_flight: Measured<u64>,
    /// Messages that are not due yet: sent with a delay, or waiting for a retry.
    pub delayed: Measured<u64>,
    /// Dead letters of the queue.
    pub dead: Measured<u64>,
    /// The age of the oldest ready message; `None` if no message is ready.
    pub oldest_age: Measured<Option<Duration>>,
    /// Whether the queue is paused.
    pub paused: bool,
}

impl QueueStats {
    /// The number of all messages in the queue, without dead letters.
    pub fn message_count(&self) -> Option<u64> {
        Some(self.ready.value()? + self.in_flight.value()? + self.delayed.value()?)
    }
}

/// The health of queues.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueHealthReport {
    /// Queues that exist and are usable.
    pub healthy: Vec<QueueName>,
    /// Queues that do not exist.
    pub missing: Vec<QueueName>,
    /// Queues that exist and are not usable, and why.
    pub errors: Vec<(QueueName, String)>,
}

impl QueueHealthReport {
    /// Whether every queue exists and is usable.
    pub fn is_healthy(&self) -> bool {
        self.missing.is_empty() && self.errors.is_empty()
    }
}
