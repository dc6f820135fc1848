//! Sorts a history by message.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use postrider_core::{Disposition, LeaseToken, MessageId, Nack, QueueName, Timestamp};

use super::index::{Dead, Delivered, Extended, Index, MessageLog, QueueLog, Sent, Settled, Stay};
use super::lease::{self, LeaseBounds};
use super::spans::{Birth, Span};
use super::{CheckOptions, Counts, LeasesOf};
use crate::history::{
    Event, FinalState, LeaseOutcome, Operation, Outcome, PurgeCall, Purged, ReceiveCall, RedriveCall, Selection,
    SendCall, SettleCall,
};

/// The history by queue and by message, and how much was done in it.
pub(super) fn build<'a>(events: &'a [Event], options: &'a CheckOptions) -> (Index<'a>, Counts) {
    let mut builder = Builder {
        index: Index {
            events,
            options,
            start: events.iter().map(|event| event.start).min().unwrap_or_default(),
            queues: Vec::new(),
            messages: Vec::new(),
            by_id: HashMap::new(),
            strays: Vec::new(),
            repeated_tokens: Vec::new(),
        },
        queue_numbers: HashMap::new(),
        counts: Counts { events: events.len() as u64, ..Counts::default() },
    };
    for (number, event) in events.iter().enumerate() {
        builder.take_in(number, event);
    }
    builder.seal_births();
    let tokens = builder.sort_deliveries();
    for (number, event) in events.iter().enumerate() {
        builder.take_in_lease_use(number, event, &tokens);
    }
    builder.seal();
    (builder.index, builder.counts)
}

/// Which delivery handed out a token, and in which event.
type Tokens = HashMap<LeaseToken, (Place, usize)>;

/// Where a delivery stands in the index.
#[derive(Debug, Clone, Copy)]
struct Place {
    message: usize,
    stay: usize,
    delivery: usize,
}

struct Builder<'a> {
    index: Index<'a>,
    queue_numbers: HashMap<QueueName, usize>,
    counts: Counts,
}

/// The call as its caller saw it, with room for a clock that differs from others'.
fn seen(event: &Event, options: &CheckOptions) -> Span {
    let skew = options.clock_skew;
    Span { start: event.start.saturating_sub(skew), end: event.end.saturating_add(skew) }
}

