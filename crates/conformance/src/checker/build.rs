//! Builds the index: the history by queue and by message.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use postrider_core::{Disposition, LeaseToken, MessageId, Nack, QueueName, Timestamp};

use super::index::{Delivered, Extended, FinalDeadLetter, Index, MessageLog, QueueLog, Sent, Settled, Stay};
use super::lease::{self, LeaseBounds};
use super::span::{Arrival, Span};
use super::{CheckOptions, Counts, LeaseScope};
use crate::history::{
    Event, FinalState, LeaseOutcome, Operation, Outcome, PurgeCall, Purged, ReceiveCall, RedriveCall, Selection,
    SendCall, SettleCall,
};

/// The index of a history, and its counts.
pub(super) fn build<'a>(events: &'a [Event], options: &'a CheckOptions) -> (Index<'a>, Counts) {
    let mut builder = Builder {
        index: Index {
            events,
            options,
            start: events.iter().map(|event| event.start).min().unwrap_or_default(),
            queues: Vec::new(),
            messages: Vec::new(),
            by_id: HashMap::new(),
            unknown_token_uses: Vec::new(),
            repeated_tokens: Vec::new(),
        },
        queue_numbers: HashMap::new(),
        counts: Counts { events: events.len() as u64, ..Counts::default() },
    };
    for (number, event) in events.iter().enumerate() {
        builder.add_event(number, event);
    }
    builder.finish_arrivals();
    let tokens = builder.sort_deliveries();
    for (number, event) in events.iter().enumerate() {
        builder.add_lease_use(number, event, &tokens);
    }
    builder.finish();
    (builder.index, builder.counts)
}

/// The delivery of each token, and its event.
type Tokens = HashMap<LeaseToken, (DeliveryPosition, usize)>;

/// The position of a delivery in the index.
#[derive(Debug, Clone, Copy)]
struct DeliveryPosition {
    message: usize,
    stay: usize,
    delivery: usize,
}

struct Builder<'a> {
    index: Index<'a>,
    queue_numbers: HashMap<QueueName, usize>,
    counts: Counts,
}

/// The call as its caller saw it, widened by the clock skew.
fn seen(event: &Event, options: &CheckOptions) -> Span {
    let skew = options.clock_skew;
    Span { start: event.start.saturating_sub(skew), end: event.end.saturating_add(skew) }
}

/// When the call took effect: without an answer, at any time after its start.
fn effect<T>(seen: Span, outcome: &Outcome<T>) -> Span {
    let end = if outcome.done().is_some() { seen.end } else { Timestamp::MAX };
    Span { end, ..seen }
}

impl<'a> Builder<'a> {
    fn queue(&mut self, name: &QueueName) -> usize {
        if let Some(number) = self.queue_numbers.get(name) {
            return *number;
        }
        let origin = name.holds_dead_letters().then(|| self.queue(&name.origin()));
        let number = self.index.queues.len();
        self.index.queues.push(QueueLog::new(name.clone(), origin.unwrap_or(number)));
        self.queue_numbers.insert(name.clone(), number);
        number
    }

    fn origin(&mut self, name: &QueueName) -> usize {
        let queue = self.queue(name);
        self.index.queues[queue].origin
    }

