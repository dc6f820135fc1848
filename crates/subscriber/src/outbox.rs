//! Settlements to send to the store: their order, their time, and the effect of the answers.

use std::time::Duration;

use postrider_core::{LeaseToken, MessagingError, RowResults, Settlement};
use tokio::time::Instant;

use crate::buffer::Buffer;
use crate::counters::{Outcome, Tally};
use crate::held::{Phase, later};
use crate::work::MAX_BURST;

/// Upper bound of rows in one settle: a failed batch is repeated whole, and stores have limits.
pub(crate) const MAX_ROWS: usize = 1000;

/// Pause after the first failed call, which doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Upper bound of the pause, and so of the delay after an outage has ended.
pub(crate) const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The pause after this number of consecutive failures.
pub(crate) fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(MAX_PAUSE)
}

/// The parameters of a fetch.
#[derive(Debug)]
pub(crate) struct FetchPlan {
    pub(crate) rows: Rows,
    pub(crate) max: usize,
    /// Whether no message is leased except those that the fetch settles.
    pub(crate) was_idle: bool,
}

/// Settlements that are under way, and their lease tokens.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) tokens: Vec<LeaseToken>,
    pub(crate) settlements: Vec<Settlement>,
}

/// The loops that have something to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wakes {
    pub(crate) fetch: bool,
    pub(crate) flush: bool,
}

impl Buffer {
    /// Number of messages that a fetch would settle now.
    fn settleable(&self, now: Instant) -> usize {
        if now < self.settle_not_before { 0 } else { self.outbox.len().min(MAX_ROWS) }
    }

    /// Whether a fetch, which also settles the outbox, would begin now.
    fn fetches_now(&self, now: Instant) -> bool {
        self.fetch.is_wanted
            && !self.fetch.is_calling
            && !self.is_stopping
            && now >= self.fetch.not_before
            && self.is_worth_a_fetch(self.fetchable(self.settleable(now)))
    }

    /// Whether a fetch of `max` messages should begin. While enough messages wait, it should fetch at least half of
    /// those that are leased in advance.
    fn is_worth_a_fetch(&self, max: usize) -> bool {
        let in_advance = self.plan.capacity - self.plan.workers * self.plan.at_a_time;
        max > 0 && (!self.has_enough() || max >= in_advance / 2 || max >= self.plan.fetch_batch_size)
    }

    /// Whether more messages wait than can start.
    fn has_enough(&self) -> bool {
        // Handlers that end without waiting: one worker is faster than several would be woken.
        let startable = if self.is_quick { MAX_BURST * 2 } else { self.startable() };
        self.waiting > startable && !self.fetch.only_what_can_start
    }

    /// Whether a fetch will soon settle the outbox: now, or with a little more free capacity.
    fn will_fetch(&self, now: Instant) -> bool {
        self.fetch.is_wanted
            && !self.is_stopping
            && now >= self.fetch.not_before
            && (self.has_enough() || self.fetches_now(now))
    }

    /// Begins a fetch, if there may be messages to fetch and there is capacity for them.
    pub(crate) fn begin_fetch(&mut self, now: Instant) -> Option<FetchPlan> {
        if !self.fetches_now(now) {
            return None;
        }
        let max = self.fetchable(self.settleable(now));
        let rows = if now < self.settle_not_before { Rows::default() } else { self.take_rows(now) };
        self.fetch.is_wanted = false;
        self.fetch.is_calling = true;
        let was_idle = self.busy == 0 && self.held.len() == rows.tokens.len();
        Some(FetchPlan { rows, max, was_idle })
    }

    /// When the outbox must be flushed without a fetch; `None` when it is empty.
    pub(crate) fn flush_at(&self, now: Instant) -> Option<Instant> {
        let deferred = self.deferred.iter().map(|(at, _)| *at).min();
        let at = [self.outbox_at(now), deferred].into_iter().flatten().min()?;
        Some(at.max(self.settle_not_before))
    }

    fn outbox_at(&self, now: Instant) -> Option<Instant> {
        let oldest = self.outbox.iter().find_map(|token| match &self.held.get(token)?.phase {
            Phase::Decided(decision) => Some(decision.since),
            _ => None,
        })?;
        let waits_for_fetch = self.fetch.is_calling || self.will_fetch(now);
        let is_due = self.is_stopping || self.is_urgent || !waits_for_fetch || self.outbox.len() >= MAX_ROWS;
        Some(if is_due { now } else { oldest + self.plan.flush_interval })
    }

