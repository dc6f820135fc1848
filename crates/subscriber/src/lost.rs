//! Lost leases, and handlers that are dropped before they end.

use std::time::Duration;

use postrider_core::LeaseToken;
use tokio::time::Instant;

use crate::buffer::Buffer;
use crate::counters::{Outcome, Tally};
use crate::held::{Held, Phase};

impl Buffer {
    /// Records that a lease has ended; another worker may have the message, and its result here does not count.
    pub(crate) fn lose(&mut self, token: LeaseToken, tally: &mut Tally) {
        let Some(held) = self.held.get_mut(&token) else { return };
        let mut outcome = Outcome::Lost;
        let mut disposition = None;
        match std::mem::replace(&mut held.phase, Phase::Waiting) {
            Phase::Running(running) => {
                tally.add(held.queue(), outcome);
                running.control.cancellation().cancel();
                held.phase = Phase::Lost(running);
                return;
            }
            phase @ (Phase::Lost(_) | Phase::Settling(_)) => {
                held.phase = phase;
                return;
            }
            Phase::Waiting => self.waiting -= 1,
            Phase::Decided(decision) => {
                // The first settlement may have ended the lease.
                if decision.is_repeated {
                    outcome = Outcome::Unknown;
                }
                disposition = Some(decision.disposition);
                self.outbox.retain(|waiting| *waiting != token);
                self.deferred.retain(|(_, waiting)| *waiting != token);
            }
        }
        tally.add(held.queue(), outcome);
        if let Some(held) = self.held.remove(&token) {
            self.ended.add(outcome, || held.ended(outcome, disposition));
            held.disarm();
        }
    }

    /// Drops handlers that outlived their lost lease.
    pub(crate) fn drop_stuck(&mut self, now: Instant, timeout: Duration, tally: &mut Tally) -> usize {
        let is_stuck = |held: &Held| {
            matches!(held.phase, Phase::Lost(_)) && now.saturating_duration_since(held.lease.received) >= timeout
        };
        let stuck: Vec<_> = self.held.iter().filter(|(_, held)| is_stuck(held)).map(|(token, _)| *token).collect();
        for token in &stuck {
            let Some(held) = self.held.remove(token) else { continue };
            tally.add(held.queue(), Outcome::Stuck);
            if let Phase::Lost(lost) = &held.phase {
                lost.worker.notify_one();
            }
            self.ended.add(Outcome::Stuck, || held.ended(Outcome::Stuck, None));
            held.disarm();
        }
        stuck.len()
    }

    /// Cancels the token of every running handler.
    pub(crate) fn cancel_running(&self) {
        for held in self.held.values() {
            if let Phase::Running(running) = &held.phase {
                running.control.cancellation().cancel();
            }
        }
        for unleased in self.unleased.values() {
            unleased.control.cancellation().cancel();
        }
    }

    /// Drops every running handler. Dropping the returned messages gives them back, counted.
    pub(crate) fn abandon_running(&mut self, tally: &mut Tally) -> Vec<Held> {
        let is_running = |held: &Held| matches!(held.phase, Phase::Running(_) | Phase::Lost(_));
        let running: Vec<_> = self.held.iter().filter(|(_, held)| is_running(held)).map(|(token, _)| *token).collect();
        let mut abandoned = Vec::with_capacity(running.len());
        for token in running {
            let Some(held) = self.held.remove(&token) else { continue };
            match &held.phase {
                Phase::Running(running) => {
                    running.control.cancellation().cancel();
                    tally.add(held.queue(), Outcome::Abandoned);
                    running.worker.notify_one();
                    self.ended.add(Outcome::Abandoned, || held.ended(Outcome::Abandoned, None));
                    abandoned.push(*held);
                }
                Phase::Lost(lost) => {
                    lost.worker.notify_one();
                    self.ended.add(Outcome::Lost, || held.ended(Outcome::Lost, None));
                    held.disarm();
                }
                _ => {}
            }
        }
        for (_, unleased) in self.unleased.drain() {
            unleased.control.cancellation().cancel();
            tally.add(&unleased.queue, Outcome::Abandoned);
            unleased.worker.notify_one();
            self.ended.add(Outcome::Abandoned, || unleased.ended(Outcome::Abandoned));
        }
        abandoned
    }
}
