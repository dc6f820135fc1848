//! How SQS is used.

use std::time::Duration;

use postrider_core::{Limits, MessagingError};

/// How SQS is used. The defaults are safe.
#[derive(Debug, Clone)]
pub struct SqsOptions {
    /// Whether a send creates a queue that is missing.
    pub create_queues: bool,
    /// How many calls are under way at the same time for one batch, at most.
    pub parallel_calls: usize,
    /// How long it may take to be connected.
    pub connect_timeout: Duration,
    /// How long SQS may take to answer, a long poll's own wait not counted, and for how long a call that SQS throttles is
    /// tried again.
    pub call_timeout: Duration,
    /// Sizes that are accepted. What SQS itself can hold is the limit in any case.
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
    /// Refuses what cannot be meant.
    pub(crate) fn check(&self) -> Result<(), MessagingError> {
        let zero = [
            ("parallel_calls", self.parallel_calls == 0),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("call_timeout", self.call_timeout.is_zero()),
        ];
        match zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(MessagingError::invalid(name, "it is 0, and nothing could ever be done")),
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
