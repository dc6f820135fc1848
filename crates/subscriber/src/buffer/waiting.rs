//! Messages in line for a worker: who is woken, who takes what, and what is put back.

use std::collections::VecDeque;
use std::sync::Arc;

use postrider_core::{DeadLetterReason, Disposition, Envelope, LeaseToken, Nack};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Buffer, Job};
use crate::control::Control;
use crate::counters::Outcome;
use crate::held::{Phase, Running};

impl Buffer {
    /// Wakes a worker if there is something to do and none is on its way.
    pub(super) fn wake_worker(&mut self) {
        if self.waiting > 0 && !self.is_worker_on_its_way {
            self.is_worker_on_its_way = true;
            self.wakes_worker = true;
        }
    }

    /// A worker looks whether there is something to do.
    pub(crate) fn look(&mut self, was_woken: bool) -> bool {
        if was_woken {
            self.is_worker_on_its_way = false;
        }
        self.waiting > 0
    }

    /// Gives back everything that is in line.
    pub(crate) fn release_waiting(&mut self, now: Instant) {
        let in_line: Vec<_> = self.again.drain(..).chain(self.first.drain(..)).collect();
        for token in in_line {
            if self.held.get(&token).is_some_and(|held| matches!(held.phase, Phase::Waiting)) {
                self.release(token, now);
            }
        }
        self.waiting = 0;
    }

    /// The next messages for a worker, at most that many.
    pub(crate) fn take(&mut self, worker: &Arc<Notify>, most: usize, now: Instant) -> Vec<Job> {
        let mut jobs = Vec::with_capacity(most.min(self.waiting));
        while jobs.len() < most {
            let Some(token) = self.next_in_line() else { break };
            let Some(held) = self.held.get_mut(&token) else { continue };
            if !matches!(held.phase, Phase::Waiting) {
                continue;
            }
            self.waiting -= 1;
            // The process may have been stopped for longer than the lease; another may have the message by now.
            if !held.lease.is_alive() {
                self.release(token, now);
                continue;
            }
            // One that waits has its letter.
            let Some(letter) = held.letter.take() else { continue };
            let Envelope { receive_count, queue, .. } = &letter.envelope;
            if *receive_count > self.plan.max_deliveries && !queue.holds_dead_letters() {
                let nack = Nack::dead_letter(DeadLetterReason::MAX_RECEIVE_COUNT);
                self.put_in_outbox(token, Disposition::Nack(nack), now, None);
                continue;
            }
            let control = Control::new();
            control.is_leased_for(held.lease.visibility, held.lease.asked);
            held.phase = Phase::Running(Running { worker: worker.clone(), control: control.clone() });
            if let Some(group) = &held.group {
                *self.groups.entry(group.clone()).or_default() += 1;
            }
            let (received, group) = (held.lease.received, held.group.clone());
            jobs.push(Job { token, letter, control, received, group });
        }
        if !jobs.is_empty() {
            self.busy += 1;
            // Not while one takes several turns: it is faster than another would be woken.
            if most == self.plan.at_a_time {
                self.wake_worker();
            }
        }
        jobs
    }

    /// A worker has not come to these, and others may.
    pub(crate) fn put_back(&mut self, jobs: VecDeque<Job>, now: Instant) {
        for Job { token, letter, group, .. } in jobs.into_iter().rev() {
            if let Some(group) = &group {
                self.leave(group);
            }
            let Some(held) = self.held.get_mut(&token) else { continue };
            match held.phase {
                Phase::Running(_) if self.is_stopping || !held.lease.is_alive() => self.release(token, now),
                Phase::Running(_) => {
                    held.phase = Phase::Waiting;
                    held.letter = Some(letter);
                    self.first.push_front(token);
                    self.waiting += 1;
                }
                // Lost meanwhile, and no handler has to be waited for.
                _ => {
                    if let Some(held) = self.held.remove(&token) {
                        self.to_tell.add(Outcome::Lost, || held.ended(Outcome::Lost, None));
                        held.disarm();
                    }
                }
            }
        }
        self.wake_worker();
    }

    /// How many messages a worker may take to handle one after the other, if it wants that many. One that was delivered
    /// before is taken alone: it may be what the last worker crashed on.
    pub(crate) fn in_a_row(&self, wanted: usize) -> usize {
        if self.again.is_empty() && self.most_per_key.is_none() { wanted } else { 1 }
    }

    fn next_in_line(&mut self) -> Option<LeaseToken> {
        let Some(most) = self.most_per_key else {
            return self.again.pop_front().or_else(|| self.first.pop_front());
        };
        let (held, groups) = (&self.held, &self.groups);
        let has_room = |token: &LeaseToken| {
            let group = held.get(token).and_then(|held| held.group.as_ref());
            group.and_then(|group| groups.get(group)).is_none_or(|running| *running < most)
        };
        for line in [&mut self.again, &mut self.first] {
            if let Some(index) = line.iter().position(has_room) {
                return line.remove(index);
            }
        }
        None
    }

    /// A worker is done with its messages.
    pub(crate) fn worker_is_free(&mut self) {
        self.busy = self.busy.saturating_sub(1);
        if self.most_per_key.is_some() {
            // One that was passed over may begin now.
            self.wake_worker();
        }
    }

    /// One handler fewer of this key.
    pub(crate) fn leave(&mut self, group: &str) {
        if let Some(running) = self.groups.get_mut(group) {
            *running -= 1;
            if *running == 0 {
                self.groups.remove(group);
            }
        }
    }
}
