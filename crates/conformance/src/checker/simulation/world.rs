//! Workers around one queue, whose calls overlap, fail, and lose their answers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use postrider_core::{DeadLetterReason, Disposition, LeaseToken, MessageId, Nack, QueueName, Timestamp};

use super::dice::Dice;
use super::queue::{Fault, Held, NewMessage, Queue};
use crate::checker::CheckOptions;
use crate::history::{
    BodyHash, DeadRecord, Delivery, Event, FinalState, LeaseOutcome, Operation, Outcome, Purged, ReceiveCall,
    Selection, SendCall, SettleCall,
};

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A history of a queue with that fault, and how it is to be judged.
pub(super) fn history(seed: u64, fault: Option<Fault>) -> (Vec<Event>, CheckOptions) {
    let mut dice = Dice::new(seed);
    let resolution = if dice.percent(70) { Duration::from_micros(1) } else { ms(50) };
    let clock_skew = if dice.percent(80) { Duration::ZERO } else { ms(2) };
    let mut world = World {
        clock_skew,
        queue: Queue::new(resolution, fault),
        trouble: [0, 5, 25][dice.below(3)],
        slowness: [ms(1), ms(30), ms(200)][dice.below(3)],
        // A fault needs time to show.
        calls_left: if fault.is_some() { 600 } else { 150 + dice.below(150) },
        now: Timestamp::from_micros(1_000_000_000),
        agenda: BinaryHeap::new(),
        calls: BTreeMap::new(),
        number: 0,
        receipts: Vec::new(),
        resends: Vec::new(),
        events: Vec::new(),
        dice,
    };
    for worker in 0..2 + world.dice.below(5) as u32 {
        world.at(world.now, Step::Begin(worker));
    }
    world.run();
    world.finish();
    let options =
        CheckOptions { time_resolution: resolution, tolerance: Duration::ZERO, clock_skew, ..CheckOptions::default() };
    (world.events, options)
}

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) queue: Queue,
    /// How far a worker's clock goes before or after the queue's.
    clock_skew: Duration,
    /// How many calls in a hundred go wrong.
    trouble: usize,
    /// How long a call takes at most, before and after its effect.
    slowness: Duration,
    calls_left: usize,
    pub(super) now: Timestamp,
    agenda: BinaryHeap<Reverse<(Timestamp, u64, Step)>>,
    calls: BTreeMap<u64, Call>,
    number: u64,
    /// What somebody was handed, and since when it is known.
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

/// A call under way: all its rows take effect at one moment, in their order.
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

impl World {
    fn at(&mut self, time: Timestamp, step: Step) {
        self.number += 1;
        self.agenda.push(Reverse((time, self.number, step)));
    }

    fn run(&mut self) {
        while let Some(Reverse((time, _, step))) = self.agenda.pop() {
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

    /// Starts a call: when it takes effect, and when its caller stops waiting, are two things.
    fn begin(&mut self, worker: u32, rows: Vec<Operation>) {
        let start = self.now;
        let effect = start.saturating_add(self.dice.duration(self.slowness));
        let answer = effect.saturating_add(self.dice.duration(self.slowness));
        let mut call = Call { worker, start, end: answer, rows, answered: true };
        let mut happens = true;
        if self.dice.percent(self.trouble) {
            call.answered = false;
            call.end = start.saturating_add(self.dice.duration(self.slowness));
            happens = self.dice.percent(70);
            if !happens && self.dice.percent(50) {
                call.rows.iter_mut().for_each(fail);
            }
            self.give_up(&call);
        }
        let next = call.end.saturating_add(self.dice.duration(ms(20)));
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

    /// What the caller of an unanswered call knows.
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

    /// The queue's part of one row. Its answer is filled in; a caller that has gone never sees it.
    fn carry_out(&mut self, row: &mut Operation, end: Timestamp, answered: bool) {
        let (now, queue, dice) = (self.now, &mut self.queue, &mut self.dice);
        match row {
            Operation::Send(call) => {
                let message = NewMessage {
                    id: call.id,
                    key: call.ordering_key.clone(),
                    dedup: call.dedup_key.clone(),
                    delay: call.delay,
                    expires: call.expires_in,
                };
                call.outcome = Outcome::Done(queue.send(&message, now, dice));
            }
            Operation::Receive(call) => {
                let (max, dead) = (1 + dice.below(4), call.queue.holds_dead_letters());
                let limit = call.max_receive_count;
                let received = queue.receive(dead, max, call.visibility, limit, now, dice);
                if !answered && dice.percent(50) {
                    // The messages of a receive that was given up are dropped, and given back best effort.
                    received.iter().for_each(|(token, _)| queue.give_back(*token, now));
                }
                if answered {
                    let receipts = received.iter().map(|(token, held)| (end, call.queue.clone(), held.id, *token));
                    self.receipts.extend(receipts);
                }
                call.outcome = Outcome::Done(received.into_iter().map(delivery).collect());
            }
            Operation::Settle(call) => {
                if let Disposition::Nack(Nack::DeadLetter { reason, .. }) = &call.disposition
                    && !answered
                    && dice.percent(30)
                {
                    queue.half_bury(call.token, reason.as_str(), now);
                } else {
                    let done = queue.settle(call.id, call.token, &call.disposition, now, dice);
                    call.outcome = if done { LeaseOutcome::Done } else { LeaseOutcome::Expired };
                }
            }
            Operation::Extend(call) => {
                let done = queue.extend(call.id, call.token, call.extension, now, dice);
                call.outcome = if done { LeaseOutcome::Done } else { LeaseOutcome::Expired };
            }
            Operation::Dropped(dropped) => {
                if dice.percent(70) {
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

    /// Drains the queue, or leaves it as it is, and looks at what is there.
    fn finish(&mut self) {
        if self.dice.percent(80) {
            self.drain();
        }
        let drained = !self.queue.held.iter().any(|held| held.dead.is_none());
        let dead = self.queue.held.iter().filter_map(|held| {
            Some(DeadRecord {
                id: held.id,
                origin: orders(),
                reason: DeadLetterReason::from(held.dead.as_deref()?),
                deliveries_count: held.deliveries,
                body_hash: body(held.body),
            })
        });
        let live = self.queue.held.iter().filter(|held| held.dead.is_none()).map(|held| held.id);
        let state = FinalState {
            queue: orders(),
            dead_letters: dead.collect(),
            live: (!drained || self.dice.percent(50)).then(|| live.collect()),
        };
        let call = self.next_drain_call();
        self.record(&call, state.into());
    }

    fn drain(&mut self) {
        // A broken queue may keep what was acknowledged for ever; a correct one is empty long before.
        for _ in 0..400 {
            let call = self.next_drain_call();
            let mut row = ReceiveCall { queue: orders(), ..self.choose_receive() }.into();
            self.carry_out(&mut row, call.end, true);
            self.record(&call, row.clone());
            let Operation::Receive(ReceiveCall { outcome: Outcome::Done(received), .. }) = row else {
                return;
            };
            if received.is_empty() {
                let live = self.queue.held.iter().filter(|held| held.dead.is_none());
                let Some(next) = live.map(Held::next_at).filter(|at| *at > self.now).min() else {
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

fn delivery((token, held): (LeaseToken, Held)) -> Delivery {
    Delivery {
        id: held.id,
        token,
        receive_count: held.deliveries,
        attempts_count: held.attempts,
        ordering_key: held.key,
        body_hash: body(held.body),
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
