//! A small queue that keeps the law, or breaks one rule of it on purpose.

use std::time::Duration;

use postrider_core::{Disposition, LeaseToken, MessageId, Nack, Timestamp};

use super::random::Random;
use crate::checker::lease::round_up;

/// The one fault of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    IgnoresToken,
    IgnoresLeaseEnd,
    ForgetsLease,
    DeliversEarly,
    DeliversExpired,
    LosesOrder,
    PassesRetrying,
    DropsMessage,
    DropsDeadLetter,
    KillsWithoutCause,
    KillsTooSoon,
    ForgetsDelivery,
    ForgetsAttempt,
    IgnoresLimit,
    KeepsAcked,
    KeepsDead,
    IgnoresDedup,
    AltersBody,
    InventsMessage,
}

/// One copy of a message, alive or dead.
#[derive(Debug, Clone)]
pub(super) struct StoredMessage {
    pub(super) id: MessageId,
    pub(super) key: Option<String>,
    pub(super) dedup: Option<String>,
    pub(super) body: u64,
    pub(super) deliveries: u32,
    pub(super) attempts: u32,
    pub(super) dead: Option<String>,
    pub(super) due: Timestamp,
    expires: Option<Timestamp>,
    lease: Option<(LeaseToken, Timestamp)>,
    sequence: u64,
}

impl StoredMessage {
    fn is_leased(&self, now: Timestamp) -> bool {
        self.lease.is_some_and(|(_, until)| now < until)
    }

    /// When its state changes next by itself.
    pub(super) fn next_at(&self) -> Timestamp {
        self.lease.map_or(self.due, |(_, until)| until.max(self.due))
    }
}

pub(super) struct NewMessage {
    pub(super) id: MessageId,
    pub(super) key: Option<String>,
    pub(super) dedup: Option<String>,
    pub(super) delay: Duration,
    pub(super) expires: Option<Duration>,
}

pub(super) struct Queue {
    pub(super) stored: Vec<StoredMessage>,
    resolution: Duration,
    fault: Option<Fault>,
    tokens: u128,
    last_sequence: u64,
}

impl Queue {
    pub(super) fn new(resolution: Duration, fault: Option<Fault>) -> Self {
        Self { stored: Vec::new(), resolution, fault, tokens: 0, last_sequence: 0 }
    }

    fn breaks(&self, fault: Fault, random: &mut Random) -> bool {
        self.fault == Some(fault) && random.percent(60)
    }

    fn next_sequence(&mut self) -> u64 {
        self.last_sequence += 1;
        self.last_sequence
    }

    fn after(&self, now: Timestamp, length: Duration) -> Timestamp {
        now.saturating_add(round_up(length, self.resolution))
    }

    pub(super) fn send(&mut self, message: &NewMessage, now: Timestamp, random: &mut Random) -> MessageId {
        let taken = self
            .stored
            .iter()
            .find(|stored| stored.dead.is_none() && stored.dedup.is_some() && stored.dedup == message.dedup);
        if let Some(taken) = taken.map(|stored| stored.id).filter(|_| !self.breaks(Fault::IgnoresDedup, random)) {
            return taken;
        }
        if self.fault == Some(Fault::DropsMessage) && random.percent(10) {
            return message.id;
        }
        let sequence = self.next_sequence();
        let expires = message.expires.map(|lifetime| self.after(now, lifetime));
        self.stored.push(StoredMessage {
            id: message.id,
            key: message.key.clone(),
            dedup: message.dedup.clone(),
            body: message.id.as_uuid().as_u128() as u64,
            deliveries: 0,
            attempts: 0,
            dead: None,
            due: self.after(now, message.delay),
            expires,
            lease: None,
            sequence,
        });
        message.id
    }

