//! Workers on one queue, whose calls overlap, fail, and lose their answers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use postrider_core::{DeadLetterReason, Disposition, LeaseToken, MessageId, Nack, QueueName, Timestamp};

use super::queue::{Fault, NewMessage, Queue, StoredMessage};
use super::random::Random;
use crate::checker::CheckOptions;
use crate::history::{
    BodyHash, DeadRecord, Delivery, Event, FinalState, LeaseOutcome, Operation, Outcome, Purged, ReceiveCall,
    Selection, SendCall, SettleCall,
};

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A history of a queue with the fault, and the options to check it with.
pub(super) fn history(seed: u64, fault: Option<Fault>) -> (Vec<Event>, CheckOptions) {
    let mut random = Random::new(seed);
    let resolution = if random.percent(70) { Duration::from_micros(1) } else { ms(50) };
    let clock_skew = if random.percent(80) { Duration::ZERO } else { ms(2) };
    let mut simulation = Simulation {
        clock_skew,
        queue: Queue::new(resolution, fault),
        failure_percent: [0, 5, 25][random.below(3)],
        max_latency: [ms(1), ms(30), ms(200)][random.below(3)],
        // A fault needs time to show.
        calls_left: if fault.is_some() { 600 } else { 150 + random.below(150) },
        now: Timestamp::from_micros(1_000_000_000),
        timeline: BinaryHeap::new(),
        calls: BTreeMap::new(),
        number: 0,
        receipts: Vec::new(),
        resends: Vec::new(),
        events: Vec::new(),
        random,
    };
    for worker in 0..2 + simulation.random.below(5) as u32 {
        simulation.at(simulation.now, Step::Begin(worker));
    }
    simulation.run();
    simulation.finish();
    let options =
        CheckOptions { time_resolution: resolution, tolerance: Duration::ZERO, clock_skew, ..CheckOptions::default() };
    (simulation.events, options)
}

pub(super) struct Simulation {
    pub(super) random: Random,
    pub(super) queue: Queue,
    /// Largest difference between the clocks of a worker and the queue.
    clock_skew: Duration,
    /// The percentage of calls that fail or lose their answer.
    failure_percent: usize,
    /// Longest time of a call before and after its effect.
    max_latency: Duration,
    calls_left: usize,
    pub(super) now: Timestamp,
    timeline: BinaryHeap<Reverse<(Timestamp, u64, Step)>>,
    calls: BTreeMap<u64, Call>,
    number: u64,
    /// Receipts of deliveries, and since when they are known.
    pub(super) receipts: Vec<(Timestamp, QueueName, MessageId, LeaseToken)>,
    /// Sends without an answer, to be made again.
    pub(super) resends: Vec<(Timestamp, SendCall)>,
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Begin(u32),
    Effect(u64),
}

/// A call under way: all its rows take effect at one moment, in order.
struct Call {
    worker: u32,
    start: Timestamp,
    end: Timestamp,
    rows: Vec<Operation>,
    answered: bool,
}

pub(super) fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}

impl Simulation {
    fn at(&mut self, time: Timestamp, step: Step) {
        self.number += 1;
        self.timeline.push(Reverse((time, self.number, step)));
    }

    fn run(&mut self) {
        while let Some(Reverse((time, _, step))) = self.timeline.pop() {
            self.now = time;
            match step {
                Step::Begin(worker) => {
                    if self.calls_left > 0 {
                        self.calls_left -= 1;
                        let rows = self.choose();
                        self.begin(worker, rows);
                    }
                }
                Step::Effect(number) => {
                    if let Some(call) = self.calls.remove(&number) {
                        self.effect(call);
                    }
                }
            }
        }
    }

