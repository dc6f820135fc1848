//! How much is asked of a store.

/// A latency is measured for that long at most, however many messages there are.
const LATENCY_SECONDS: usize = 5;

/// How much is asked of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// How many messages a workload has.
    pub messages: usize,
    /// How many bytes a body has.
    pub size: usize,
    /// How many callers send at the same time, one message each.
    pub callers: usize,
    /// How many messages a batch has, sent or leased.
    pub batch: usize,
    /// How many loops lease and acknowledge at the same time.
    pub workers: usize,
    /// How many messages a second are sent while latency is measured.
    pub pace: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { messages: 50_000, size: 200, callers: 64, batch: 100, workers: 1, pace: 400 }
    }
}

impl Load {
    /// How many messages the latency is taken from.
    pub fn latency_messages(&self) -> usize {
        self.messages.min(self.pace.saturating_mul(LATENCY_SECONDS))
    }
}
