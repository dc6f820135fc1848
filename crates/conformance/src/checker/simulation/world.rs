//! Workers around one queue, whose calls overlap, fail, and lose their answers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use postrider_core::{DeadLetterReason, Disposition, LeaseToken, MessageId, Nack, QueueName, Timestamp};
use uuid::Uuid;

use super::dice::Dice;
use super::queue::{Fault, Held, NewMessage, Queue};
use crate::checker::CheckOptions;
use crate::history::{
    BodyHash, DeadRecord, Delivery, Dropped, Event, ExtendCall, FinalState, LeaseOutcome, Operation, Outcome,
    PurgeCall, Purged, ReceiveCall, RedriveCall, Selection, SendCall, SettleCall,
};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A history of a queue with that fault, and how it is to be judged.
pub(super) fn history(seed: u64, fault: Option<Fault>) -> (Vec<Event>, CheckOptions) {
    let mut dice = Dice::new(seed);
    let resolution = if dice.percent(70) { Duration::from_micros(1) } else { ms(50) };
    let mut world = World {
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
    let options = CheckOptions { time_resolution: resolution, tolerance: Duration::ZERO, ..CheckOptions::default() };
    (world.events, options)
}

struct World {
    dice: Dice,
    queue: Queue,
    /// How many calls in a hundred go wrong.
    trouble: usize,
    /// How long a call takes at most, before and after its effect.
    slowness: Duration,
    calls_left: usize,
    now: Timestamp,
    agenda: BinaryHeap<Reverse<(Timestamp, u64, Step)>>,
    calls: BTreeMap<u64, Call>,
    number: u64,
    /// What somebody was handed, and since when it is known.
    receipts: Vec<(Timestamp, QueueName, MessageId, LeaseToken)>,
    /// Sends without an answer, to be made again.
    resends: Vec<(Timestamp, SendCall)>,
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

fn orders() -> QueueName {
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
        self.events.push(Event { worker, start, end, operation });
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

    /// What a worker does next.
    fn choose(&mut self) -> Vec<Operation> {
        match self.dice.below(100) {
            0..25 => self.choose_sends(),
            25..55 => vec![self.choose_receive().into()],
            55..63 => {
                let mut rows = self.choose_settle();
                rows.push(self.choose_receive().into());
                rows
            }
            63..88 => self.choose_settle(),
            88..94 => self.choose_extend(),
            94..97 => self.choose_drop(),
            97 => self.choose_redrive(),
            _ if self.dice.percent(20) => {
                let selection = Purged::DeadLetters(Selection::All);
                let what = if self.dice.percent(50) { Purged::Waiting } else { selection };
                vec![PurgeCall { queue: orders(), what, outcome: Outcome::Unknown }.into()]
            }
            _ => Vec::new(),
        }
    }

    fn choose_sends(&mut self) -> Vec<Operation> {
        let known = self.resends.iter().position(|(since, _)| *since <= self.now);
        if let Some(known) = known.filter(|_| self.dice.percent(50)) {
            return vec![self.resends.swap_remove(known).1.into()];
        }
        let rows = if self.dice.percent(70) { 1 } else { 1 + self.dice.below(4) as u32 };
        let first = self.dice.next();
        let id = |row: u32| MessageId::from_uuid(Uuid::from_u128(u128::from(first) + u128::from(row)));
        (0..rows)
            .map(|row| {
                let dice = &mut self.dice;
                let key = dice.percent(60).then(|| format!("key {}", dice.below(2)));
                let dedup = dice.percent(15).then(|| format!("dedup {}", dice.below(3)));
                let delay = if dice.percent(20) { dice.duration(ms(300)) } else { Duration::ZERO };
                let expires = dice.percent(15).then(|| dice.duration(ms(400)));
                SendCall {
                    queue: orders(),
                    id: id(row),
                    ordering_key: key,
                    dedup_key: dedup,
                    delay,
                    expires_in: expires,
                    expires_at: None,
                    body_hash: body(id(row).as_uuid().as_u128() as u64),
                    row,
                    batch: id(0),
                    outcome: Outcome::Unknown,
                }
                .into()
            })
            .collect()
    }

    fn choose_receive(&mut self) -> ReceiveCall {
        let queue = if self.dice.percent(8) { orders().dead_letters() } else { orders() };
        ReceiveCall {
            queue,
            visibility: ms([1, 100][self.dice.below(2)]) + self.dice.duration(ms(300)),
            max_receive_count: 2 + self.dice.below(3) as u32,
            outcome: Outcome::Unknown,
        }
    }

    /// A receipt that somebody has: mostly a new one, sometimes one that was used long ago.
    fn choose_receipt(&mut self) -> Option<(QueueName, MessageId, LeaseToken)> {
        let known = self.receipts.iter().enumerate().filter(|(_, (since, ..))| *since <= self.now);
        let known: Vec<_> = known.map(|(place, _)| place).collect();
        let recent = &known[known.len().saturating_sub(8)..];
        let from = if self.dice.percent(85) { recent } else { &known[..] };
        let (_, queue, id, token) = self.receipts[from[self.dice.pick(from)?]].clone();
        Some((queue, id, token))
    }

    fn choose_settle(&mut self) -> Vec<Operation> {
        let Some((queue, id, token)) = self.choose_receipt() else {
            return Vec::new();
        };
        let least = if self.dice.percent(50) { ms(100) } else { Duration::ZERO };
        let retry = Nack::retry_after(least + self.dice.duration(ms(200)));
        let disposition = match self.dice.below(100) {
            0..50 => Disposition::Ack,
            50..75 => Disposition::Nack(retry),
            75..85 => Disposition::Nack(Nack::Release),
            _ if queue.holds_dead_letters() => Disposition::Ack,
            _ => Disposition::Nack(Nack::dead_letter("rejected")),
        };
        let outcome = LeaseOutcome::Unknown;
        vec![SettleCall { queue, id, token, disposition, outcome }.into()]
    }

    fn choose_extend(&mut self) -> Vec<Operation> {
        let Some((queue, id, token)) = self.choose_receipt() else {
            return Vec::new();
        };
        let extension = ms(1) + self.dice.duration(ms(400));
        let outcome = LeaseOutcome::Unknown;
        vec![ExtendCall { queue, id, token, extension, outcome }.into()]
    }

    fn choose_drop(&mut self) -> Vec<Operation> {
        let Some((queue, id, token)) = self.choose_receipt() else {
            return Vec::new();
        };
        vec![Dropped { queue, id, token }.into()]
    }

    fn choose_redrive(&mut self) -> Vec<Operation> {
        let dead = self.queue.held.iter().filter(|held| held.dead.is_some());
        let dead: Vec<_> = dead.map(|held| held.id).collect();
        let Some(one) = self.dice.pick(&dead) else {
            return Vec::new();
        };
        let all = self.dice.percent(10);
        let selection = if all { Selection::All } else { Selection::Ids(vec![dead[one]]) };
        vec![RedriveCall { queue: orders(), to: None, selection, outcome: Outcome::Unknown }.into()]
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

fn body(body: u64) -> BodyHash {
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
