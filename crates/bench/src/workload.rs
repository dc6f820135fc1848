//! The workloads.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Concurrent callers send single messages.
    SendOne,
    /// One caller sends batches.
    SendBatch,
    /// Workers lease and acknowledge.
    Drain,
    /// A subscriber with an empty handler leases and acknowledges.
    Handle,
    /// The time from send to receive, at a steady rate.
    Latency,
}

impl Workload {
    /// All workloads, in the order of a run.
    pub const ALL: [Self; 5] = [Self::SendOne, Self::SendBatch, Self::Drain, Self::Handle, Self::Latency];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::SendOne => "send-one",
            Self::SendBatch => "send-batch",
            Self::Drain => "drain",
            Self::Handle => "handle",
            Self::Latency => "latency",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|workload| workload.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|workload| workload.name()).collect();
            format!("use one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for workload in Workload::ALL {
            assert_eq!(workload.name().parse(), Ok(workload));
        }
        let error = "sendone".parse::<Workload>().unwrap_err();
        assert_eq!(error, "use one of send-one, send-batch, drain, handle, latency");
    }
}
