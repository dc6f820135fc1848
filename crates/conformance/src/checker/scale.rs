//! Long histories and extreme shapes: each rule stays one sweep.

use std::time::{Duration, Instant};

use postrider_core::{Disposition, LeaseToken, MessageId, Nack, QueueName, Timestamp};
use uuid::Uuid;

use super::{CheckOptions, Verdict, check};
use crate::history::{
    BodyHash, Delivery, Event, ExtendCall, FinalState, LeaseOutcome, Operation, Outcome, ReceiveCall, SendCall,
    SettleCall,
};

const OPERATIONS: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

/// Time limit: far more than one sweep needs, far less than two nested ones take.
const TIME_LIMIT: Duration = Duration::from_secs(60);

struct Log {
    queue: QueueName,
    events: Vec<Event>,
}

impl Log {
    fn new() -> Self {
        Self { queue: QueueName::new("orders").unwrap(), events: Vec::new() }
    }

    /// Each call overlaps the twenty after it.
    fn record(&mut self, operation: impl Into<Operation>) {
        let start = 1_000 * self.events.len() as i64;
        let (start, end) = (Timestamp::from_micros(start), Timestamp::from_micros(start + 20_500));
        self.events.push(Event { worker: 0, start, end, operation: operation.into() });
    }

    fn send(&mut self, message: u64, key: Option<String>, dedup: Option<String>, answer: u64) {
        self.record(SendCall {
            queue: self.queue.clone(),
            id: id(message),
            ordering_key: key,
            dedup_key: dedup,
            delay: Duration::ZERO,
            expires_in: None,
            expires_at: None,
            body_hash: BodyHash::of(b""),
            row: 0,
            batch: id(message),
            outcome: Outcome::Done(id(answer)),
        });
    }

    fn receive(&mut self, message: u64, key: Option<String>, count: u32) -> LeaseToken {
        let token = LeaseToken(self.events.len() as u128);
        let delivery = Delivery {
            id: id(message),
            token,
            receive_count: count,
            attempts_count: count - 1,
            ordering_key: key,
            body_hash: BodyHash::of(b""),
        };
        self.record(ReceiveCall {
            queue: self.queue.clone(),
            visibility: Duration::from_millis(1),
            max_receive_count: u32::MAX,
            outcome: Outcome::Done(vec![delivery]),
        });
        token
    }

    fn settle(&mut self, message: u64, token: LeaseToken, disposition: Disposition) {
        let (queue, id, outcome) = (self.queue.clone(), id(message), LeaseOutcome::Done);
        self.record(SettleCall { queue, id, token, disposition, outcome });
    }

    fn judge(mut self, live: Vec<MessageId>) -> Verdict {
        self.record(FinalState { queue: self.queue.clone(), dead_letters: Vec::new(), live: Some(live) });
        let start = Instant::now();
        let verdict = check(&self.events, &CheckOptions::default());
        let took = start.elapsed();
        assert!(took < TIME_LIMIT, "{} events took {took:?}", self.events.len());
        println!("{} events: {took:?}", self.events.len());
        verdict
    }
}

fn id(message: u64) -> MessageId {
    MessageId::from_uuid(Uuid::from_u128(u128::from(message)))
}

#[test]
fn many_messages_of_many_keys() {
    let mut log = Log::new();
    for message in 0..OPERATIONS / 3 {
        let key = || Some(format!("key {}", message % 1_000));
        log.send(message, key(), None, message);
        let token = log.receive(message, key(), 1);
        log.settle(message, token, Disposition::Ack);
    }
    let verdict = log.judge(Vec::new());
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!(verdict.counts.acks, OPERATIONS / 3);
}

#[test]
fn one_key_for_everything_and_every_message_out_of_order() {
    let mut log = Log::new();
    let messages = OPERATIONS / 3;
    for message in 0..messages {
        log.send(message, Some("key".into()), None, message);
    }
    for message in (0..messages).rev() {
        let token = log.receive(message, Some("key".into()), 1);
        log.settle(message, token, Disposition::Ack);
    }
    let verdict = log.judge(Vec::new());
    assert!(verdict.found.values().sum::<u64>() > messages / 2, "{verdict}");
    assert_eq!(verdict.findings.len(), CheckOptions::default().findings_per_kind);
}

#[test]
fn one_message_delivered_again_and_again() {
    let mut log = Log::new();
    log.send(0, None, None, 0);
    for count in 1..=u32::try_from(OPERATIONS / 3).unwrap() {
        let token = log.receive(0, None, count);
        let (queue, extension) = (log.queue.clone(), Duration::from_millis(1));
        let outcome = LeaseOutcome::Unknown;
        log.record(ExtendCall { queue, id: id(0), token, extension, outcome });
        log.settle(0, token, Disposition::Nack(Nack::retry_after(Duration::ZERO)));
    }
    let verdict = log.judge(vec![id(0)]);
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!(verdict.counts.retries, OPERATIONS / 3);
}

#[test]
fn one_dedup_key_for_everything() {
    let mut log = Log::new();
    log.send(0, None, Some("key".into()), 0);
    for message in 1..OPERATIONS {
        log.send(message, None, Some("key".into()), if message < 1_000 { 0 } else { message });
    }
    let verdict = log.judge((0..OPERATIONS).collect::<Vec<_>>().into_iter().map(id).collect());
    assert_eq!(verdict.found.values().sum::<u64>(), OPERATIONS - 1_000, "{verdict}");
}
