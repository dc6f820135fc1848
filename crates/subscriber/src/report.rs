//! The report of a stop.

use std::fmt;
use std::time::Duration;

use crate::counters::Counts;

/// Why a subscriber stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopCause {
    /// A stop was requested.
    Requested,
    /// Nothing was left, and `stop_when_empty` is on.
    NothingLeft,
    /// Its provider was closed.
    ProviderClosed,
    /// One of its loops panicked, or its service repeatedly could not be cloned. That is a bug of Postrider, of the
    /// provider or of the service; the subscriber stops and does not stay idle.
    Panicked(String),
}

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("a stop was requested"),
            Self::NothingLeft => f.write_str("nothing was left"),
            Self::ProviderClosed => f.write_str("the provider was closed"),
            Self::Panicked(what) => write!(f, "a loop panicked: {what}"),
        }
    }
}

/// The report of a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Why it stopped.
    pub cause: StopCause,
    /// Messages that were running or decided when the stop began, and were settled in time.
    pub finished: u64,
    /// Messages that had not started and were released uncounted.
    pub released: u64,
    /// Handlers that did not end in time; their messages went back with the delivery counted.
    pub abandoned: u64,
    /// Settlements that the store did not answer in time. Their messages are delivered again when their leases end.
    pub unsettled: u64,
    /// Whether a second request cut it short.
    pub was_forced: bool,
    /// Duration of the stop.
    pub took: Duration,
    /// Counts since the start.
    pub totals: Counts,
}

impl StopReport {
    /// Whether every leased message was settled or released uncounted.
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
