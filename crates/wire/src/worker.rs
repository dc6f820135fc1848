//! Workers that the server has seen.

use postrider_core::{QueueName, Timestamp};
use serde::{Deserialize, Serialize};

/// Kind of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum WorkerKind {
    /// Receives messages over HTTP.
    Http,
    /// Claims tasks.
    Task,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: WorkerKind,
    /// Its address.
    pub address: Option<String>,
    /// Its queues.
    pub queues: Vec<QueueName>,
    /// Number of its leases.
    pub in_flight: u64,
    /// Whether it waits in a receive or claim.
    pub waiting: bool,
    /// When it was first seen.
    pub first_seen_at: Timestamp,
    /// When it was last seen.
    pub last_seen_at: Timestamp,
    /// Time since it was last seen.
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
    use crate::testing::round_trip;

    #[test]
    fn workers_round_trip() {
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
        assert_eq!(round_trip(&workers), workers);
    }
}
