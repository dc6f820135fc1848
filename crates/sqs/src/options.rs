//! Options of a connection to SQS.

use std::time::Duration;

use postrider_core::{Limits, MessagingError};

/// Options of a connection to SQS.
#[derive(Debug, Clone)]
pub struct SqsOptions {
    /// Whether a send creates a missing queue.
    pub create_queues: bool,
    /// Maximum number of parallel calls of one batch.
    pub parallel_calls: usize,
    /// Time limit of a connect.
    pub connect_timeout: Duration,
    /// Time limit of SQS's answer, without the wait of a long poll, and of the retries of a throttled call.
    pub call_timeout: Duration,
    /// Limits of messages. SQS's own limits apply where they are lower.
    pub limits: Limits,
}

impl Default for SqsOptions {
    fn default() -> Self {
        Self {
            create_queues: true,
            parallel_calls: 16,
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

impl SqsOptions {
    /// Refuses zeros.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
        let zero = [
            ("parallel_calls", self.parallel_calls == 0),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("call_timeout", self.call_timeout.is_zero()),
        ];
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(MessagingError::invalid(name, "0 allows no call; set a larger value")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_refused() {
        assert!(SqsOptions::default().check().is_ok());
        assert!(SqsOptions { parallel_calls: 0, ..Default::default() }.check().is_err());
        assert!(SqsOptions { call_timeout: Duration::ZERO, ..Default::default() }.check().is_err());
    }
}
