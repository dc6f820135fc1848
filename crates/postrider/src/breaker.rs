//! A circuit breaker for calls to a failing store.
//!
//! **The idea.** When a store is down, every call waits for a time-out, and when it comes back, all callers retry at once.
//! A breaker counts consecutive failures. At the threshold it opens: calls are refused at once, with the time left.
//! Then the next call first checks the store's health: the probe. After
//! [`success_threshold`](BreakerSettings::success_threshold) consecutive successful probes the breaker closes and the
//! call is made; after a failed probe the breaker stays open for twice as long as before, up to
//! [`timeout`](BreakerSettings::timeout). A call itself is never the probe: a probe has a time limit, and a purge that
//! is cut off is half done.
//!
//! **Short holds.** The first probe comes after 100 ms. A breaker that refuses calls for longer than the outage prolongs
//! the outage: with a fixed time of 10 s the next delivery after a restart of PostgreSQL was 2.1 s late in the median
//! and 9.4 s at most. One health check in half a second costs a store nothing. A wake-up hint of the provider ends the
//! hold at once, because hints come over a connection to the store.
//!
//! **Deferred calls.** A refused settle means that finished work is repeated. So settles and extensions are not refused
//! but deferred: they wait until the breaker closes and are then made. They wait at most until their deadline and the end
//! of their lease, as far as this process knows it; then they answer that the lease is over.
//!
//! **The invariant.** While the breaker is not closed, at most one admitted call, a probe, is under way. A cancelled
//! probe says nothing about the store; the next call probes.
//!
//! **What counts.** Failures are those of the connection or the server: [`MessagingError::Connection`], a retryable
//! [`MessagingError::Provider`], an [`MessagingError::OutcomeUnknown`] with a cause. A success is an answer. Everything
//! else counts as nothing: a call that its caller's own deadline ended, and errors that can be found without the store,
//! such as invalid input, and on some stores an ended lease or a missing queue.
//!
//! **Consecutive.** An answer is about the time since its call began. When a failure was counted since then, the answer
//! is outdated and counts as nothing. Calls that fail together, in one batch or on one connection, are therefore one
//! failure; and a receive that waited meanwhile cannot hide the failures of other calls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, MessagingError};
use tokio::sync::Notify;
use tokio::time::Instant;

mod answer;
mod deferred;
mod guarded;
mod lease_ends;

pub use guarded::Guarded;

/// Time of refusals when the breaker opens, doubled by each failed probe. Also the `retry_after` while a probe is under
/// way, which may end at any moment.
const FIRST_HOLD: Duration = Duration::from_millis(100);

/// Lower bound of a probe's time limit. A probe whose request or answer was lost blocks all calls until then, although
/// the network may be back; then another one is made.
const PROBE_LIMIT: Duration = Duration::from_millis(1500);

/// Thresholds and times of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Number of consecutive failures that open it. Zero counts as one.
    pub failure_threshold: u32,
    /// Number of consecutive successful probes that close it. Zero counts as one.
    pub success_threshold: u32,
    /// Longest time of refusals before the next probe.
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
    /// Probes the store, and refuses further calls meanwhile.
    HalfOpen,
}

/// Counts failures and admits or refuses calls.
#[derive(Debug)]
pub struct CircuitBreaker {
    settings: BreakerSettings,
    /// Held for a few instructions, never across an await.
    state: Mutex<State>,
    /// Wakes deferred calls when a probe has ended.
    probed: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Rises with every counted failure and every change of phase. An answer to a call of an earlier round is outdated.
    round: u64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Closed {
        failures: u32,
    },
    /// From `until` on, the next call is a probe. `hold` is the time of refusals after the last failure.
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

    /// Its thresholds and times.
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

    /// How long a deferred call waits before its next try, unless a probe ends earlier.
    fn retry_wait(&self) -> Duration {
        match self.state() {
            BreakerState::Open { retry_after } => retry_after,
            BreakerState::Closed { .. } | BreakerState::HalfOpen => self.settings.timeout.min(FIRST_HOLD),
        }
    }

    /// Admits a call to `provider`, or refuses it with the time left.
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

    /// Lets the next call probe at once, because the store has responded.
    fn store_responded(&self) {
        let mut state = self.lock();
        if let Phase::Open { until, .. } = &mut state.phase {
            *until = (*until).min(Instant::now());
            drop(state);
            self.probed.notify_waiters();
        }
    }

    fn open(&self, hold: Duration) -> Phase {
        let hold = hold.min(self.settings.timeout);
        // The configuration cannot lead to a sum beyond the clock's range.
        let now = Instant::now();
        Phase::Open { until: now.checked_add(hold).unwrap_or(now), hold, successes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs while it is held.
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
    /// Neither: the store was not asked, or the cause is not known.
    Nothing,
}

/// A logged change of the breaker.
enum Transition {
    Opened { failures: u32 },
    Closed,
}

/// An admitted call. Dropped without a verdict, because the call was cancelled or panicked, it counts as nothing.
#[derive(Debug)]
struct Permit<'a> {
    breaker: &'a CircuitBreaker,
    provider: &'static str,
    round: u64,
    is_probe: bool,
}

impl Permit<'_> {
    /// The deadline of a probe: one that never ends would block all calls.
    fn probe_deadline(&self, deadline: Deadline) -> Deadline {
        deadline.at_most(self.breaker.settings.timeout.max(PROBE_LIMIT))
    }

    /// Counts the answer.
    fn answered(self, verdict: Verdict) {
        let mut state = self.breaker.lock();
        let mut transition = None;
        if state.round == self.round {
            match (state.phase, verdict) {
                (Phase::Closed { .. }, Verdict::Success) => state.phase = Phase::Closed { failures: 0 },
                (Phase::Closed { failures }, Verdict::Failure) => {
                    let failures = failures.saturating_add(1);
                    let opens = failures >= self.breaker.settings.failure_threshold;
                    state.enter(if opens { self.breaker.open(FIRST_HOLD) } else { Phase::Closed { failures } });
                    transition = opens.then_some(Transition::Opened { failures });
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
                    transition = closes.then_some(Transition::Closed);
                }
                (Phase::Probing { hold, .. }, Verdict::Failure) => {
                    state.enter(self.breaker.open(hold.saturating_mul(2)));
                }
                (_, Verdict::Nothing) | (Phase::Open { .. }, _) => {}
            }
        }
        // Released before the drop of the permit locks it again, and before the log.
        drop(state);
        let provider = self.provider;
        // Logged once each, however many probes fail in between.
        match transition {
            Some(Transition::Opened { failures }) => {
                tracing::warn!(provider, failures, "the store keeps failing; calls are held back until it answers");
            }
            Some(Transition::Closed) => tracing::warn!(provider, "the store answers again; calls go through"),
            None => {}
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.breaker.lock();
        // Still probing in this probe's round: it ended without a verdict, and the next call may probe.
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
