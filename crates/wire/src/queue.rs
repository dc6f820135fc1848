//! Queues, and what they hold.

use std::time::Duration;

use postrider_core::{Measured, QueueHealthReport, QueueName, QueueStats};
use serde::{Deserialize, Serialize};

use super::object;
use super::task::Percentiles;

/// What a queue holds. A number that is not known is null and named in `unknown`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The queue.
    pub queue: QueueName,
    /// Due and not leased.
    pub ready: Option<u64>,
    /// Leased.
    pub in_flight: Option<u64>,
    /// Not due yet.
    pub delayed: Option<u64>,
    /// In the queue's dead letters.
    pub dead: Option<u64>,
    /// How long ago the oldest ready message was accepted; null as well when none is ready.
    pub oldest_age_seconds: Option<f64>,
    /// Whether receives are held back.
    pub paused: bool,
    /// The fields that are near the truth, or a little old.
    #[serde(default)]
    pub approximate: Vec<String>,
    /// The fields that the store cannot tell.
    #[serde(default)]
    pub unknown: Vec<String>,
}

impl From<&QueueStats> for Stats {
    fn from(stats: &QueueStats) -> Self {
        let (mut approximate, mut unknown) = (Vec::new(), Vec::new());
        fn told<T: Copy>(
            name: &str,
            measured: Measured<T>,
            approximate: &mut Vec<String>,
            unknown: &mut Vec<String>,
        ) -> Option<T> {
            match measured {
                Measured::Exact(_) => {}
                Measured::Approximate(_) => approximate.push(name.to_owned()),
                Measured::Unknown => unknown.push(name.to_owned()),
            }
            measured.value()
        }
        Self {
            queue: stats.queue.clone(),
            ready: told("ready", stats.ready, &mut approximate, &mut unknown),
            in_flight: told("in_flight", stats.in_flight, &mut approximate, &mut unknown),
            delayed: told("delayed", stats.delayed, &mut approximate, &mut unknown),
            dead: told("dead", stats.dead, &mut approximate, &mut unknown),
            oldest_age_seconds: told("oldest_age_seconds", stats.oldest_age, &mut approximate, &mut unknown)
                .flatten()
                .map(|age| age.as_secs_f64()),
            paused: stats.paused,
            approximate,
            unknown,
        }
    }
}

impl From<Stats> for QueueStats {
    fn from(stats: Stats) -> Self {
        let trust = |name: &str| {
            let named = |names: &[String]| names.iter().any(|other| other == name);
            (named(&stats.approximate), named(&stats.unknown))
        };
        // A number that is not there is not known, whether or not the list says so.
        let count = |name: &str, value: Option<u64>| match (value, trust(name)) {
            (None, _) | (_, (_, true)) => Measured::Unknown,
            (Some(value), (true, _)) => Measured::Approximate(value),
            (Some(value), _) => Measured::Exact(value),
        };
        let age = stats.oldest_age_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let oldest_age = match trust("oldest_age_seconds") {
            (_, true) => Measured::Unknown,
            (true, _) => Measured::Approximate(age),
            _ => Measured::Exact(age),
        };
        Self {
            ready: count("ready", stats.ready),
            in_flight: count("in_flight", stats.in_flight),
            delayed: count("delayed", stats.delayed),
            dead: count("dead", stats.dead),
            oldest_age,
            paused: stats.paused,
            queue: stats.queue,
        }
    }
}

/// The query of `GET /v1/queues`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueuesQuery {
    /// Those whose name begins with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// At most that many; 100 without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Those after the page that ended with this cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// `GET /v1/queues`, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueuesPage {
    /// The queues.
    pub queues: Vec<Stats>,
    /// Where the next page begins.
    pub next: Option<String>,
}

/// `GET /v1/queue-names`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueNames {
    /// All of them, by name.
    pub queues: Vec<QueueName>,
}

/// `POST /v1/queues/verify`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// The queues that should be there.
    #[serde(deserialize_with = "object::values")]
    pub queues: Vec<QueueName>,
}

/// Which of the queues that were asked for are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// There, and usable.
    #[serde(default)]
    pub healthy: Vec<QueueName>,
    /// Not there.
    #[serde(default)]
    pub missing: Vec<QueueName>,
    /// There, but not usable.
    #[serde(default)]
    pub errors: Vec<UnusableQueue>,
}

/// A queue that is there and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusableQueue {
    /// The queue.
    pub queue: QueueName,
    /// Why.
    pub error: String,
}

impl From<QueueHealthReport> for Verified {
    fn from(report: QueueHealthReport) -> Self {
        let errors = report.errors.into_iter().map(|(queue, error)| UnusableQueue { queue, error }).collect();
        Self { healthy: report.healthy, missing: report.missing, errors }
    }
}

impl From<Verified> for QueueHealthReport {
    fn from(verified: Verified) -> Self {
        let errors = verified.errors.into_iter().map(|row| (row.queue, row.error)).collect();
        Self { healthy: verified.healthy, missing: verified.missing, errors }
    }
}

/// `POST /v1/queues/{queue}/pause` and `…/resume`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// The queue.
    pub queue: QueueName,
    /// Whether receives are held back now.
    pub paused: bool,
}

/// How many messages a purge removed, or would remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// That many.
    pub purged: u64,
}

/// `GET /v1/queues/{queue}/durations`: of what went through the server in the last hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// How long messages had waited when they were first delivered.
    pub waited: Option<Percentiles>,
    /// How long it took from a delivery to the end of its handler.
    pub took: Option<Percentiles>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_trip::{is_refused, json, over};

    fn name() -> QueueName {
        QueueName::new("orders").unwrap()
    }

    #[test]
    fn numbers_come_over_with_how_far_they_can_be_trusted() {
        let age = Some(Duration::from_millis(12_500));
        for oldest_age in [
            Measured::Exact(None),
            Measured::Exact(age),
            Measured::Approximate(None),
            Measured::Approximate(age),
            Measured::Unknown,
        ] {
            let stats = QueueStats {
                queue: name(),
                ready: Measured::Exact(3),
                in_flight: Measured::Approximate(u64::MAX),
                delayed: Measured::Unknown,
                dead: Measured::Exact(0),
                oldest_age,
                paused: true,
            };
            assert_eq!(QueueStats::from(over(&Stats::from(&stats))), stats);
        }
    }

    #[test]
    fn what_is_not_known_is_null_and_named() {
        let stats = QueueStats {
            queue: name(),
            ready: Measured::Exact(3),
            in_flight: Measured::Unknown,
            delayed: Measured::Approximate(1),
            dead: Measured::Exact(0),
            oldest_age: Measured::Exact(None),
            paused: false,
        };
        let expected = serde_json::json!({
            "queue": "orders", "ready": 3, "in_flight": null, "delayed": 1, "dead": 0, "oldest_age_seconds": null,
            "paused": false, "approximate": ["delayed"], "unknown": ["in_flight"],
        });
        assert_eq!(json(&Stats::from(&stats)), expected);
    }

    #[test]
    fn reports_come_over_whole() {
        let report = QueueHealthReport {
            healthy: vec![name()],
            missing: vec![QueueName::new("gone").unwrap()],
            errors: vec![(name(), "no right".into())],
        };
        assert_eq!(QueueHealthReport::from(over(&Verified::from(report.clone()))), report);
        assert!(is_refused::<VerifyRequest>(r#"{"queues":[],"all":true}"#));
        assert!(is_refused::<VerifyRequest>(r#"{"queues":["a b"]}"#));
    }
}
