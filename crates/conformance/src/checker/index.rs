//! The history by queue and by message, on which every rule is checked.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use postrider_core::{DeadLetterReason, Disposition, MessageId, Nack, QueueName, Timestamp};

use super::CheckOptions;
use super::lease::LeaseBounds;
use super::span::{Arrival, Redrives, Removals, Span, UnknownRedrives};
use crate::history::{BodyHash, DeadRecord, Delivery, Event, LeaseOutcome, Operation, Outcome, SendCall, SettleCall};

/// The whole history, by queue and by message.
#[derive(Debug)]
pub(super) struct Index<'a> {
    pub(super) events: &'a [Event],
    pub(super) options: &'a CheckOptions,
    pub(super) start: Timestamp,
    pub(super) queues: Vec<QueueLog>,
    pub(super) messages: Vec<MessageLog<'a>>,
    pub(super) by_id: HashMap<MessageId, usize>,
    /// Uses of tokens that no delivery had, by their position in the history.
    pub(super) unknown_token_uses: Vec<usize>,
    /// Deliveries with the token of an earlier delivery: both receives, and the message of the later one.
    pub(super) repeated_tokens: Vec<(usize, usize, MessageId)>,
}

/// One queue. Dead letters have a log of their own.
#[derive(Debug)]
pub(super) struct QueueLog {
    pub(super) name: QueueName,
    /// The queue whose dead letters this queue holds; a user's queue is its own origin.
    pub(super) origin: usize,
    pub(super) holds_dead_letters: bool,
    /// Receives without an answer, which may have leased messages.
    pub(super) unknown_receives: u64,
    /// The smallest delivery limit of its receives.
    pub(super) least_limit: Option<u32>,
    /// Purges and deletions that may have removed waiting messages.
    pub(super) removals: Removals,
    /// Until when its dead letters may have been purged in bulk.
    pub(super) dead_purged_until: Option<Timestamp>,
    /// Bulk redrives from or to this queue with an unknown outcome: each may have included any message.
    pub(super) unknown_redrives: UnknownRedrives,
    /// Bulk redrives to this queue with an unknown outcome.
    pub(super) unknown_redrives_into: UnknownRedrives,
    pub(super) has_final: bool,
}

impl QueueLog {
    pub(super) fn new(name: QueueName, origin: usize) -> Self {
        Self {
            holds_dead_letters: name.holds_dead_letters(),
            name,
            origin,
            unknown_receives: 0,
            least_limit: None,
            removals: Removals::default(),
            dead_purged_until: None,
            unknown_redrives: UnknownRedrives::default(),
            unknown_redrives_into: UnknownRedrives::default(),
            has_final: false,
        }
    }
}

/// One message, by its id, over all queues.
#[derive(Debug)]
pub(super) struct MessageLog<'a> {
    pub(super) id: MessageId,
    /// Every send of it, including failed ones.
    pub(super) sends: Vec<Sent<'a>>,
    /// By when some send had been answered with its id.
    pub(super) certain_by: Option<Timestamp>,
    pub(super) stays: Vec<Stay<'a>>,
    /// Every settle of it that may have taken effect.
    pub(super) settles: Vec<Settled<'a>>,
    /// Its possible redrives.
    pub(super) redrives: Redrives,
    /// Moves to or from the dead letters, and retries by copy, with an unknown outcome. A store that copies and then
    /// deletes may have stopped between the two, so each can leave one copy more.
    pub(super) unknown_moves: u32,
    pub(super) edited: Vec<BodyHash>,
    /// Until when it may have been purged from the dead letters by its id.
    pub(super) dead_purged_until: Option<Timestamp>,
    pub(super) dead: Vec<FinalDeadLetter<'a>>,
    /// The queues that held it at the end.
    pub(super) live: Vec<usize>,
    /// Upper bound of its copies.
    pub(super) copies: usize,
}

impl<'a> MessageLog<'a> {
    pub(super) fn new(id: MessageId) -> Self {
        Self {
            id,
            sends: Vec::new(),
            certain_by: None,
            stays: Vec::new(),
            settles: Vec::new(),
            redrives: Redrives::default(),
            unknown_moves: 0,
            edited: Vec::new(),
            dead_purged_until: None,
            dead: Vec::new(),
            live: Vec::new(),
            copies: 0,
        }
    }

    /// Whether it was delivered after an ack.
    pub(super) fn came_back(&self) -> bool {
        let acks = self.settles.iter().filter(|settled| settled.is_ack() && settled.is_done());
        let Some(first) = acks.min_by_key(|ack| ack.span.end) else { return false };
        self.stays.iter().flat_map(|stay| &stay.deliveries).any(|delivered| first.span.is_before(delivered.span))
    }

    /// The sends that may have made a message.
    pub(super) fn possible_sends(&self) -> impl Iterator<Item = &Sent<'a>> {
        self.sends.iter().filter(|sent| sent.may_exist())
    }

    pub(super) fn stay(&self, queue: usize) -> Option<&Stay<'a>> {
        self.stays.iter().find(|stay| stay.queue == queue)
    }

    /// Its ordering key; `None` also when its sends disagree.
    pub(super) fn ordering_key(&self) -> Option<&'a str> {
        let mut keys = self.possible_sends().map(|sent| sent.call.ordering_key.as_deref());
        let first = keys.next()??;
        keys.all(|key| key == Some(first)).then_some(first)
    }

    /// The earliest time at which it can have existed.
    pub(super) fn first_arrival(&self) -> Option<Timestamp> {
        self.possible_sends().map(|sent| sent.span.start).min()
    }
}

