//! Calls to a store that keeps failing are held back.
//!
//! **The idea.** When a store is down, every call waits for a time-out, and when it comes back, everybody comes at once.
//! A breaker counts failures in a row. At the threshold it opens: calls are refused at once, with the time that is left.
//! Then the next call has the store's health checked first: the probe. When as many probes in a row as
//! [`success_threshold`](BreakerSettings::success_threshold) says have succeeded the breaker closes and the call goes on
//! as it was asked for; if one fails, the breaker stays open for twice as long as before, up to
//! [`timeout`](BreakerSettings::timeout). A call itself is never the probe: a probe must have an end, and a purge that is
//! cut off is half done.
//!
//! **Short.** The first probe comes after 100 ms. A breaker that holds calls back for longer than the store is away makes
//! the outage longer: with a fixed time of 10 s the next delivery after a restart of PostgreSQL came 2.1 s late in the
//! median and 9.4 s at most. One health check in half a second costs a dead store nothing. A wake-up hint of the provider
//! ends the hold at once: the hints come over a connection to the store, so there is one again.
//!
//! **What is kept.** A settle or an extend that is refused is work that was done and will be done again. Such a call is
//! not refused but kept: it waits until the breaker closes, and is then carried out. It waits no longer than its deadline
//! and no longer than its lease, as far as this process knows it; then it answers that the lease is over, which is so.
//!
//! **The invariant.** While the breaker is not closed, at most one call is under way that it let through, a probe. A
//! probe that is cancelled says nothing about the store and gives its place to the next call.
//!
//! **What counts.** A failure is one of the connection or of the server: [`MessagingError::Connection`], a retryable
//! [`MessagingError::Provider`], an [`MessagingError::OutcomeUnknown`] with a cause. A success is an answer. Everything
//! else says nothing: a call that its caller's own deadline ended is about the caller's patience; a caller's mistake is found without asking the store, and so are, on some stores, a lease that is over and
//! a queue that is not there. They neither open a breaker nor close one.
//!
//! **In a row.** An answer is about the time after its call began. When a failure was counted since then, the answer
//! is old and counts as nothing. Calls that fail together, because they were in one batch or on one connection, are
//! therefore one failure; and a receive that was waiting all the while cannot hide the failures that others saw.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, MessagingError};
use tokio::sync::Notify;
use tokio::time::Instant;

mod answer;
mod guarded;
mod kept;
mod lease_ends;

pub use guarded::Guarded;

/// How long calls are held back when the breaker opens. Doubled by each probe that fails. Also what callers are told
/// while a probe is under way, which may be over at any moment.
const FIRST_HOLD: Duration = Duration::from_millis(100);

/// How long a probe may take, unless the time between two probes is longer. A probe whose question or answer was lost
/// on the way keeps all others back until then, although the link is there again: it ends, and another one asks anew.
const PROBE_LIMIT: Duration = Duration::from_millis(1500);

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// How many failures in a row open it. Zero counts as one.
    pub failure_threshold: u32,
    /// How many probes in a row must succeed before it closes. Zero counts as one.
    pub success_threshold: u32,
    /// The longest time for which calls are held back before the store is tried again.
    pub timeout: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failure_threshold: 5, success_threshold: 2, timeout: Duration::from_millis(500) }
    }
}

/// What a breaker does with the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Lets it through.
    Closed {
        /// Failures in a row so far.
        failures: u32,
    },
    /// Refuses it.
    Open {
        /// For how long.
        retry_after: Duration,
    },
    /// Has the store tried, and refuses others while that is under way.
    HalfOpen,
}

/// Counts failures and decides which calls are let through.
#[derive(Debug)]
pub struct CircuitBreaker {
    settings: BreakerSettings,
    /// Held for a few instructions only, never across an await.
    state: Mutex<State>,
    /// Calls that are kept wait for this: it tells that a probe has ended.
    probed: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Rises with every failure that is counted and every change of phase. An answer to a call of an earlier round is
    /// old.
    round: u64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Closed {
        failures: u32,
    },
    /// From `until` on, the next call is a probe. `hold` is how long the last failure holds calls back.
    Open {
        until: Instant,
        hold: Duration,
        successes: u32,
    },
    Probing {
        hold: Duration,
        successes: u32,
    },
}

