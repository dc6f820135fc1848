//! What a stop came to.

use std::fmt;
use std::time::Duration;

use crate::counters::Counts;

/// Why a subscriber stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopCause {
    /// It was asked to.
    Requested,
    /// Nothing was left, and `stop_when_empty` is on.
    NothingLeft,
    /// Its provider was closed.
    ProviderClosed,
    /// One of its loops panicked, or its service could not be cloned again and again, which is a bug of Postrider's, of
    /// the provider or of the service: it stops and does not sit idle.
    Panicked(String),
}

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("asked to"),
            Self::NothingLeft => f.write_str("nothing was left"),
            Self::ProviderClosed => f.write_str("the provider was closed"),
            Self::Panicked(what) => write!(f, "a loop panicked: {what}"),
        }
    }
}

/// What a stop came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Why it stopped.
    pub cause: StopCause,
    /// Messages that were handled or decided when the stop began, or within its patience, and are settled.
    pub finished: u64,
    /// Messages that had not begun and were given back uncounted.
    pub released: u64,
    /// Handlers that did not end in time; their messages were given back with the delivery counted.
    pub abandoned: u64,
    /// Settlements that the store did not take in time. Their messages come back when their leases end.
    pub unsettled: u64,
    /// Whether it was cut short by a second request.
    pub was_forced: bool,
    /// How long it took.
    pub took: Duration,
    /// Everything since the start.
    pub totals: Counts,
}

impl StopReport {
    /// Whether every message that was leased has been settled or given back uncounted.
    pub fn is_clean(&self) -> bool {
        self.abandoned == 0 && self.unsettled == 0
    }
}

impl fmt::Display for StopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { finished, released, abandoned, unsettled, totals, .. } = self;
        write!(f, "{} acked, {} retried, {} dead; ", totals.acked, totals.retried, totals.dead)?;
        write!(f, "at the stop {finished} finished, {released} released, {abandoned} abandoned")?;
        if *unsettled > 0 {
            write!(f, ", {unsettled} not settled in time")?;
        }
        write!(f, " in {:.1} s", self.took.as_secs_f64())?;
        if self.cause != StopCause::Requested {
            write!(f, "; {}", self.cause)?;
        }
        Ok(())
    }
}
