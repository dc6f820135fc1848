//! Whether a subscriber gets on with its store.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postrider_core::MessagingError;
use tokio::time::Instant;

/// After that many failed fetches, or settles, in a row a subscriber counts as failing.
const FAILING: u32 = 3;

/// How a subscriber is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// No fetch has succeeded yet, and not many have failed.
    Starting,
    /// The last fetches and settles succeeded, or only a few in a row failed.
    Up,
    /// Fetches or settles keep failing; they are tried again with growing pauses.
    Failing,
    /// A stop was asked for.
    Stopping,
    /// It has ended.
    Stopped,
}

/// How a subscriber is doing, and why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// In a word.
    pub state: HealthState,
    /// How long ago a fetch last succeeded.
    pub since_last_fetch: Option<Duration>,
    /// How many fetches in a row have failed, or settles, whichever is more.
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

/// Written by the loops, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct HealthCell(Mutex<Facts>);

impl HealthCell {
    fn change<T>(&self, change: impl FnOnce(&mut Facts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers whether fetches had failed before.
    pub(crate) fn fetched(&self, now: Instant) -> bool {
        self.change(|facts| {
            facts.last_fetch = Some(now);
            std::mem::take(&mut facts.fetch_errors) > 0
        })
    }

    /// Answers how many fetches in a row have failed.
    pub(crate) fn fetch_failed(&self, error: MessagingError) -> u32 {
        self.change(|facts| {
            facts.fetch_errors = facts.fetch_errors.saturating_add(1);
            facts.last_error = Some(error);
            facts.fetch_errors
        })
    }

    /// Answers whether settles had failed before.
    pub(crate) fn settled(&self) -> bool {
        self.change(|facts| std::mem::take(&mut facts.settle_errors) > 0)
    }

    /// A lease was renewed, or could not be. Answers whether that was different with the one before.
    pub(crate) fn renewed(&self, is_renewed: bool) -> bool {
        self.change(|facts| std::mem::replace(&mut facts.cannot_renew, !is_renewed) == is_renewed)
    }

    /// Answers how many settles in a row have failed.
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