    /// Starts a call. It may take effect after its caller has stopped waiting.
    fn begin(&mut self, worker: u32, rows: Vec<Operation>) {
        let start = self.now;
        let effect = start.saturating_add(self.random.duration(self.max_latency));
        let answer = effect.saturating_add(self.random.duration(self.max_latency));
        let mut call = Call { worker, start, end: answer, rows, answered: true };
        let mut happens = true;
        if self.random.percent(self.failure_percent) {
            call.answered = false;
            call.end = start.saturating_add(self.random.duration(self.max_latency));
            happens = self.random.percent(70);
            if !happens && self.random.percent(50) {
                call.rows.iter_mut().for_each(fail);
            }
            self.give_up(&call);
        }
        let next = call.end.saturating_add(self.random.duration(ms(20)));
        if happens {
            self.schedule(effect, call);
        }
        self.at(next, Step::Begin(worker));
    }

    fn schedule(&mut self, effect: Timestamp, call: Call) {
        self.number += 1;
        self.calls.insert(self.number, call);
        let number = self.number;
        self.at(effect, Step::Effect(number));
    }

    /// Records what the caller of an unanswered call knows.
    fn give_up(&mut self, call: &Call) {
        for row in &call.rows {
            if let Operation::Send(send) = row
                && send.outcome == Outcome::Unknown
            {
                self.resends.push((call.end, send.clone()));
            }
            self.record(call, row.clone());
        }
    }

    fn record(&mut self, call: &Call, operation: Operation) {
        let Call { worker, start, end, .. } = *call;
        let clock = |time: Timestamp| match worker % 3 {
            0 => time.saturating_sub(self.clock_skew),
            1 => time.saturating_add(self.clock_skew),
            _ => time,
        };
        self.events.push(Event { worker, start: clock(start), end: clock(end), operation });
    }

    fn effect(&mut self, mut call: Call) {
        let rows = std::mem::take(&mut call.rows);
        for mut row in rows {
            self.carry_out(&mut row, call.end, call.answered);
            if call.answered {
                self.record(&call, row);
            }
        }
    }

    /// Applies one row to the queue and fills in its answer; a caller that has given up never sees it.
    fn carry_out(&mut self, row: &mut Operation, end: Timestamp, answered: bool) {
        let (now, queue, random) = (self.now, &mut self.queue, &mut self.random);
        match row {
            Operation::Send(call) => {
                let message = NewMessage {
                    id: call.id,
                    key: call.ordering_key.clone(),
                    dedup: call.dedup_key.clone(),
                    delay: call.delay,
                    expires: call.expires_in,
                };
                call.outcome = Outcome::Done(queue.send(&message, now, random));
            }
            Operation::Receive(call) => {
                let (max, dead) = (1 + random.below(4), call.queue.holds_dead_letters());
                let limit = call.max_receive_count;
                let received = queue.receive(dead, max, call.visibility, limit, now, random);
                if !answered && random.percent(50) {
                    // The messages of an abandoned receive are dropped and returned, best effort.
                    received.iter().for_each(|(token, _)| queue.give_back(*token, now));
                }
                if answered {
                    let receipts = received.iter().map(|(token, stored)| (end, call.queue.clone(), stored.id, *token));
                    self.receipts.extend(receipts);
                }
                call.outcome = Outcome::Done(received.into_iter().map(delivery).collect());
            }
            Operation::Settle(call) => {
                if let Disposition::Nack(Nack::DeadLetter { reason, .. }) = &call.disposition
                    && !answered
                    && random.percent(30)
                {
                    queue.copy_to_dead_letters(call.token, reason.as_str(), now);
                } else {
                    let done = queue.settle(call.id, call.token, &call.disposition, now, random);
                    call.outcome = if done { LeaseOutcome::Done } else { LeaseOutcome::Expired };
                }
            }
            Operation::Extend(call) => {
                let done = queue.extend(call.id, call.token, call.extension, now, random);
                call.outcome = if done { LeaseOutcome::Done } else { LeaseOutcome::Expired };
            }
            Operation::Dropped(dropped) => {
                if random.percent(70) {
                    queue.give_back(dropped.token, now);
                }
            }
            Operation::Redrive(call) => {
                let ids = match &call.selection {
                    Selection::Ids(ids) => Some(&ids[..]),
                    Selection::All | Selection::Reason(_) => None,
                };
                call.outcome = Outcome::Done(queue.redrive(ids, now));
            }
            Operation::Purge(call) => {
                call.outcome = Outcome::Done(match call.what {
                    Purged::Waiting => queue.purge_waiting(now),
                    Purged::DeadLetters(_) => queue.purge_dead(now),
                });
            }
            other => panic!("no worker does this: {other:?}"),
        }
    }