/// When it took effect: without an answer it may be any time after the start.
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
        let place = *self.index.by_id.entry(id).or_insert_with(|| {
            messages.push(MessageLog::new(id));
            messages.len() - 1
        });
        &mut messages[place]
    }

    fn stay(&mut self, id: MessageId, queue: usize) -> &mut Stay<'a> {
        let stays = &mut self.message(id).stays;
        let place = stays.iter().position(|stay| stay.queue == queue).unwrap_or_else(|| {
            stays.push(Stay { queue, births: Vec::new(), deliveries: Vec::new() });
            stays.len() - 1
        });
        &mut stays[place]
    }

    /// Everything but the uses of leases, whose deliveries may stand later in the history.
    fn take_in(&mut self, number: usize, event: &'a Event) {
        let seen = seen(event, self.index.options);
        match &event.operation {
            Operation::Send(call) => self.take_in_send(number, seen, call),
            Operation::Receive(call) => self.take_in_receive(number, seen, call),
            Operation::Redrive(call) => self.take_in_redrive(number, seen, call),
            Operation::Purge(call) => self.take_in_purge(seen, call),
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
            Operation::Final(state) => self.take_in_final(number, state),
            Operation::Delete(_) | Operation::Edit(_) => {}
            Operation::Settle(_) | Operation::Extend(_) | Operation::Dropped(_) => {}
        }
    }

    fn take_in_send(&mut self, number: usize, seen: Span, call: &'a SendCall) {
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
            let birth = Birth { event: number, span, delay: call.delay };
            self.stay(call.id, queue).births.push(birth);
        }
        self.message(call.id).sends.push(sent);
    }

    fn take_in_receive(&mut self, number: usize, seen: Span, call: &'a ReceiveCall) {
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

    fn take_in_redrive(&mut self, number: usize, seen: Span, call: &'a RedriveCall) {
        let from = self.origin(&call.queue);
        let into = call.to.as_ref().map_or(from, |to| self.queue(to));
        let (ids, unknown) = match (&call.outcome, &call.selection) {
            (Outcome::Failed(_), _) => return,
            (Outcome::Done(ids), _) => (ids, 0),
            (Outcome::Unknown, Selection::Ids(ids)) => (ids, 1),
            (Outcome::Unknown, Selection::All | Selection::Reason(_)) => {
                self.index.queues[from].loose_redrives.add(seen.start, number);
                if into != from {
                    self.index.queues[into].loose_redrives.add(seen.start, number);
                }
                self.index.queues[into].loose_redrives_into.add(seen.start, number);
                return;
            }
        };
        if unknown == 0 {
            self.counts.redriven += ids.len() as u64;
        }
        let span = effect(seen, &call.outcome);
        for id in ids {
            let birth = Birth { event: number, span, delay: Duration::ZERO };
            self.stay(*id, into).births.push(birth);
            let message = self.message(*id);
            message.redrives.add(span);
            message.unknown_moves += unknown;
        }
    }

    fn take_in_purge(&mut self, seen: Span, call: &'a PurgeCall) {
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

    fn take_in_final(&mut self, number: usize, state: &'a FinalState) {
        let queue = self.origin(&state.queue);
        self.index.queues[queue].has_final = true;
        self.counts.final_queues += 1;
        self.counts.dead += state.dead_letters.len() as u64;
        for record in &state.dead_letters {
            self.message(record.id).dead.push(Dead { event: number, record });
        }
        for id in state.live.iter().flatten() {
            self.counts.live += 1;
            self.message(*id).live.push(queue);
        }
    }

    /// Bulk redrives without an answer may have been the birth of every message that is known in their queue.
    fn seal_births(&mut self) {
        for message in &mut self.index.messages {
            for stay in &mut message.stays {
                let queue = &self.index.queues[stay.queue];
                let loose = self.index.queues[queue.origin].loose_redrives;
                if let Some(redrive) = loose.first() {
                    message.redrives.add(redrive.span);
                    message.unknown_moves += loose.count;
                }
                stay.births.extend(queue.loose_redrives_into.first());
                stay.births.sort_by_key(|birth| birth.span.start);
            }
            message.redrives.seal();
        }
        for queue in &mut self.index.queues {
            queue.removals.seal();
        }
    }

    fn sort_deliveries(&mut self) -> Tokens {
        let mut tokens = Tokens::with_capacity(self.index.by_id.len());
        for (m, message) in self.index.messages.iter_mut().enumerate() {
            for (s, stay) in message.stays.iter_mut().enumerate() {
                let birth = stay.first_birth();
                for delivered in &mut stay.deliveries {
                    if let Some(birth) = birth.filter(|birth| *birth <= delivered.span.end) {
                        delivered.span.start = delivered.span.start.max(birth);
                    }
                }
                stay.deliveries.sort_by_key(|delivered| (delivered.span.end, delivered.event));
                for (d, delivered) in stay.deliveries.iter().enumerate() {
                    match tokens.entry(delivered.delivery.token) {
                        Entry::Vacant(entry) => {
                            let place = Place { message: m, stay: s, delivery: d };
                            entry.insert((place, delivered.event));
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

    fn take_in_lease_use(&mut self, number: usize, event: &'a Event, tokens: &Tokens) {
        let seen = seen(event, self.index.options);
        match &event.operation {
            Operation::Settle(call) => self.take_in_settle(number, seen, call, tokens),
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
                    None if done => self.index.strays.push(number),
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

    fn take_in_settle(&mut self, number: usize, seen: Span, call: &'a SettleCall, tokens: &Tokens) {
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
            let birth = Birth { event: number, span: seen, delay: Duration::ZERO };
            self.stay(call.id, settled.queue).births.push(birth);
        }
        let message = self.message(call.id);
        message.unknown_moves += u32::from(unknown_move);
        message.settles.push(settled);
        let place = message.settles.len() - 1;
        match self.delivered(&call.queue, call.id, call.token, tokens) {
            Some(delivered) => delivered.settles.push(place),
            None if done => self.index.strays.push(number),
            None => {}
        }
    }

    /// The delivery that handed out a token, if it was of this message and queue.
    fn delivered(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        token: LeaseToken,
        tokens: &Tokens,
    ) -> Option<&mut Delivered<'a>> {
        let (place, _) = tokens.get(&token)?;
        let queue = self.queue(queue);
        let message = &mut self.index.messages[place.message];
        let stay = &mut message.stays[place.stay];
        if message.id != id || stay.queue != queue {
            return None;
        }
        Some(&mut stay.deliveries[place.delivery])
    }

    fn seal(&mut self) {
        for message in &mut self.index.messages {
            let sends = message.possible_sends().count();
            self.counts.messages += u64::from(sends > 0);
            message.copies = sends.max(1) + message.unknown_moves as usize;
            if self.index.options.leases == LeasesOf::Connections {
                // Those who died unread were copied by a receive, which says nothing of it.
                message.copies += message.dead.iter().filter(|dead| dead.is_unread()).count();
                if message.came_back() {
                    // The store forgot that it was acknowledged, or had copied it before: it is counted.
                    let deliveries: usize = message.stays.iter().map(|stay| stay.deliveries.len()).sum();
                    message.copies = message.copies.max(deliveries);
                }
            }
            for stay in &mut message.stays {
                // Copies that were made by the use of a lease came last.
                stay.births.sort_by_key(|birth| birth.span.start);
                for delivered in &mut stay.deliveries {
                    delivered.extends.sort_by_key(|extend| extend.span.start);
                    delivered.lease = lease::bounds(delivered, &message.settles, self.index.options);
                }
            }
        }
    }
}
