//! The configuration of a coalescer.

use crate::error::MessagingError;

/// Which batches can be in flight at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// One batch in each lane; lanes do not wait for each other. For stores with several connections.
    Separate,
    /// One batch in total, with rows of every lane, so that it can be one transaction. For stores with one writer.
    Merged,
}

/// The bounds of a coalescer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoalescerConfig {
    /// The provider's name, for errors.
    pub provider: &'static str,
    /// Which batches can be in flight at the same time.
    pub lanes: Lanes,
    /// Upper bound of the rows of one lane in a batch.
    pub max_rows: usize,
    /// Upper bound of the bytes of one lane in a batch. A larger row goes alone.
    pub max_bytes: usize,
    /// Upper bound of the queued rows of a lane. At the bound, callers wait.
    pub queue_rows: usize,
    /// Upper bound of the bytes of the queued rows.
    pub queue_bytes: usize,
}

impl CoalescerConfig {
    /// Separate lanes, batches of 1000 rows and 4 MiB a lane, queues of 10 000 rows and 32 MiB.
    pub const fn new(provider: &'static str) -> Self {
        Self {
            provider,
            lanes: Lanes::Separate,
            max_rows: 1000,
            max_bytes: 4 * 1024 * 1024,
            queue_rows: 10_000,
            queue_bytes: 32 * 1024 * 1024,
        }
    }

    /// Refuses bounds of 0.
    pub(super) fn check(&self) -> Result<(), MessagingError> {
        let bounds = [
            ("max_rows", self.max_rows),
            ("max_bytes", self.max_bytes),
            ("queue_rows", self.queue_rows),
            ("queue_bytes", self.queue_bytes),
        ];
        for (name, bound) in bounds {
            if bound == 0 {
                return Err(MessagingError::invalid(name, "it is 0; set at least 1"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_zero_is_refused_by_name() {
        let good = CoalescerConfig::new("fake");
        assert!(good.check().is_ok());
        let refused = |config: CoalescerConfig| match config.check() {
            Err(MessagingError::InvalidInput { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(CoalescerConfig { max_rows: 0, ..good.clone() }), "max_rows");
        assert_eq!(refused(CoalescerConfig { max_bytes: 0, ..good.clone() }), "max_bytes");
        assert_eq!(refused(CoalescerConfig { queue_rows: 0, ..good.clone() }), "queue_rows");
        assert_eq!(refused(CoalescerConfig { queue_bytes: 0, ..good }), "queue_bytes");
    }
}
