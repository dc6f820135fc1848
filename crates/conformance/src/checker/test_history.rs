//! Handwritten histories for the tests of the rules. Times are milliseconds, messages are small numbers.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use postrider_core::{DeadLetterReason, Disposition, LeaseToken, MessageId, Nack, QueueName, Timestamp};
use uuid::Uuid;

use super::{CheckOptions, FindingKind, Verdict, check};
use crate::history::{
    BodyHash, DeadRecord, Delivery, Dropped, Event, ExtendCall, FinalState, LeaseOutcome, Operation, Outcome,
    ReceiveCall, RedriveCall, Selection, SendCall, SettleCall,
};

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn id(message: u64) -> MessageId {
    MessageId::from_uuid(Uuid::from_u128(u128::from(message)))
}

pub(super) fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

pub(super) fn body(message: u64) -> BodyHash {
    BodyHash::of(&message.to_le_bytes())
}

/// Default length of a lease.
pub(super) const LEASE: u64 = 1_000;

#[derive(Default)]
pub(super) struct TestHistory {
    pub(super) events: Vec<Event>,
    pub(super) options: CheckOptions,
    tokens: HashMap<LeaseToken, (QueueName, MessageId)>,
    keys: HashMap<MessageId, String>,
    counts: HashMap<MessageId, (u32, u32)>,
}

impl TestHistory {
    pub(super) fn record(&mut self, time: Range<u64>, operation: impl Into<Operation>) {
        let at = |millis| Timestamp::EPOCH.saturating_add(ms(millis));
        let (start, end) = (at(time.start), at(time.end));
        let worker = self.events.len() as u32;
        self.events.push(Event { worker, start, end, operation: operation.into() });
    }

    pub(super) fn send(&mut self, time: Range<u64>, message: u64) {
        self.send_with(time, message, |_| {});
    }

    pub(super) fn send_keyed(&mut self, time: Range<u64>, message: u64) {
        self.send_with(time, message, |call| call.ordering_key = Some("k".into()));
    }

    pub(super) fn send_with(&mut self, time: Range<u64>, message: u64, change: impl FnOnce(&mut SendCall)) {
        let mut call = SendCall {
            queue: queue(),
            id: id(message),
            ordering_key: None,
            dedup_key: None,
            delay: Duration::ZERO,
            expires_in: None,
            expires_at: None,
            body_hash: body(message),
            row: 0,
            batch: id(message),
            outcome: Outcome::Done(id(message)),
        };
        change(&mut call);
        self.keys.extend(call.ordering_key.clone().map(|key| (call.id, key)));
        self.record(time, call);
    }

    pub(super) fn receive(&mut self, time: Range<u64>, message: u64) -> LeaseToken {
        self.receive_with(time, &[message], |_| {})[0]
    }

    /// A receive with the counts of the history so far, then changed.
    pub(super) fn receive_with(
        &mut self,
        time: Range<u64>,
        messages: &[u64],
        change: impl FnOnce(&mut ReceiveCall),
    ) -> Vec<LeaseToken> {
        let mut deliveries = Vec::new();
        for message in messages {
            let (receives, attempts_count) =
                *self.counts.entry(id(*message)).and_modify(|(receives, _)| *receives += 1).or_insert((1, 0));
            deliveries.push(Delivery {
                id: id(*message),
                token: LeaseToken(self.tokens.len() as u128 + deliveries.len() as u128 + 1),
                receive_count: receives,
                attempts_count,
                ordering_key: self.keys.get(&id(*message)).cloned(),
                body_hash: body(*message),
            });
        }
        let mut call = ReceiveCall {
            queue: queue(),
            visibility: ms(LEASE),
            max_receive_count: 3,
            outcome: Outcome::Done(deliveries.clone()),
        };
        change(&mut call);
        let tokens: Vec<_> = deliveries.iter().map(|delivery| delivery.token).collect();
        for delivery in deliveries {
            self.tokens.insert(delivery.token, (call.queue.clone(), delivery.id));
        }
        self.record(time, call);
        tokens
    }