    fn message(&mut self, id: MessageId) -> &mut MessageLog<'a> {
        let messages = &mut self.index.messages;
        let position = *self.index.by_id.entry(id).or_insert_with(|| {
            messages.push(MessageLog::new(id));
            messages.len() - 1
        });
        &mut messages[position]
    }

    fn stay(&mut self, id: MessageId, queue: usize) -> &mut Stay<'a> {
        let stays = &mut self.message(id).stays;
        let position = stays.iter().position(|stay| stay.queue == queue).unwrap_or_else(|| {
            stays.push(Stay { queue, arrivals: Vec::new(), deliveries: Vec::new() });
            stays.len() - 1
        });
        &mut stays[position]
    }

    /// Adds everything but the uses of leases, whose deliveries may come later in the history.
    fn add_event(&mut self, number: usize, event: &'a Event) {
        let seen = seen(event, self.index.options);
        match &event.operation {
            Operation::Send(call) => self.add_send(number, seen, call),
            Operation::Receive(call) => self.add_receive(number, seen, call),
            Operation::Redrive(call) => self.add_redrive(number, seen, call),
            Operation::Purge(call) => self.add_purge(seen, call),
            Operation::Delete(call) if call.outcome.may_have_happened() => {
                let queue = self.origin(&call.queue);
                let span = effect(seen, &call.outcome);
                let log = &mut self.index.queues[queue];
                log.removals.add(span);
                log.dead_purged_until = log.dead_purged_until.max(Some(span.end));
            }
            Operation::Edit(call) if call.outcome.may_have_happened() => {
                let hash = call.body_hash;
                self.message(call.id).edited.extend(hash);
            }
            Operation::Final(state) => self.add_final(number, state),
            Operation::Delete(_) | Operation::Edit(_) => {}
            Operation::Settle(_) | Operation::Extend(_) | Operation::Dropped(_) => {}
        }
    }

    fn add_send(&mut self, number: usize, seen: Span, call: &'a SendCall) {
        let queue = self.queue(&call.queue);
        let span = effect(seen, &call.outcome);
        match &call.outcome {
            Outcome::Done(answered) => {
                self.counts.sends += 1;
                let message = self.message(*answered);
                let by = message.certain_by.map_or(seen.end, |by| by.min(seen.end));
                message.certain_by = Some(by);
            }
            Outcome::Unknown => self.counts.unknown_sends += 1,
            Outcome::Failed(_) => {}
        }
        let sent = Sent { event: number, span, queue, call };
        if sent.may_exist() {
            let arrival = Arrival { event: number, span, delay: call.delay };
            self.stay(call.id, queue).arrivals.push(arrival);
        }
        self.message(call.id).sends.push(sent);
    }

    fn add_receive(&mut self, number: usize, seen: Span, call: &'a ReceiveCall) {
        let queue = self.queue(&call.queue);
        let log = &mut self.index.queues[queue];
        let limit = call.max_receive_count;
        log.least_limit = Some(log.least_limit.map_or(limit, |least| least.min(limit)));
        match &call.outcome {
            Outcome::Done(deliveries) => {
                self.counts.deliveries += deliveries.len() as u64;
                for delivery in deliveries {
                    self.stay(delivery.id, queue).deliveries.push(Delivered {
                        event: number,
                        span: seen,
                        visibility: call.visibility,
                        limit,
                        delivery,
                        settles: Vec::new(),
                        extends: Vec::new(),
                        dropped: None,
                        lease: LeaseBounds::default(),
                    });
                }
            }
            Outcome::Unknown => {
                log.unknown_receives += 1;
                self.counts.unknown_receives += 1;
            }
            Outcome::Failed(_) => {}
        }
    }

    fn add_redrive(&mut self, number: usize, seen: Span, call: &'a RedriveCall) {
        let from = self.origin(&call.queue);
        let into = call.to.as_ref().map_or(from, |to| self.queue(to));
        let (ids, unknown) = match (&call.outcome, &call.selection) {
            (Outcome::Failed(_), _) => return,
            (Outcome::Done(ids), _) => (ids, 0),
            (Outcome::Unknown, Selection::Ids(ids)) => (ids, 1),
            (Outcome::Unknown, Selection::All | Selection::Reason(_)) => {
                self.index.queues[from].unknown_redrives.add(seen.start, number);
                if into != from {
                    self.index.queues[into].unknown_redrives.add(seen.start, number);
                }
                self.index.queues[into].unknown_redrives_into.add(seen.start, number);
                return;
            }
        };
        if unknown == 0 {
            self.counts.redriven += ids.len() as u64;
        }
        let span = effect(seen, &call.outcome);
        for id in ids {
            let arrival = Arrival { event: number, span, delay: Duration::ZERO };
            self.stay(*id, into).arrivals.push(arrival);
            let message = self.message(*id);
            message.redrives.add(span);
            message.unknown_moves += unknown;
        }
    }

    fn add_purge(&mut self, seen: Span, call: &'a PurgeCall) {
        if matches!(call.outcome, Outcome::Failed(_) | Outcome::Done(0)) {
            return;
        }
        let queue = self.origin(&call.queue);
        let span = effect(seen, &call.outcome);
        let log = &mut self.index.queues[queue];
        match &call.what {
            Purged::Waiting => log.removals.add(span),
            Purged::DeadLetters(Selection::Ids(ids)) => {
                for id in ids {
                    let message = self.message(*id);
                    message.dead_purged_until = message.dead_purged_until.max(Some(span.end));
                }
            }
            Purged::DeadLetters(Selection::All | Selection::Reason(_)) => {
                log.dead_purged_until = log.dead_purged_until.max(Some(span.end));
            }
        }
    }

    fn add_final(&mut self, number: usize, state: &'a FinalState) {
        let queue = self.origin(&state.queue);
        self.index.queues[queue].has_final = true;
        self.counts.final_queues += 1;
        self.counts.dead += state.dead_letters.len() as u64;
        for record in &state.dead_letters {
            self.message(record.id).dead.push(FinalDeadLetter { event: number, record });
        }
        for id in state.live.iter().flatten() {
            self.counts.live += 1;
            self.message(*id).live.push(queue);
        }
    }

    /// A bulk redrive without an answer may have brought back every message known in its queue.
    fn finish_arrivals(&mut self) {
        for message in &mut self.index.messages {
            for stay in &mut message.stays {
                let queue = &self.index.queues[stay.queue];
                let unknown = self.index.queues[queue.origin].unknown_redrives;
                if let Some(redrive) = unknown.first() {
                    message.redrives.add(redrive.span);
                    message.unknown_moves += unknown.count;
                }
                stay.arrivals.extend(queue.unknown_redrives_into.first());
                stay.arrivals.sort_by_key(|arrival| arrival.span.start);
            }
            message.redrives.finish();
        }
        for queue in &mut self.index.queues {
            queue.removals.finish();
        }
    }

    fn sort_deliveries(&mut self) -> Tokens {
        let mut tokens = Tokens::with_capacity(self.index.by_id.len());
        for (m, message) in self.index.messages.iter_mut().enumerate() {
            for (s, stay) in message.stays.iter_mut().enumerate() {
                let arrival = stay.first_arrival();
                for delivered in &mut stay.deliveries {
                    if let Some(arrival) = arrival.filter(|arrival| *arrival <= delivered.span.end) {
                        delivered.span.start = delivered.span.start.max(arrival);
                    }
                }
                stay.deliveries.sort_by_key(|delivered| (delivered.span.end, delivered.event));
                for (d, delivered) in stay.deliveries.iter().enumerate() {
                    match tokens.entry(delivered.delivery.token) {
                        Entry::Vacant(entry) => {
                            let position = DeliveryPosition { message: m, stay: s, delivery: d };
                            entry.insert((position, delivered.event));
                        }
                        Entry::Occupied(first) => {
                            let again = (first.get().1, delivered.event, message.id);
                            self.index.repeated_tokens.push(again);
                        }
                    }
                }
            }
        }
        tokens
    }

    fn add_lease_use(&mut self, number: usize, event: &'a Event, tokens: &Tokens) {
        let seen = seen(event, self.index.options);
        match &event.operation {
            Operation::Settle(call) => self.add_settle(number, seen, call, tokens),
            Operation::Extend(call) => {
                match call.outcome {
                    LeaseOutcome::Done => self.counts.extends += 1,
                    LeaseOutcome::Expired => self.counts.expired += 1,
                    LeaseOutcome::Unknown | LeaseOutcome::Failed(_) => {}
                }
                if !call.outcome.may_have_happened() {
                    return;
                }
                let done = call.outcome == LeaseOutcome::Done;
                match self.delivered(&call.queue, call.id, call.token, tokens) {
                    Some(delivered) => {
                        delivered.extends.push(Extended { event: number, span: seen, extension: call.extension, done })
                    }
                    None if done => self.index.unknown_token_uses.push(number),
                    None => {}
                }
            }
            Operation::Dropped(dropped) => {
                self.counts.dropped += 1;
                let (queue, id, token) = (&dropped.queue, dropped.id, dropped.token);
                if let Some(delivered) = self.delivered(queue, id, token, tokens) {
                    let since = delivered.dropped.map_or(seen.start, |at| at.min(seen.start));
                    delivered.dropped = Some(since);
                }
            }
            _ => {}
        }
    }

    fn add_settle(&mut self, number: usize, seen: Span, call: &'a SettleCall, tokens: &Tokens) {
        let settled = Settled { event: number, span: seen, queue: self.queue(&call.queue), call };
        match (&call.outcome, &call.disposition) {
            (LeaseOutcome::Expired, _) => self.counts.expired += 1,
            (LeaseOutcome::Done, Disposition::Ack) => self.counts.acks += 1,
            (LeaseOutcome::Unknown, Disposition::Ack) => self.counts.unknown_acks += 1,
            (LeaseOutcome::Done, Disposition::Nack(Nack::Retry { .. })) => self.counts.retries += 1,
            (LeaseOutcome::Done, Disposition::Nack(Nack::Release)) => self.counts.releases += 1,
            _ => {}
        }
        if !call.outcome.may_have_happened() {
            return;
        }
        let is_retry = matches!(call.disposition, Disposition::Nack(Nack::Retry { .. }));
        let is_copied = settled.is_dead_letter() || (is_retry && self.index.options.retries_are_copies);
        let (done, unknown_move) = (settled.is_done(), !settled.is_done() && is_copied);
        if unknown_move && is_retry {
            let arrival = Arrival { event: number, span: seen, delay: Duration::ZERO };
            self.stay(call.id, settled.queue).arrivals.push(arrival);
        }
        let message = self.message(call.id);
        message.unknown_moves += u32::from(unknown_move);
        message.settles.push(settled);
        let position = message.settles.len() - 1;
        match self.delivered(&call.queue, call.id, call.token, tokens) {
            Some(delivered) => delivered.settles.push(position),
            None if done => self.index.unknown_token_uses.push(number),
            None => {}
        }
    }

    /// The delivery of a token, if it was of this message and queue.
    fn delivered(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        token: LeaseToken,
        tokens: &Tokens,
    ) -> Option<&mut Delivered<'a>> {
        let (position, _) = tokens.get(&token)?;
        let queue = self.queue(queue);
        let message = &mut self.index.messages[position.message];
        let stay = &mut message.stays[position.stay];
        if message.id != id || stay.queue != queue {
            return None;
        }
        Some(&mut stay.deliveries[position.delivery])
    }

    fn finish(&mut self) {
        for message in &mut self.index.messages {
            let sends = message.possible_sends().count();
            self.counts.messages += u64::from(sends > 0);
            message.copies = sends.max(1) + message.unknown_moves as usize;
            if self.index.options.leases == LeaseScope::Connections {
                // A message dead-lettered on reading was copied by a receive that does not report it.
                message.copies += message.dead.iter().filter(|dead| dead.is_unread()).count();
                if message.came_back() {
                    // The store lost the ack, or had copied the message before: the deliveries count as copies.
                    let deliveries: usize = message.stays.iter().map(|stay| stay.deliveries.len()).sum();
                    message.copies = message.copies.max(deliveries);
                }
            }
            for stay in &mut message.stays {
                // Copies made by the use of a lease were added last.
                stay.arrivals.sort_by_key(|arrival| arrival.span.start);
                for delivered in &mut stay.deliveries {
                    delivered.extends.sort_by_key(|extend| extend.span.start);
                    delivered.lease = lease::bounds(delivered, &message.settles, self.index.options);
                }
            }
        }
    }
}
