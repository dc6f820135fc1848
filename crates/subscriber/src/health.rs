//! The health of a subscriber: whether its calls to the store succeed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postrider_core::MessagingError;
use tokio::time::Instant;

/// Number of consecutive failed fetches, or settles, from which on a subscriber counts as failing.
const FAILING: u32 = 3;

/// The state of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// No fetch has succeeded yet, and few have failed.
    Starting,
    /// The last fetches and settles succeeded, or only a few in a row failed.
    Up,
    /// Fetches or settles keep failing; they are retried with growing pauses.
    Failing,
    /// A stop was requested.
    Stopping,
    /// It has ended.
    Stopped,
}

/// The health of a subscriber.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// Its state.
    pub state: HealthState,
    /// Time since the last successful fetch.
    pub since_last_fetch: Option<Duration>,
    /// Number of consecutive failed fetches, or failed settles if they are more.
    pub errors_in_a_row: u32,
    /// The last error of a fetch or a settle.
    pub last_error: Option<MessagingError>,
}

#[derive(Debug, Default)]
struct Facts {
    last_fetch: Option<Instant>,
    fetch_errors: u32,
    settle_errors: u32,
    cannot_renew: bool,
    last_error: Option<MessagingError>,
    end: Option<HealthState>,
}

impl Facts {
    fn errors_in_a_row(&self) -> u32 {
        self.fetch_errors.max(self.settle_errors)
    }
}

/// The facts that the loops write and a [`Monitor`](crate::Monitor) reads.
#[derive(Debug, Default)]
pub(crate) struct HealthCell(Mutex<Facts>);

impl HealthCell {
    fn change<T>(&self, change: impl FnOnce(&mut Facts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a successful fetch. Returns whether the one before had failed.
    pub(crate) fn fetched(&self, now: Instant) -> bool {
        self.change(|facts| {
            facts.last_fetch = Some(now);
            std::mem::take(&mut facts.fetch_errors) > 0
        })
    }

    /// Records a failed fetch. Returns the number of consecutive failures.
    pub(crate) fn fetch_failed(&self, error: MessagingError) -> u32 {
        self.change(|facts| {
            facts.fetch_errors = facts.fetch_errors.saturating_add(1);
            facts.last_error = Some(error);
            facts.fetch_errors
        })
    }

    /// Records a successful settle. Returns whether the one before had failed.
    pub(crate) fn settled(&self) -> bool {
        self.change(|facts| std::mem::take(&mut facts.settle_errors) > 0)
    }

    /// Records the renewal of a lease, or its failure. Returns whether that differs from the one before.
    pub(crate) fn renewed(&self, is_renewed: bool) -> bool {
        self.change(|facts| std::mem::replace(&mut facts.cannot_renew, !is_renewed) == is_renewed)
    }

    /// Records a failed settle. Returns the number of consecutive failures.
    pub(crate) fn settle_failed(&self, error: MessagingError) -> u32 {
        self.change(|facts| {
            facts.settle_errors = facts.settle_errors.saturating_add(1);
            facts.last_error = Some(error);
            facts.settle_errors
        })
    }

    pub(crate) fn ended(&self, end: HealthState) {
        self.change(|facts| facts.end = Some(end));
    }

    pub(crate) fn read(&self) -> Health {
        self.change(|facts| Health {
            state: match facts.end {
                Some(end) => end,
                None if facts.errors_in_a_row() >= FAILING => HealthState::Failing,
                None if facts.last_fetch.is_none() => HealthState::Starting,
                None => HealthState::Up,
            },
            since_last_fetch: facts.last_fetch.map(|at| at.elapsed()),
            errors_in_a_row: facts.errors_in_a_row(),
            last_error: facts.last_error.clone(),
        })
    }
}
