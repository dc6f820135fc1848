//! What a queue holds, and whether queues are there.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::queue_name::QueueName;

/// A number, and how far it can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured<T> {
    /// True at the moment of the answer.
    Exact(T),
    /// Near the truth, or a little old.
    Approximate(T),
    /// The provider cannot tell.
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

/// What a queue holds. Each number means the same on every provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// The queue.
    pub queue: QueueName,
    /// Due and not leased, those that wait behind the head of their key included.
    pub ready: Measured<u64>,
    /// Leased, and the lease has not run out.
    pub in_flight: Measured<u64>,
    /// Not due yet: sent with a delay, or waiting for a retry.
    pub delayed: Measured<u64>,
    /// In the queue's dead letters.
    pub dead: Measured<u64>,
    /// How long ago the oldest ready message was accepted; `None` when none is ready.
    pub oldest_age: Measured<Option<Duration>>,
    /// Whether receives are held back.
    pub paused: bool,
}

impl QueueStats {
    /// All messages that live in the queue, dead letters not among them.
    pub fn message_count(&self) -> Option<u64> {
        Some(self.ready.value()? + self.in_flight.value()? + self.delayed.value()?)
    }
}

/// Which of the queues that were asked for are there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueHealthReport {
    /// There, and usable.
    pub healthy: Vec<QueueName>,
    /// Not there.
    pub missing: Vec<QueueName>,
    /// There, but not usable, and why.
    pub errors: Vec<(QueueName, String)>,
}

impl QueueHealthReport {
    /// Whether every queue is there and usable.
    pub fn is_healthy(&self) -> bool {
        self.missing.is_empty() && self.errors.is_empty()
    }
}