impl CircuitBreaker {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        let state = State { phase: Phase::Closed { failures: 0 }, round: 0 };
        Self { settings, state: Mutex::new(state), probed: Notify::new() }
    }

    /// When it opens, and for how long.
    pub fn settings(&self) -> BreakerSettings {
        self.settings
    }

    /// What it would do with a call now.
    pub fn state(&self) -> BreakerState {
        match self.lock().phase {
            Phase::Closed { failures } => BreakerState::Closed { failures },
            Phase::Open { until, .. } => match until.saturating_duration_since(Instant::now()) {
                Duration::ZERO => BreakerState::HalfOpen,
                retry_after => BreakerState::Open { retry_after },
            },
            Phase::Probing { .. } => BreakerState::HalfOpen,
        }
    }

    /// How long a call that was refused waits before it asks again, unless a probe ends earlier.
    fn patience(&self) -> Duration {
        match self.state() {
            BreakerState::Open { retry_after } => retry_after,
            BreakerState::Closed { .. } | BreakerState::HalfOpen => self.settings.timeout.min(FIRST_HOLD),
        }
    }

    /// Lets a call to `provider` through, or refuses it with the time that is left.
    fn admit(&self, provider: &'static str) -> Result<Permit<'_>, MessagingError> {
        let refused = |retry_after| Err(MessagingError::CircuitBreakerOpen { provider, retry_after });
        let mut state = self.lock();
        let is_probe = match state.phase {
            Phase::Closed { .. } => false,
            Phase::Open { until, hold, successes } => {
                let left = until.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    return refused(left);
                }
                state.enter(Phase::Probing { hold, successes });
                true
            }
            Phase::Probing { .. } => return refused(self.settings.timeout.min(FIRST_HOLD)),
        };
        Ok(Permit { breaker: self, provider, round: state.round, is_probe })
    }

    /// The store has given a sign of life: the next call may probe at once.
    fn sign_of_life(&self) {
        let mut state = self.lock();
        if let Phase::Open { until, .. } = &mut state.phase {
            *until = (*until).min(Instant::now());
            drop(state);
            self.probed.notify_waiters();
        }
    }

    fn open(&self, hold: Duration) -> Phase {
        let hold = hold.min(self.settings.timeout);
        // A sum that leaves the clock's range cannot come from the configuration; it is cut to what there is.
        let now = Instant::now();
        Phase::Open { until: now.checked_add(hold).unwrap_or(now), hold, successes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic is called while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.round += 1;
    }
}

/// What the answer to a call says about the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Success,
    Failure,
    /// Neither: nobody asked the store, or it cannot be told.
    Nothing,
}

/// What the log is told of a breaker.
enum Turn {
    Opened { failures: u32 },
    Closed,
}

/// A call that was let through. Dropped without a verdict, because the call was cancelled or panicked, it counts as
/// nothing.
#[derive(Debug)]
struct Permit<'a> {
    breaker: &'a CircuitBreaker,
    provider: &'static str,
    round: u64,
    is_probe: bool,
}

impl Permit<'_> {
    /// How long a probe may take: one that never ends would hold everybody back for ever.
    fn probe_deadline(&self, deadline: Deadline) -> Deadline {
        deadline.at_most(self.breaker.settings.timeout.max(PROBE_LIMIT))
    }

    /// Counts the answer.
    fn answered(self, verdict: Verdict) {
        let mut state = self.breaker.lock();
        let mut turn = None;
        if state.round == self.round {
            match (state.phase, verdict) {
                (Phase::Closed { .. }, Verdict::Success) => state.phase = Phase::Closed { failures: 0 },
                (Phase::Closed { failures }, Verdict::Failure) => {
                    let failures = failures.saturating_add(1);
                    let opens = failures >= self.breaker.settings.failure_threshold;
                    state.enter(if opens { self.breaker.open(FIRST_HOLD) } else { Phase::Closed { failures } });
                    turn = opens.then_some(Turn::Opened { failures });
                }
                (Phase::Probing { hold, successes }, Verdict::Success) => {
                    let successes = successes.saturating_add(1);
                    let closes = successes >= self.breaker.settings.success_threshold;
                    let until = Instant::now();
                    state.enter(if closes {
                        Phase::Closed { failures: 0 }
                    } else {
                        Phase::Open { until, hold, successes }
                    });
                    turn = closes.then_some(Turn::Closed);
                }
                (Phase::Probing { hold, .. }, Verdict::Failure) => {
                    state.enter(self.breaker.open(hold.saturating_mul(2)));
                }
                (_, Verdict::Nothing) | (Phase::Open { .. }, _) => {}
            }
        }
        // Released before the permit is dropped, which takes it again, and before anything is logged.
        drop(state);
        let provider = self.provider;
        // Once each, however many probes fail between them.
        match turn {
            Some(Turn::Opened { failures }) => {
                tracing::warn!(provider, failures, "the store keeps failing; calls are held back until it answers");
            }
            Some(Turn::Closed) => tracing::warn!(provider, "the store answers again; calls go through"),
            None => {}
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.breaker.lock();
        // Still probing in this probe's own round: it ended without a verdict. The next call may try at once.
        if self.is_probe
            && state.round == self.round
            && let Phase::Probing { hold, successes } = state.phase
        {
            state.enter(Phase::Open { until: Instant::now(), hold, successes });
        }
        drop(state);
        if self.is_probe {
            self.breaker.probed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod script;
#[cfg(test)]
mod tests;