    /// The loops to wake after a change.
    pub(crate) fn wakes(&self, now: Instant) -> Wakes {
        let fetch = self.fetches_now(now);
        // Most settlements are part of a fetch: the flush loop is woken only when it must settle before its next check.
        let is_before = |at: Instant| self.flushes_at.is_none_or(|known| at < known);
        let flush = (!fetch || self.is_urgent) && self.flush_at(now).is_some_and(is_before);
        Wakes { fetch, flush }
    }

    /// Takes the next rows out of the outbox, to settle them.
    pub(crate) fn take_rows(&mut self, now: Instant) -> Rows {
        let due = self.deferred.extract_if(.., |(at, _)| *at <= now);
        self.outbox.extend(due.map(|(_, token)| token));
        let mut rows = Rows::default();
        while rows.tokens.len() < MAX_ROWS {
            let Some(token) = self.outbox.pop_front() else {
                self.is_urgent = false;
                break;
            };
            // It may have been lost while it waited.
            let Some(held) = self.held.get_mut(&token) else { continue };
            held.phase = match std::mem::replace(&mut held.phase, Phase::Waiting) {
                Phase::Decided(decision) => {
                    rows.settlements.push(held.settlement(&decision.disposition));
                    rows.tokens.push(token);
                    Phase::Settling(decision)
                }
                other => other,
            };
        }
        self.settling += rows.tokens.len();
        rows
    }

    /// Records the results of a settle. Returns the first error for which rows must be retried.
    pub(crate) fn settled(
        &mut self,
        tokens: Vec<LeaseToken>,
        answer: Result<RowResults<()>, MessagingError>,
        now: Instant,
        tally: &mut Tally,
    ) -> Option<MessagingError> {
        self.settling -= tokens.len();
        let is_whole = answer.is_err();
        let mut again = Vec::new();
        let mut first = None;
        let mut results = match answer {
            Ok(results) => results.into_iter(),
            Err(error) => vec![Err(error); tokens.len()].into_iter(),
        };
        for token in tokens {
            let result = results.next().unwrap_or_else(unanswered);
            if let Some((error, failures)) = self.settled_row(token, result, tally) {
                again.push((token, failures));
                first.get_or_insert(error);
            }
        }
        if is_whole {
            self.settle_failures = self.settle_failures.saturating_add(1);
            self.settle_not_before = later(now, pause_after(self.settle_failures));
            // In front and in their order, so that the oldest is settled first.
            for (token, _) in again.into_iter().rev() {
                self.outbox.push_front(token);
            }
        } else {
            self.settle_failures = 0;
            // Each by itself, so that a row that keeps failing delays no other.
            self.deferred.extend(again.into_iter().map(|(token, failures)| (later(now, pause_after(failures)), token)));
        }
        first
    }

    /// Records the result of one row. Returns its error and its number of failures if it must be retried.
    fn settled_row(
        &mut self,
        token: LeaseToken,
        result: Result<(), MessagingError>,
        tally: &mut Tally,
    ) -> Option<(MessagingError, u32)> {
        // Removed, because it is rarely inserted again.
        let mut held = self.held.remove(&token)?;
        let Phase::Settling(mut decision) = std::mem::replace(&mut held.phase, Phase::Waiting) else {
            // Only `take_rows` sets this phase, and only this function ends it.
            return None;
        };
        let outcome = match &result {
            Ok(()) => Outcome::from(&decision.disposition),
            Err(MessagingError::VisibilityExpired { .. }) if decision.is_repeated => Outcome::Unknown,
            Err(MessagingError::VisibilityExpired { .. }) => Outcome::Lost,
            // Also when the answer was lost: while the lease is held, a second settle does no harm and shows the
            // outcome.
            Err(error) if error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. }) => {
                decision.is_repeated |= matches!(error, MessagingError::OutcomeUnknown { .. });
                decision.failures = decision.failures.saturating_add(1);
                let failures = decision.failures;
                held.phase = Phase::Decided(decision);
                self.held.insert(token, held);
                return result.err().map(|error| (error, failures));
            }
            Err(_) => Outcome::Refused,
        };
        tally.add(held.queue(), outcome);
        // An acknowledgement that a handler waits for is reported when that handler has ended.
        if decision.waiting.is_none() || outcome != Outcome::Acked {
            self.ended.add(outcome, || held.ended(outcome, Some(decision.disposition)));
        }
        if let Some(waiting) = decision.waiting.take() {
            // The receiver may have been dropped by a stop.
            let _ = waiting.send(if outcome == Outcome::Unknown { unanswered() } else { result });
        }
        if outcome == Outcome::Refused {
            // The lease is still valid: dropping the message returns it.
            self.refused.push(*held);
        } else {
            held.disarm();
        }
        None
    }
}

fn unanswered() -> Result<(), MessagingError> {
    Err(MessagingError::OutcomeUnknown { operation: "settle", ids: Vec::new(), source: None })
}
