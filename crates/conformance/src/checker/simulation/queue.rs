//! A small queue that keeps the law, or breaks one rule of it on purpose.

use std::time::Duration;

use postrider_core::{Disposition, LeaseToken, MessageId, Nack, Timestamp};

use super::dice::Dice;
use crate::checker::lease::round_up;

/// The one thing that a queue does wrong.
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
pub(super) struct Held {
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
    place: u64,
}

impl Held {
    fn is_leased(&self, now: Timestamp) -> bool {
        self.lease.is_some_and(|(_, until)| now < until)
    }

    /// When it may change by itself.
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
    pub(super) held: Vec<Held>,
    resolution: Duration,
    fault: Option<Fault>,
    tokens: u128,
    places: u64,
}

impl Queue {
    pub(super) fn new(resolution: Duration, fault: Option<Fault>) -> Self {
        Self { held: Vec::new(), resolution, fault, tokens: 0, places: 0 }
    }

    fn breaks(&self, fault: Fault, dice: &mut Dice) -> bool {
        self.fault == Some(fault) && dice.percent(60)
    }

    fn place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    fn after(&self, now: Timestamp, length: Duration) -> Timestamp {
        now.saturating_add(round_up(length, self.resolution))
    }

    pub(super) fn send(&mut self, message: &NewMessage, now: Timestamp, dice: &mut Dice) -> MessageId {
        let taken =
            self.held.iter().find(|held| held.dead.is_none() && held.dedup.is_some() && held.dedup == message.dedup);
        if let Some(taken) = taken.map(|held| held.id).filter(|_| !self.breaks(Fault::IgnoresDedup, dice)) {
            return taken;
        }
        if self.fault == Some(Fault::DropsMessage) && dice.percent(10) {
            return message.id;
        }
        let place = self.place();
        let expires = message.expires.map(|lifetime| self.after(now, lifetime));
        self.held.push(Held {
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
            place,
        });
        message.id
    }

    /// Leases up to `max` messages: the dead ones, or those that live.
    pub(super) fn receive(
        &mut self,
        from_dead: bool,
        max: usize,
        visibility: Duration,
        limit: u32,
        now: Timestamp,
        dice: &mut Dice,
    ) -> Vec<(LeaseToken, Held)> {
        let mut received = Vec::new();
        let mut held_keys: Vec<String> = Vec::new();
        self.held.sort_by_key(|held| held.place);
        for place in 0..self.held.len() {
            if received.len() == max {
                break;
            }
            let held = &self.held[place];
            if held.dead.is_some() != from_dead {
                continue;
            }
            let leased = held.is_leased(now) && !self.breaks(Fault::ForgetsLease, dice);
            if !from_dead && !leased {
                let expired =
                    held.expires.is_some_and(|expires| expires <= now) && !self.breaks(Fault::DeliversExpired, dice);
                let too_often = held.deliveries >= limit && !self.breaks(Fault::IgnoresLimit, dice);
                let too_soon = self.fault == Some(Fault::KillsTooSoon) && held.deliveries == 1;
                let killed = self.fault == Some(Fault::KillsWithoutCause) && dice.percent(5);
                let reason = match (expired, too_often || too_soon, killed) {
                    (true, ..) => Some("expired"),
                    (_, true, _) => Some("max_receive_count"),
                    (.., true) => Some("rejected"),
                    _ => None,
                };
                if let Some(reason) = reason {
                    self.bury(place, reason);
                    continue;
                }
            }
            let held = &self.held[place];
            if let Some(key) = held.key.clone().filter(|_| !from_dead) {
                let passed = self.fault == Some(Fault::PassesRetrying) && held.attempts > 0;
                if held_keys.contains(&key) && !self.breaks(Fault::LosesOrder, dice) {
                    continue;
                }
                if !passed {
                    held_keys.push(key);
                }
            }
            let due = self.held[place].due <= now || self.breaks(Fault::DeliversEarly, dice);
            if leased || !due {
                continue;
            }
            received.push(self.lease(place, visibility, now, dice));
        }
        self.held.retain(|held| held.dead.as_deref() != Some("replaced"));
        if self.fault == Some(Fault::InventsMessage) && dice.percent(5) {
            received.extend(self.invented(visibility, now));
        }
        received
    }

    fn lease(&mut self, place: usize, visibility: Duration, now: Timestamp, dice: &mut Dice) -> (LeaseToken, Held) {
        let until = self.after(now, visibility);
        let forgets = self.breaks(Fault::ForgetsDelivery, dice);
        let alters = self.fault == Some(Fault::AltersBody) && dice.percent(10);
        self.tokens += 1;
        let token = LeaseToken(self.tokens);
        let held = &mut self.held[place];
        held.lease = Some((token, until));
        if !forgets {
            held.deliveries += 1;
        }
        let mut delivery = held.clone();
        delivery.body ^= u64::from(alters);
        (token, delivery)
    }

    fn invented(&mut self, visibility: Duration, now: Timestamp) -> Option<(LeaseToken, Held)> {
        let mut held = self.held.first()?.clone();
        self.tokens += 1;
        let token = LeaseToken(self.tokens);
        held.id = MessageId::from_uuid(uuid::Uuid::from_u128(1 << 100 | self.tokens));
        held.lease = Some((token, self.after(now, visibility)));
        Some((token, held))
    }

