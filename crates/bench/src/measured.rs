//! Results of workloads.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::percentile::percentile;
use crate::workload::Workload;

/// Result of a workload: one line of `--json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Measured {
    /// Messages per second.
    Rate(Rate),
    /// Time of a message.
    Latency(Latency),
}

/// Messages per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rate {
    /// The workload.
    pub workload: Workload,
    /// Number of messages.
    pub messages: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// Messages per second.
    pub per_second: f64,
}

impl Rate {
    /// The rate of a number of messages in a time.
    pub fn new(workload: Workload, messages: usize, elapsed: Duration) -> Self {
        // Zero would give infinity, which JSON cannot represent.
        let seconds = elapsed.max(Duration::from_nanos(1)).as_secs_f64();
        Self { workload, messages, seconds, per_second: messages as f64 / seconds }
    }
}

/// Percentiles of the time from send to receive, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// [`Workload::Latency`].
    pub workload: Workload,
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

impl Latency {
    /// The percentiles of these times.
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent| percentile(&times, percent).unwrap_or_default().as_secs_f64() * 1000.0;
        Self { workload: Workload::Latency, p50_ms: at(50.0), p95_ms: at(95.0), p99_ms: at(99.0) }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(Rate { workload, messages, seconds, per_second }) => {
                write!(f, "{workload:<12} {messages:>9} messages  {seconds:>8.3} s  {per_second:>9.0} a second")
            }
            Self::Latency(Latency { workload, p50_ms, p95_ms, p99_ms }) => {
                write!(f, "{workload:<12} p50 {p50_ms:.3} ms, p95 {p95_ms:.3} ms, p99 {p99_ms:.3} ms")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_latencies_are_computed_and_shown() {
        let rate = Measured::Rate(Rate::new(Workload::SendOne, 500, Duration::from_millis(250)));
        assert_eq!(rate.to_string(), "send-one           500 messages     0.250 s       2000 a second");
        assert_eq!(
            serde_json::to_string(&rate).unwrap(),
            r#"{"workload":"send-one","messages":500,"seconds":0.25,"per_second":2000.0}"#
        );
        let times = (1..=200).rev().map(Duration::from_millis).collect();
        let latency = Measured::Latency(Latency::new(times));
        assert_eq!(latency.to_string(), "latency      p50 100.000 ms, p95 190.000 ms, p99 198.000 ms");
        assert_eq!(
            serde_json::to_string(&latency).unwrap(),
            r#"{"workload":"latency","p50_ms":100.0,"p95_ms":190.0,"p99_ms":198.0}"#
        );
        assert!(Rate::new(Workload::Drain, 1, Duration::ZERO).per_second.is_finite());
    }
}