    pub(super) fn ack(&mut self, time: Range<u64>, token: LeaseToken) {
        self.settle(time, token, Disposition::Ack, LeaseOutcome::Done);
    }

    pub(super) fn nack(&mut self, time: Range<u64>, token: LeaseToken, nack: Nack) {
        self.settle(time, token, Disposition::Nack(nack), LeaseOutcome::Done);
    }

    pub(super) fn settle(
        &mut self,
        time: Range<u64>,
        token: LeaseToken,
        disposition: Disposition,
        outcome: LeaseOutcome,
    ) {
        let (queue, id) = self.tokens[&token].clone();
        if outcome == LeaseOutcome::Done {
            let counts = self.counts.entry(id).or_default();
            match disposition {
                Disposition::Nack(Nack::Release) => counts.0 -= 1,
                Disposition::Nack(Nack::Retry { .. }) => counts.1 += 1,
                _ => {}
            }
        }
        self.record(time, SettleCall { queue, id, token, disposition, outcome });
    }

    pub(super) fn extend(&mut self, time: Range<u64>, token: LeaseToken, extension: u64, outcome: LeaseOutcome) {
        let (queue, id) = self.tokens[&token].clone();
        let extension = ms(extension);
        self.record(time, ExtendCall { queue, id, token, extension, outcome });
    }

    pub(super) fn drop_message(&mut self, time: Range<u64>, token: LeaseToken) {
        let (queue, id) = self.tokens[&token].clone();
        self.record(time, Dropped { queue, id, token });
    }

    /// A redrive to the origin queue; of every dead letter when no ids are given.
    pub(super) fn redrive(&mut self, time: Range<u64>, messages: &[u64], known: bool) {
        let ids: Vec<_> = messages.iter().map(|message| id(*message)).collect();
        let all = messages.is_empty();
        for id in &ids {
            self.counts.insert(*id, (0, 0));
        }
        let call = RedriveCall {
            queue: queue(),
            to: None,
            selection: if all { Selection::All } else { Selection::Ids(ids.clone()) },
            outcome: if known { Outcome::Done(ids) } else { Outcome::Unknown },
        };
        self.record(time, call);
    }

    /// The final state: dead letters with reason and delivery count, and live messages.
    pub(super) fn finish(&mut self, dead: &[(u64, &str, u32)], live: &[u64]) {
        let dead_letters = dead.iter().map(|(message, reason, deliveries_count)| DeadRecord {
            id: id(*message),
            origin: queue(),
            reason: DeadLetterReason::from(*reason),
            deliveries_count: *deliveries_count,
            body_hash: body(*message),
        });
        let state = FinalState {
            queue: queue(),
            dead_letters: dead_letters.collect(),
            live: Some(live.iter().map(|message| id(*message)).collect()),
        };
        self.record(1_000_000..1_000_001, state);
    }

    pub(super) fn verdict(&self) -> Verdict {
        let verdict = check(&self.events, &self.options);
        // The verdict must not depend on the order in which processes wrote their events.
        let mut reversed: Vec<_> = self.events.iter().rev().cloned().collect();
        let other = check(&reversed, &self.options);
        assert_eq!(verdict.found, other.found, "the order of events changed the verdict");
        reversed.sort_by_key(|event| event.end);
        assert_eq!(verdict.found, check(&reversed, &self.options).found);
        verdict
    }

    /// Asserts that the history has findings of this kind and no other.
    #[track_caller]
    pub(super) fn assert_accused(&self, kind: FindingKind, rule: u8) -> String {
        let verdict = self.verdict();
        assert_eq!(verdict.found.keys().copied().collect::<Vec<_>>(), [kind], "{verdict}");
        assert_eq!(verdict.findings[0].rule, rule, "{verdict}");
        verdict.to_string()
    }

    #[track_caller]
    pub(super) fn assert_clean(&self) -> Verdict {
        let verdict = self.verdict();
        assert!(verdict.is_clean(), "{verdict}");
        verdict
    }
}