    /// Leases up to `max` messages, dead or alive.
    pub(super) fn receive(
        &mut self,
        from_dead: bool,
        max: usize,
        visibility: Duration,
        limit: u32,
        now: Timestamp,
        random: &mut Random,
    ) -> Vec<(LeaseToken, StoredMessage)> {
        let mut received = Vec::new();
        let mut seen_keys: Vec<String> = Vec::new();
        self.stored.sort_by_key(|stored| stored.sequence);
        for position in 0..self.stored.len() {
            if received.len() == max {
                break;
            }
            let stored = &self.stored[position];
            if stored.dead.is_some() != from_dead {
                continue;
            }
            let leased = stored.is_leased(now) && !self.breaks(Fault::ForgetsLease, random);
            if !from_dead && !leased {
                let expired = stored.expires.is_some_and(|expires| expires <= now)
                    && !self.breaks(Fault::DeliversExpired, random);
                let too_often = stored.deliveries >= limit && !self.breaks(Fault::IgnoresLimit, random);
                let too_soon = self.fault == Some(Fault::KillsTooSoon) && stored.deliveries == 1;
                let killed = self.fault == Some(Fault::KillsWithoutCause) && random.percent(5);
                let reason = match (expired, too_often || too_soon, killed) {
                    (true, ..) => Some("expired"),
                    (_, true, _) => Some("max_receive_count"),
                    (.., true) => Some("rejected"),
                    _ => None,
                };
                if let Some(reason) = reason {
                    self.dead_letter(position, reason);
                    continue;
                }
            }
            let stored = &self.stored[position];
            if let Some(key) = stored.key.clone().filter(|_| !from_dead) {
                let passed = self.fault == Some(Fault::PassesRetrying) && stored.attempts > 0;
                if seen_keys.contains(&key) && !self.breaks(Fault::LosesOrder, random) {
                    continue;
                }
                if !passed {
                    seen_keys.push(key);
                }
            }
            let due = self.stored[position].due <= now || self.breaks(Fault::DeliversEarly, random);
            if leased || !due {
                continue;
            }
            received.push(self.lease(position, visibility, now, random));
        }
        self.stored.retain(|stored| stored.dead.as_deref() != Some("replaced"));
        if self.fault == Some(Fault::InventsMessage) && random.percent(5) {
            received.extend(self.invented(visibility, now));
        }
        received
    }

    fn lease(
        &mut self,
        position: usize,
        visibility: Duration,
        now: Timestamp,
        random: &mut Random,
    ) -> (LeaseToken, StoredMessage) {
        let until = self.after(now, visibility);
        let forgets = self.breaks(Fault::ForgetsDelivery, random);
        let alters = self.fault == Some(Fault::AltersBody) && random.percent(10);
        self.tokens += 1;
        let token = LeaseToken(self.tokens);
        let stored = &mut self.stored[position];
        stored.lease = Some((token, until));
        if !forgets {
            stored.deliveries += 1;
        }
        let mut delivery = stored.clone();
        delivery.body ^= u64::from(alters);
        (token, delivery)
    }

    fn invented(&mut self, visibility: Duration, now: Timestamp) -> Option<(LeaseToken, StoredMessage)> {
        let mut stored = self.stored.first()?.clone();
        self.tokens += 1;
        let token = LeaseToken(self.tokens);
        stored.id = MessageId::from_uuid(uuid::Uuid::from_u128(1 << 100 | self.tokens));
        stored.lease = Some((token, self.after(now, visibility)));
        Some((token, stored))
    }

    /// Dead-letters a message; it is listed once, also when an interrupted move had left a copy.
    fn dead_letter(&mut self, position: usize, reason: &str) {
        let id = self.stored[position].id;
        let copy = self.stored.iter().position(|stored| stored.id == id && stored.dead.is_some());
        if let Some(copy) = copy {
            self.stored[copy].sequence = u64::MAX;
            self.stored[copy].dead = Some("replaced".to_owned());
        }
        let stored = &mut self.stored[position];
        stored.dead = Some(reason.to_owned());
        stored.lease = None;
        stored.due = Timestamp::EPOCH;
    }

    fn holder(&self, id: MessageId, token: LeaseToken, now: Timestamp, random: &mut Random) -> Option<usize> {
        let ignores_token = self.breaks(Fault::IgnoresToken, random);
        let ignores_end = self.breaks(Fault::IgnoresLeaseEnd, random);
        self.stored.iter().position(|stored| {
            let own = stored.lease.is_some_and(|(lease, _)| lease == token);
            let other = ignores_token && stored.id == id;
            other || (own && (stored.is_leased(now) || ignores_end))
        })
    }

