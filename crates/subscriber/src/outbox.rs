//! Settlements on their way to the store: what goes out next, when, and what the answers mean.

use std::time::Duration;

use postrider_core::{LeaseToken, MessagingError, RowResults, Settlement};
use tokio::time::Instant;

use crate::buffer::Buffer;
use crate::counters::{Outcome, Tally};
use crate::held::{Phase, later};
use crate::work::MOST_IN_A_ROW;

/// No settle has more rows: a batch that fails is repeated whole, and a store's limits are never reached.
pub(crate) const MOST_ROWS: usize = 1000;

/// The pause after the first failed call; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// What an outage may last longer for a subscriber than it does.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The pause after so many failures in a row.
pub(crate) fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

/// What a fetch shall do.
#[derive(Debug)]
pub(crate) struct FetchPlan {
    pub(crate) rows: Rows,
    pub(crate) max: usize,
    /// Nothing was at work but what rides along.
    pub(crate) was_idle: bool,
}

/// Settlements that are under way, and whose they are.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) tokens: Vec<LeaseToken>,
    pub(crate) settlements: Vec<Settlement>,
}

/// Who has something to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wakes {
    pub(crate) fetch: bool,
    pub(crate) flush: bool,
}

impl Buffer {
    fn riding(&self, now: Instant) -> usize {
        if now < self.settle_not_before { 0 } else { self.outbox.len().min(MOST_ROWS) }
    }

    /// Whether a fetch would begin now, and take the outbox along.
    fn fetches_now(&self, now: Instant) -> bool {
        self.fetch.is_wanted
            && !self.fetch.is_calling
            && !self.is_stopping
            && now >= self.fetch.not_before
            && self.is_worth_a_fetch(self.room(self.riding(now)))
    }

    /// While there is enough in line a fetch waits for company: half of what is leased in advance.
    fn is_worth_a_fetch(&self, room: usize) -> bool {
        let in_advance = self.plan.capacity - self.plan.workers * self.plan.at_a_time;
        room > 0 && (!self.has_enough() || room >= in_advance / 2 || room >= self.plan.fetch_batch_size)
    }

    /// Whether there is more in line than can begin.
    fn has_enough(&self) -> bool {
        // Handlers that are done at once: one worker is faster than several would be woken.
        let can_begin = if self.is_quick { MOST_IN_A_ROW * 2 } else { self.startable() };
        self.waiting > can_begin && !self.fetch.only_what_can_start
    }

    /// Whether a fetch will soon take the outbox along: now, or when there is a little more room.
    fn will_fetch(&self, now: Instant) -> bool {
        self.fetch.is_wanted
            && !self.is_stopping
            && now >= self.fetch.not_before
            && (self.has_enough() || self.fetches_now(now))
    }

    /// Begins a fetch, if there may be something to fetch and there is room for it.
    pub(crate) fn begin_fetch(&mut self, now: Instant) -> Option<FetchPlan> {
        if !self.fetches_now(now) {
            return None;
        }
        let max = self.room(self.riding(now));
        let rows = if now < self.settle_not_before { Rows::default() } else { self.take_rows(now) };
        self.fetch.is_wanted = false;
        self.fetch.is_calling = true;
        let was_idle = self.busy == 0 && self.held.len() == rows.tokens.len();
        Some(FetchPlan { rows, max, was_idle })
    }

    /// When the outbox must be flushed apart from a fetch; `None` when it is empty.
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
        let is_due = self.is_stopping || self.is_urgent || !waits_for_fetch || self.outbox.len() >= MOST_ROWS;
        Some(if is_due { now } else { oldest + self.plan.flush_interval })
    }

    /// Who must look again after a change.
    pub(crate) fn wakes(&self, now: Instant) -> Wakes {
        let fetch = self.fetches_now(now);
        // Most settlements travel with a fetch: the flush loop is told only of what it would have to do before it looks
        // again by itself.
        let is_before = |at: Instant| self.flushes_at.is_none_or(|known| at < known);
        let flush = (!fetch || self.is_urgent) && self.flush_at(now).is_some_and(is_before);
        Wakes { fetch, flush }
    }

    /// Takes the next rows out of the outbox; they are under way from here on.
    pub(crate) fn take_rows(&mut self, now: Instant) -> Rows {
        let due = self.deferred.extract_if(.., |(at, _)| *at <= now);
        self.outbox.extend(due.map(|(_, token)| token));
        let mut rows = Rows::default();
        while rows.tokens.len() < MOST_ROWS {
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

    /// Notes what became of rows that were under way. Answers the first error for which some must be tried again.
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
            // In front and in their order, so that the oldest goes first.
            for (token, _) in again.into_iter().rev() {
                self.outbox.push_front(token);
            }
        } else {
            self.settle_failures = 0;
            // Each by itself: a row that fails again and again holds up nothing but itself.
            self.deferred.extend(again.into_iter().map(|(token, failures)| (later(now, pause_after(failures)), token)));
        }
        first
    }

    /// Answers why the row must be tried again, if it must, and how often that was so.
    fn settled_row(
        &mut self,
        token: LeaseToken,
        result: Result<(), MessagingError>,
        tally: &mut Tally,
    ) -> Option<(MessagingError, u32)> {
        // Taken out, because nearly always it stays out.
        let mut held = self.held.remove(&token)?;
        let Phase::Settling(mut decision) = std::mem::replace(&mut held.phase, Phase::Waiting) else {
            // Only `take_rows` hands tokens out, and only this takes them back.
            return None;
        };
        let outcome = match &result {
            Ok(()) => Outcome::from(&decision.disposition),
            Err(MessagingError::VisibilityExpired { .. }) if decision.is_repeated => Outcome::Unknown,
            Err(MessagingError::VisibilityExpired { .. }) => Outcome::Lost,
            // Also when the answer never came: while the lease is held a second try does no harm, and tells.
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
        // An acknowledgement that a handler waits for is told when that has ended.
        if decision.waiting.is_none() || outcome != Outcome::Acked {
            self.to_tell.add(outcome, || held.ended(outcome, Some(decision.disposition)));
        }
        if let Some(waiting) = decision.waiting.take() {
            // Whoever waited may have been dropped by a stop.
            let _ = waiting.send(if outcome == Outcome::Unknown { unanswered() } else { result });
        }
        if outcome == Outcome::Refused {
            // The lease is as it was: the message goes back by being dropped.
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
