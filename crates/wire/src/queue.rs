//! Queues and their counts.

use std::time::Duration;

use postrider_core::{Measured, QueueHealthReport, QueueName, QueueStats};
use serde::{Deserialize, Serialize};

use super::object;
use super::task::Percentiles;

/// Counts of a queue. An unknown count is null and named in `unknown`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "QueueStats"))]
pub struct Stats {
    /// The queue.
    pub queue: QueueName,
    /// Due and not leased.
    pub ready: Option<u64>,
    /// Leased.
    pub in_flight: Option<u64>,
    /// Not due yet.
    pub delayed: Option<u64>,
    /// Dead letters of the queue.
    pub dead: Option<u64>,
    /// Age of the oldest ready message; also null when no message is ready.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub oldest_age_seconds: Option<f64>,
    /// Whether the queue is paused.
    pub paused: bool,
    /// Names of the fields that are approximate.
    #[serde(default)]
    pub approximate: Vec<String>,
    /// Names of the fields that the store cannot determine.
    #[serde(default)]
    pub unknown: Vec<String>,
}

impl From<&QueueStats> for Stats {
    fn from(stats: &QueueStats) -> Self {
        let (mut approximate, mut unknown) = (Vec::new(), Vec::new());
        fn value<T: Copy>(
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
            ready: value("ready", stats.ready, &mut approximate, &mut unknown),
            in_flight: value("in_flight", stats.in_flight, &mut approximate, &mut unknown),
            delayed: value("delayed", stats.delayed, &mut approximate, &mut unknown),
            dead: value("dead", stats.dead, &mut approximate, &mut unknown),
            oldest_age_seconds: value("oldest_age_seconds", stats.oldest_age, &mut approximate, &mut unknown)
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
        let accuracy = |name: &str| {
            let is_listed = |names: &[String]| names.iter().any(|other| other == name);
            (is_listed(&stats.approximate), is_listed(&stats.unknown))
        };
        // A null is unknown, whether or not `unknown` names it.
        let count = |name: &str, value: Option<u64>| match (value, accuracy(name)) {
            (None, _) | (_, (_, true)) => Measured::Unknown,
            (Some(value), (true, _)) => Measured::Approximate(value),
            (Some(value), _) => Measured::Exact(value),
        };
        let age = stats.oldest_age_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let oldest_age = match accuracy("oldest_age_seconds") {
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
    /// Only names with this prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Page size; 100 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// `GET /v1/queues`, sorted by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueuesPage {
    /// The queues.
    pub queues: Vec<Stats>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// `GET /v1/queue-names`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueNames {
    /// All names, sorted.
    pub queues: Vec<QueueName>,
}

/// `POST /v1/queues/verify`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    /// The queues that should exist.
    #[serde(deserialize_with = "object::values")]
    pub queues: Vec<QueueName>,
}

/// Which of the given queues exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "QueueHealth"))]
pub struct Verified {
    /// Existing and usable.
    #[serde(default)]
    pub healthy: Vec<QueueName>,
    /// Not existing.
    #[serde(default)]
    pub missing: Vec<QueueName>,
    /// Existing but not usable.
    #[serde(default)]
    pub errors: Vec<UnusableQueue>,
}

/// A queue that exists but cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Paused {
    /// The queue.
    pub queue: QueueName,
    /// Whether the queue is paused now.
    pub paused: bool,
}

/// How many messages a purge removed, or would remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Purged {
    /// Number of messages.
    pub purged: u64,
    /// Whether nothing was changed because the request was a dry run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// `GET /v1/queues/{queue}/durations`: durations of the last hour, of messages that this server delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "QueueDurations"))]
pub struct Durations {
    /// Waiting time of messages at their first delivery.
    pub waited: Option<Percentiles>,
    /// Time from delivery to the end of the handler.
    pub took: Option<Percentiles>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{is_refused, json, round_trip};

    fn name() -> QueueName {
        QueueName::new("orders").unwrap()
    }

    #[test]
    fn counts_round_trip_with_their_accuracy() {
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
            assert_eq!(QueueStats::from(round_trip(&Stats::from(&stats))), stats);
        }
    }

    #[test]
    fn unknown_counts_are_null_and_named() {
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
    fn reports_round_trip() {
        let report = QueueHealthReport {
            healthy: vec![name()],
            missing: vec![QueueName::new("gone").unwrap()],
            errors: vec![(name(), "no right".into())],
        };
        assert_eq!(QueueHealthReport::from(round_trip(&Verified::from(report.clone()))), report);
        assert!(is_refused::<VerifyRequest>(r#"{"queues":[],"all":true}"#));
        assert!(is_refused::<VerifyRequest>(r#"{"queues":["a b"]}"#));
    }
}