    /// Whether a lease was settled.
    pub(super) fn settle(
        &mut self,
        id: MessageId,
        token: LeaseToken,
        disposition: &Disposition,
        now: Timestamp,
        random: &mut Random,
    ) -> bool {
        let Some(position) = self.holder(id, token, now, random) else {
            return false;
        };
        match disposition {
            Disposition::Ack => {
                if self.breaks(Fault::KeepsAcked, random) {
                    self.stored[position].lease = None;
                } else {
                    self.stored.remove(position);
                }
            }
            Disposition::Nack(Nack::Retry { after, .. }) => {
                let due = self.after(now, *after);
                let forgets = self.breaks(Fault::ForgetsAttempt, random);
                let stored = &mut self.stored[position];
                stored.lease = None;
                stored.due = due;
                stored.attempts += u32::from(!forgets);
            }
            Disposition::Nack(Nack::Release) => {
                let stored = &mut self.stored[position];
                stored.lease = None;
                stored.due = now;
                stored.deliveries = stored.deliveries.saturating_sub(1);
            }
            Disposition::Nack(Nack::DeadLetter { reason, .. }) => {
                if self.breaks(Fault::DropsDeadLetter, random) {
                    self.stored.remove(position);
                } else if self.breaks(Fault::KeepsDead, random) {
                    self.stored[position].lease = None;
                } else {
                    self.dead_letter(position, reason.as_str());
                    self.stored.retain(|stored| stored.dead.as_deref() != Some("replaced"));
                }
            }
        }
        true
    }

    /// An interrupted move to the dead letters: the copy without the deletion.
    pub(super) fn copy_to_dead_letters(&mut self, token: LeaseToken, reason: &str, now: Timestamp) {
        let stored = self.stored.iter().find(|stored| stored.lease.is_some_and(|(lease, _)| lease == token));
        let Some(stored) = stored.filter(|stored| stored.is_leased(now)) else {
            return;
        };
        let mut copy = stored.clone();
        if self.stored.iter().any(|stored| stored.id == copy.id && stored.dead.is_some()) {
            return;
        }
        copy.sequence = self.next_sequence();
        self.stored.push(copy);
        self.dead_letter(self.stored.len() - 1, reason);
    }

    pub(super) fn extend(
        &mut self,
        id: MessageId,
        token: LeaseToken,
        extension: Duration,
        now: Timestamp,
        random: &mut Random,
    ) -> bool {
        let Some(position) = self.holder(id, token, now, random) else {
            return false;
        };
        let until = self.after(now, extension);
        self.stored[position].lease = Some((token, until));
        true
    }

    /// Returns the lease of a dropped message; its delivery stays counted.
    pub(super) fn give_back(&mut self, token: LeaseToken, now: Timestamp) {
        for stored in &mut self.stored {
            if stored.is_leased(now) && stored.lease.is_some_and(|(lease, _)| lease == token) {
                stored.lease = None;
            }
        }
    }

    /// Redrives dead letters and returns their ids.
    pub(super) fn redrive(&mut self, ids: Option<&[MessageId]>, now: Timestamp) -> Vec<MessageId> {
        let mut redriven = Vec::new();
        for position in 0..self.stored.len() {
            let stored = &self.stored[position];
            let chosen = ids.is_none_or(|ids| ids.contains(&stored.id));
            let taken = stored.dedup.is_some()
                && self.stored.iter().any(|other| other.dead.is_none() && other.dedup == stored.dedup);
            if stored.dead.is_none() || !chosen || stored.is_leased(now) || taken {
                continue;
            }
            let tail = self.next_sequence();
            let stored = &mut self.stored[position];
            (stored.dead, stored.lease, stored.expires) = (None, None, None);
            (stored.deliveries, stored.attempts, stored.due, stored.sequence) = (0, 0, now, tail);
            redriven.push(stored.id);
        }
        redriven
    }

    pub(super) fn purge_dead(&mut self, now: Timestamp) -> u64 {
        let before = self.stored.len();
        self.stored.retain(|stored| stored.dead.is_none() || stored.is_leased(now));
        (before - self.stored.len()) as u64
    }

    pub(super) fn purge_waiting(&mut self, now: Timestamp) -> u64 {
        let before = self.stored.len();
        self.stored.retain(|stored| stored.dead.is_some() || stored.is_leased(now));
        (before - self.stored.len()) as u64
    }
}