    /// Drains the queue, or leaves it, and records its final state.
    fn finish(&mut self) {
        if self.random.percent(80) {
            self.drain();
        }
        let drained = !self.queue.stored.iter().any(|stored| stored.dead.is_none());
        let dead = self.queue.stored.iter().filter_map(|stored| {
            Some(DeadRecord {
                id: stored.id,
                origin: orders(),
                reason: DeadLetterReason::from(stored.dead.as_deref()?),
                deliveries_count: stored.deliveries,
                body_hash: body(stored.body),
            })
        });
        let live = self.queue.stored.iter().filter(|stored| stored.dead.is_none()).map(|stored| stored.id);
        let state = FinalState {
            queue: orders(),
            dead_letters: dead.collect(),
            live: (!drained || self.random.percent(50)).then(|| live.collect()),
        };
        let call = self.next_drain_call();
        self.record(&call, state.into());
    }

    fn drain(&mut self) {
        // A broken queue may keep acknowledged messages forever; a correct one is empty long before.
        for _ in 0..400 {
            let call = self.next_drain_call();
            let mut row = ReceiveCall { queue: orders(), ..self.choose_receive() }.into();
            self.carry_out(&mut row, call.end, true);
            self.record(&call, row.clone());
            let Operation::Receive(ReceiveCall { outcome: Outcome::Done(received), .. }) = row else {
                return;
            };
            if received.is_empty() {
                let live = self.queue.stored.iter().filter(|stored| stored.dead.is_none());
                let Some(next) = live.map(StoredMessage::next_at).filter(|at| *at > self.now).min() else {
                    return;
                };
                self.now = next;
            }
            for Delivery { id, token, .. } in received {
                let call = self.next_drain_call();
                let (queue, disposition) = (orders(), Disposition::Ack);
                let outcome = LeaseOutcome::Unknown;
                let mut row = SettleCall { queue, id, token, disposition, outcome }.into();
                self.carry_out(&mut row, call.end, true);
                self.record(&call, row);
            }
        }
    }

    fn next_drain_call(&mut self) -> Call {
        self.now = self.now.saturating_add(Duration::from_micros(2));
        let end = self.now.saturating_add(Duration::from_micros(1));
        Call { worker: 99, start: self.now, end, rows: Vec::new(), answered: true }
    }
}

pub(super) fn body(body: u64) -> BodyHash {
    BodyHash::of(&body.to_le_bytes())
}

fn delivery((token, stored): (LeaseToken, StoredMessage)) -> Delivery {
    Delivery {
        id: stored.id,
        token,
        receive_count: stored.deliveries,
        attempts_count: stored.attempts,
        ordering_key: stored.key,
        body_hash: body(stored.body),
    }
}

fn fail(row: &mut Operation) {
    let why = || "nothing was done".to_owned();
    match row {
        Operation::Send(call) => call.outcome = Outcome::Failed(why()),
        Operation::Receive(call) => call.outcome = Outcome::Failed(why()),
        Operation::Settle(call) => call.outcome = LeaseOutcome::Failed(why()),
        Operation::Extend(call) => call.outcome = LeaseOutcome::Failed(why()),
        Operation::Redrive(call) => call.outcome = Outcome::Failed(why()),
        Operation::Purge(call) => call.outcome = Outcome::Failed(why()),
        _ => {}
    }
}