/// One send.
#[derive(Debug)]
pub(super) struct Sent<'a> {
    pub(super) event: usize,
    pub(super) span: Span,
    pub(super) queue: usize,
    pub(super) call: &'a SendCall,
}

impl Sent<'_> {
    /// Whether it may have made a message: not when it was answered with another id.
    pub(super) fn may_exist(&self) -> bool {
        match &self.call.outcome {
            Outcome::Done(answered) => *answered == self.call.id,
            Outcome::Unknown => true,
            Outcome::Failed(_) => false,
        }
    }
}

/// One settle that may have taken effect.
#[derive(Debug)]
pub(super) struct Settled<'a> {
    pub(super) event: usize,
    /// As the caller saw it, also when the outcome is unknown.
    pub(super) span: Span,
    pub(super) queue: usize,
    pub(super) call: &'a SettleCall,
}

impl Settled<'_> {
    pub(super) fn is_done(&self) -> bool {
        self.call.outcome == LeaseOutcome::Done
    }

    pub(super) fn is_ack(&self) -> bool {
        self.call.disposition == Disposition::Ack
    }

    pub(super) fn is_dead_letter(&self) -> bool {
        matches!(self.call.disposition, Disposition::Nack(Nack::DeadLetter { .. }))
    }

    pub(super) fn is_release(&self) -> bool {
        self.call.disposition == Disposition::Nack(Nack::Release)
    }

    /// The delay of a retry.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match &self.call.disposition {
            Disposition::Nack(Nack::Retry { after, .. }) => Some(*after),
            _ => None,
        }
    }

    /// Whether it takes the message out of its queue.
    pub(super) fn ends_stay(&self) -> bool {
        self.is_ack() || self.is_dead_letter()
    }
}

/// One entry among the dead letters at the end.
#[derive(Debug)]
pub(super) struct FinalDeadLetter<'a> {
    pub(super) event: usize,
    pub(super) record: &'a DeadRecord,
}

impl FinalDeadLetter<'_> {
    /// Whether the store dead-lettered it on reading.
    pub(super) fn is_unread(&self) -> bool {
        [DeadLetterReason::MAX_RECEIVE_COUNT, DeadLetterReason::EXPIRED].contains(&self.record.reason)
    }
}

/// The stay of one message in one queue.
#[derive(Debug)]
pub(super) struct Stay<'a> {
    pub(super) queue: usize,
    /// Its possible arrivals, by their start. Empty for dead letters: the store itself may have moved it there.
    pub(super) arrivals: Vec<Arrival>,
    /// By the end of the receive.
    pub(super) deliveries: Vec<Delivered<'a>>,
}

impl Stay<'_> {
    /// The earliest time at which it can have been here.
    pub(super) fn first_arrival(&self) -> Option<Timestamp> {
        self.arrivals.first().map(|arrival| arrival.span.start)
    }
}

/// One delivery.
#[derive(Debug)]
pub(super) struct Delivered<'a> {
    pub(super) event: usize,
    /// When it was leased. A receive that waited cannot have leased it before it existed.
    pub(super) span: Span,
    pub(super) visibility: Duration,
    pub(super) limit: u32,
    pub(super) delivery: &'a Delivery,
    /// Positions in the message's list of settles.
    pub(super) settles: Vec<usize>,
    pub(super) extends: Vec<Extended>,
    pub(super) dropped: Option<Timestamp>,
    pub(super) lease: LeaseBounds,
}

/// One extension of a lease that may have taken effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extended {
    pub(super) event: usize,
    pub(super) span: Span,
    pub(super) extension: Duration,
    pub(super) done: bool,
}

/// Groups values by key in the order of their arrival, so that a verdict is deterministic.
pub(super) fn group<K: Hash + Eq + Copy, V>(pairs: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut positions = HashMap::new();
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        let position = *positions.entry(key).or_insert_with(|| {
            groups.push((key, Vec::new()));
            groups.len() - 1
        });
        groups[position].1.push(value);
    }
    groups
}

impl Index<'_> {
    pub(super) fn queue(&self, queue: usize) -> &QueueLog {
        &self.queues[queue]
    }

    /// A time as text, counted from the start of the history.
    pub(super) fn time(&self, time: Timestamp) -> String {
        let micros = time.as_micros().saturating_sub(self.start.as_micros());
        format!("{}.{:06} s", micros / 1_000_000, (micros % 1_000_000).abs())
    }

    /// An event as text: the call, its worker, its times and its number.
    pub(super) fn cite(&self, event: usize) -> String {
        let Event { worker, start, end, operation } = &self.events[event];
        let what = match operation {
            Operation::Send(_) => "send",
            Operation::Receive(_) => "receive",
            Operation::Settle(settle) => settle.disposition.operation(),
            Operation::Extend(_) => "extend",
            Operation::Dropped(_) => "drop",
            Operation::Redrive(_) => "redrive",
            Operation::Purge(_) => "purge",
            Operation::Edit(_) => "edit",
            Operation::Delete(_) => "deletion",
            Operation::Final(_) => "final state",
        };
        let (start, end) = (self.time(*start), self.time(*end));
        format!("the {what} by worker {worker} at {start} to {end} (event {})", event + 1)
    }
}
