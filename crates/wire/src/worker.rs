//! Who works, as far as the server has seen.

use postrider_core::{QueueName, Timestamp};
use serde::{Deserialize, Serialize};

/// What a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// Messages, over HTTP.
    Http,
    /// Tasks.
    Task,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// What it calls itself.
    pub name: String,
    /// What it takes.
    pub kind: WorkerKind,
    /// Where it calls from.
    pub address: Option<String>,
    /// The queues that it takes from.
    pub queues: Vec<QueueName>,
    /// How much it holds.
    pub in_flight: u64,
    /// Whether it waits for something to do.
    pub waiting: bool,
    /// When it was first seen.
    pub first_seen_at: Timestamp,
    /// When it was last seen.
    pub last_seen_at: Timestamp,
    /// How long ago that is.
    pub idle_seconds: f64,
}

/// `GET /v1/workers`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workers {
    /// The workers.
    pub workers: Vec<Worker>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_trip::over;

    #[test]
    fn workers_come_over_whole() {
        let worker = Worker {
            name: "host:7".into(),
            kind: WorkerKind::Task,
            address: None,
            queues: vec![QueueName::new("orders").unwrap()],
            in_flight: 2,
            waiting: true,
            first_seen_at: Timestamp::from_micros(1),
            last_seen_at: Timestamp::from_micros(2),
            idle_seconds: 1.25,
        };
        let workers = Workers { workers: vec![worker] };
        assert_eq!(over(&workers), workers);
    }
}
