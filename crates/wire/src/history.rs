//! Counts of queues over the last hour.

use postrider_core::{QueueName, Timestamp};
use serde::{Deserialize, Serialize};

/// One queue's counts: arrays of the same length, oldest first; null where not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub struct QueueHistory {
    /// The queue.
    pub queue: QueueName,
    /// Due and not leased.
    pub ready: Vec<Option<u64>>,
    /// Leased.
    pub in_flight: Vec<Option<u64>>,
    /// Not due yet.
    pub delayed: Vec<Option<u64>>,
    /// Dead letters.
    pub dead: Vec<Option<u64>>,
    /// Sent in the interval.
    pub sent: Vec<Option<u64>>,
    /// Received in the interval.
    pub received: Vec<Option<u64>>,
    /// Acknowledged in the interval.
    pub acked: Vec<Option<u64>>,
    /// Retried in the interval.
    pub retried: Vec<Option<u64>>,
    /// Dead-lettered in the interval.
    pub dead_lettered: Vec<Option<u64>>,
}

/// `GET /v1/history`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct History {
    /// Time between two counts.
    pub interval_seconds: f64,
    /// Time of the last count.
    pub now: Timestamp,
    /// The queues.
    pub queues: Vec<QueueHistory>,
    /// Time that the counts cover.
    pub since_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::round_trip;

    #[test]
    fn histories_round_trip() {
        let numbers = || vec![None, Some(0), Some(7)];
        let queue = QueueHistory {
            queue: QueueName::new("orders").unwrap(),
            ready: numbers(),
            in_flight: numbers(),
            delayed: numbers(),
            dead: numbers(),
            sent: numbers(),
            received: numbers(),
            acked: numbers(),
            retried: numbers(),
            dead_lettered: numbers(),
        };
        let now = Timestamp::from_micros(1);
        let history = History { interval_seconds: 2.5, now, queues: vec![queue], since_seconds: 3600.0 };
        assert_eq!(round_trip(&history), history);
    }
}
