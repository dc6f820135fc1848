//! The size of a workload.

/// Upper bound of the duration of a latency workload.
const LATENCY_SECONDS: usize = 5;

/// The size of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Number of messages.
    pub messages: usize,
    /// Size of a body in bytes.
    pub size: usize,
    /// Number of concurrent callers that send single messages.
    pub callers: usize,
    /// Number of messages of a batch, sent or leased.
    pub batch: usize,
    /// Number of concurrent loops that lease and acknowledge.
    pub workers: usize,
    /// Messages sent per second while latency is measured.
    pub pace: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { messages: 50_000, size: 200, callers: 64, batch: 100, workers: 1, pace: 400 }
    }
}

impl Load {
    /// Number of messages of the latency workload.
    pub fn latency_messages(&self) -> usize {
        self.messages.min(self.pace.saturating_mul(LATENCY_SECONDS))
    }
}
