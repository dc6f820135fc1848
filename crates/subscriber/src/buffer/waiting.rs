//! Waiting messages: which worker is woken, which messages it takes, and which are put back.

use std::collections::VecDeque;
use std::sync::Arc;

use postrider_core::{DeadLetterReason, Disposition, Envelope, LeaseToken, Nack};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Assignment, Buffer};
use crate::control::Control;
use crate::counters::Outcome;
use crate::held::{Phase, Running};

impl Buffer {
    /// Wakes a worker if a message waits and no worker is waking.
    pub(super) fn wake_worker(&mut self) {
        if self.waiting > 0 && !self.is_worker_waking {
            self.is_worker_waking = true;
            self.wakes_worker = true;
        }
    }

    /// Whether a message waits, for a worker that checks the buffer.
    pub(crate) fn has_waiting(&mut self, was_woken: bool) -> bool {
        if was_woken {
            self.is_worker_waking = false;
        }
        self.waiting > 0
    }

    /// Releases every waiting message.
    pub(crate) fn release_waiting(&mut self, now: Instant) {
        let waiting: Vec<_> = self.redeliveries.drain(..).chain(self.first_deliveries.drain(..)).collect();
        for token in waiting {
            if self.held.get(&token).is_some_and(|held| matches!(held.phase, Phase::Waiting)) {
                self.release(token, now);
            }
        }
        self.waiting = 0;
    }

    /// The next messages for a worker, at most `max`.
    pub(crate) fn take(&mut self, worker: &Arc<Notify>, max: usize, now: Instant) -> Vec<Assignment> {
        let mut assignments = Vec::with_capacity(max.min(self.waiting));
        while assignments.len() < max {
            let Some(token) = self.next_waiting() else { break };
            let Some(held) = self.held.get_mut(&token) else { continue };
            if !matches!(held.phase, Phase::Waiting) {
                continue;
            }
            self.waiting -= 1;
            // The process may have been stopped for longer than the lease; another worker may have the message by now.
            if !held.lease.is_alive() {
                self.release(token, now);
                continue;
            }
            // A waiting message has its letter.
            let Some(letter) = held.letter.take() else { continue };
            let Envelope { receive_count, queue, .. } = &letter.envelope;
            if *receive_count > self.plan.max_deliveries && !queue.holds_dead_letters() {
                let nack = Nack::dead_letter(DeadLetterReason::MAX_RECEIVE_COUNT);
                self.put_in_outbox(token, Disposition::Nack(nack), now, None);
                continue;
            }
            let control = Control::new();
            control.is_leased_for(held.lease.visibility, held.lease.requested);
            held.phase = Phase::Running(Running { worker: worker.clone(), control: control.clone() });
            if let Some(group) = &held.group {
                *self.groups.entry(group.clone()).or_default() += 1;
            }
            let (received, group) = (held.lease.received, held.group.clone());
            assignments.push(Assignment { token, letter, control, received, group });
        }
        if !assignments.is_empty() {
            self.busy += 1;
            // Not while a worker takes several messages: it is faster than another would be woken.
            if max == self.plan.at_a_time {
                self.wake_worker();
            }
        }
        assignments
    }

    /// Puts back messages that a worker has taken and not started.
    pub(crate) fn put_back(&mut self, assignments: VecDeque<Assignment>, now: Instant) {
        for Assignment { token, letter, group, .. } in assignments.into_iter().rev() {
            if let Some(group) = &group {
                self.leave_group(group);
            }
            let Some(held) = self.held.get_mut(&token) else { continue };
            match held.phase {
                Phase::Running(_) if self.is_stopping || !held.lease.is_alive() => self.release(token, now),
                Phase::Running(_) => {
                    held.phase = Phase::Waiting;
                    held.letter = Some(letter);
                    self.first_deliveries.push_front(token);
                    self.waiting += 1;
                }
                // Lost meanwhile; no handler has started.
                _ => {
                    if let Some(held) = self.held.remove(&token) {
                        self.ended.add(Outcome::Lost, || held.ended(Outcome::Lost, None));
                        held.disarm();
                    }
                }
            }
        }
        self.wake_worker();
    }

    /// Number of messages that a worker may take to handle one after the other, if it can handle `wanted`. A redelivery
    /// is taken alone, because the last worker may have crashed on it.
    pub(crate) fn burst(&self, wanted: usize) -> usize {
        if self.redeliveries.is_empty() && self.max_per_key.is_none() { wanted } else { 1 }
    }

    fn next_waiting(&mut self) -> Option<LeaseToken> {
        let Some(max) = self.max_per_key else {
            return self.redeliveries.pop_front().or_else(|| self.first_deliveries.pop_front());
        };
        let (held, groups) = (&self.held, &self.groups);
        let may_start = |token: &LeaseToken| {
            let group = held.get(token).and_then(|held| held.group.as_ref());
            group.and_then(|group| groups.get(group)).is_none_or(|running| *running < max)
        };
        for waiting in [&mut self.redeliveries, &mut self.first_deliveries] {
            if let Some(index) = waiting.iter().position(may_start) {
                return waiting.remove(index);
            }
        }
        None
    }

    /// Records that a worker has finished its messages.
    pub(crate) fn worker_is_free(&mut self) {
        self.busy = self.busy.saturating_sub(1);
        if self.max_per_key.is_some() {
            // A message that was passed over may start now.
            self.wake_worker();
        }
    }

    /// Subtracts one from the running handlers of this key.
    pub(crate) fn leave_group(&mut self, group: &str) {
        if let Some(running) = self.groups.get_mut(group) {
            *running -= 1;
            if *running == 0 {
                self.groups.remove(group);
            }
        }
    }
}