    /// A dead message is listed once, also when an interrupted move had left a copy.
    fn bury(&mut self, place: usize, reason: &str) {
        let id = self.held[place].id;
        let copy = self.held.iter().position(|held| held.id == id && held.dead.is_some());
        if let Some(copy) = copy {
            self.held[copy].place = u64::MAX;
            self.held[copy].dead = Some("replaced".to_owned());
        }
        let held = &mut self.held[place];
        held.dead = Some(reason.to_owned());
        held.lease = None;
        held.due = Timestamp::EPOCH;
    }

    fn holder(&self, id: MessageId, token: LeaseToken, now: Timestamp, dice: &mut Dice) -> Option<usize> {
        let ignores_token = self.breaks(Fault::IgnoresToken, dice);
        let ignores_end = self.breaks(Fault::IgnoresLeaseEnd, dice);
        self.held.iter().position(|held| {
            let own = held.lease.is_some_and(|(lease, _)| lease == token);
            let other = ignores_token && held.id == id;
            other || (own && (held.is_leased(now) || ignores_end))
        })
    }

    /// Whether the lease was there to be settled.
    pub(super) fn settle(
        &mut self,
        id: MessageId,
        token: LeaseToken,
        disposition: &Disposition,
        now: Timestamp,
        dice: &mut Dice,
    ) -> bool {
        let Some(place) = self.holder(id, token, now, dice) else {
            return false;
        };
        match disposition {
            Disposition::Ack => {
                if self.breaks(Fault::KeepsAcked, dice) {
                    self.held[place].lease = None;
                } else {
                    self.held.remove(place);
                }
            }
            Disposition::Nack(Nack::Retry { after, .. }) => {
                let due = self.after(now, *after);
                let forgets = self.breaks(Fault::ForgetsAttempt, dice);
                let held = &mut self.held[place];
                held.lease = None;
                held.due = due;
                held.attempts += u32::from(!forgets);
            }
            Disposition::Nack(Nack::Release) => {
                let held = &mut self.held[place];
                held.lease = None;
                held.due = now;
                held.deliveries = held.deliveries.saturating_sub(1);
            }
            Disposition::Nack(Nack::DeadLetter { reason, .. }) => {
                if self.breaks(Fault::DropsDeadLetter, dice) {
                    self.held.remove(place);
                } else if self.breaks(Fault::KeepsDead, dice) {
                    self.held[place].lease = None;
                } else {
                    self.bury(place, reason.as_str());
                    self.held.retain(|held| held.dead.as_deref() != Some("replaced"));
                }
            }
        }
        true
    }

    /// A move to the dead letters that stopped between the copy and the deletion.
    pub(super) fn half_bury(&mut self, token: LeaseToken, reason: &str, now: Timestamp) {
        let held = self.held.iter().find(|held| held.lease.is_some_and(|(lease, _)| lease == token));
        let Some(held) = held.filter(|held| held.is_leased(now)) else {
            return;
        };
        let mut copy = held.clone();
        if self.held.iter().any(|held| held.id == copy.id && held.dead.is_some()) {
            return;
        }
        copy.place = self.place();
        self.held.push(copy);
        self.bury(self.held.len() - 1, reason);
    }

    pub(super) fn extend(
        &mut self,
        id: MessageId,
        token: LeaseToken,
        extension: Duration,
        now: Timestamp,
        dice: &mut Dice,
    ) -> bool {
        let Some(place) = self.holder(id, token, now, dice) else {
            return false;
        };
        let until = self.after(now, extension);
        self.held[place].lease = Some((token, until));
        true
    }

    /// Gives the lease of a dropped message back, its delivery still counted.
    pub(super) fn give_back(&mut self, token: LeaseToken, now: Timestamp) {
        for held in &mut self.held {
            if held.is_leased(now) && held.lease.is_some_and(|(lease, _)| lease == token) {
                held.lease = None;
            }
        }
    }

    /// Brings dead letters back to life and answers which.
    pub(super) fn redrive(&mut self, ids: Option<&[MessageId]>, now: Timestamp) -> Vec<MessageId> {
        let mut redriven = Vec::new();
        for place in 0..self.held.len() {
            let held = &self.held[place];
            let chosen = ids.is_none_or(|ids| ids.contains(&held.id));
            let taken =
                held.dedup.is_some() && self.held.iter().any(|other| other.dead.is_none() && other.dedup == held.dedup);
            if held.dead.is_none() || !chosen || held.is_leased(now) || taken {
                continue;
            }
            let tail = self.place();
            let held = &mut self.held[place];
            (held.dead, held.lease, held.expires) = (None, None, None);
            (held.deliveries, held.attempts, held.due, held.place) = (0, 0, now, tail);
            redriven.push(held.id);
        }
        redriven
    }

    pub(super) fn purge_dead(&mut self, now: Timestamp) -> u64 {
        let before = self.held.len();
        self.held.retain(|held| held.dead.is_none() || held.is_leased(now));
        (before - self.held.len()) as u64
    }

    pub(super) fn purge_waiting(&mut self, now: Timestamp) -> u64 {
        let before = self.held.len();
        self.held.retain(|held| held.dead.is_some() || held.is_leased(now));
        (before - self.held.len()) as u64
    }
}
