//! A message that this process has leased.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{
    Disposition, Lease, LeaseToken, MessagingError, Moment, QueueName, QueuedMessage, ReceiptHandle, Settlement,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::control::Control;
use crate::counters::Outcome;
use crate::delivery::Letter;
use crate::observer::Ended;

/// Where a leased message is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// In line for a worker.
    Waiting,
    /// With a worker.
    Running(Running),
    /// Its lease is over; the handler has been told and has not ended yet.
    Lost(Running),
    /// Decided, and waiting to be settled.
    Decided(Decision),
    /// A settle is under way; only its answer says what becomes of the message.
    Settling(Decision),
}

/// How to reach the worker that has a message, and its handler.
#[derive(Debug)]
pub(crate) struct Running {
    /// Wakes the worker.
    pub(crate) worker: Arc<Notify>,
    /// Reaches the handler.
    pub(crate) control: Control,
}

/// Where to tell what became of a settlement.
pub(crate) type Answer = oneshot::Sender<Result<(), MessagingError>>;

/// How a lease shall end.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) disposition: Disposition,
    pub(crate) since: Instant,
    /// How often the store could not carry it out.
    pub(crate) failures: u32,
    /// Whether it was tried before and no answer came.
    pub(crate) is_repeated: bool,
    /// Who waits for the settlement.
    pub(crate) waiting: Option<Answer>,
}

/// A leased message. Dropped, it goes back to its queue with the delivery counted, as every lease does.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) message: Lease,
    /// `None` while a worker has it: moved and not copied, because it is large.
    pub(crate) letter: Option<Box<Letter>>,
    /// Whether the store orders it by a key.
    pub(crate) is_keyed: bool,
    receive_count: u32,
    attempt: u32,
    pub(crate) phase: Phase,
    pub(crate) lease: LeaseTimes,
    /// What `max_per_key` counts it under.
    pub(crate) group: Option<String>,
}

impl Held {
    pub(crate) fn new(message: QueuedMessage, lease: LeaseTimes, group: Option<String>) -> Box<Self> {
        let (body, envelope, message) = message.into_leased_parts();
        let is_keyed = envelope.ordering_key.is_some();
        let (receive_count, attempt) = (envelope.receive_count, envelope.attempts_count.saturating_add(1));
        Box::new(Self {
            message,
            letter: Some(Box::new(Letter { body, envelope })),
            is_keyed,
            receive_count,
            attempt,
            phase: Phase::Waiting,
            lease,
            group,
        })
    }

    pub(crate) fn queue(&self) -> &QueueName {
        self.message.receipt().queue()
    }

    /// What an observer is told of it.
    pub(crate) fn ended(&self, outcome: Outcome, disposition: Option<Disposition>) -> Ended {
        let receipt = self.message.receipt();
        Ended {
            id: receipt.message_id(),
            queue: receipt.queue().clone(),
            receive_count: self.receive_count,
            attempt: self.attempt,
            outcome,
            disposition,
            received: self.lease.received,
        }
    }

    pub(crate) fn settlement(&self, disposition: &Disposition) -> Settlement {
        Settlement::new(self.receipt(), disposition.clone())
    }

    pub(crate) fn receipt(&self) -> ReceiptHandle {
        self.message.receipt().clone()
    }

    /// Forgets the lease without giving the message back: it has been settled, or is somebody else's.
    pub(crate) fn disarm(self: Box<Self>) {
        self.message.into_receipt();
    }
}

/// When a lease began and ends, by this process's clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTimes {
    /// When the message was received.
    pub(crate) received: Instant,
    /// When to renew it, or to try again.
    pub(crate) renew_at: Instant,
    /// When the store was asked for it.
    pub(crate) asked: Moment,
    /// Until when it surely lasts, counted from then.
    pub(crate) visibility: Duration,
    /// From then on it is surely over: counted from after the store has answered.
    pub(crate) over_at: Instant,
}

impl LeaseTimes {
    pub(crate) fn granted(asked: Moment, answered: Instant, visibility: Duration, resolution: Duration) -> Self {
        let renew_at = asked.instant();
        let mut times = Self { received: answered, renew_at, asked, visibility, over_at: answered };
        times.renewed(asked, answered, visibility, resolution);
        times
    }

    pub(crate) fn renewed(&mut self, asked: Moment, answered: Instant, visibility: Duration, resolution: Duration) {
        self.renew_at = later(asked.instant(), visibility / 3);
        (self.asked, self.visibility) = (asked, visibility);
        self.over_at = later(answered, visibility.saturating_add(resolution));
    }

    /// Whether it surely lasts.
    pub(crate) fn is_alive(&self) -> bool {
        self.asked.elapsed() < self.visibility
    }
}

/// A hundred years: tokio's clock cannot go for ever, and a lease may.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) fn later(instant: Instant, by: Duration) -> Instant {
    instant + by.min(FAR)
}

/// Leased messages by their lease. Boxed, because they are large and change hands often.
pub(crate) type HeldByToken = HashMap<LeaseToken, Box<Held>, BuildHasherDefault<TokenHasher>>;

/// Lease tokens are the providers' own, and no sender can choose them to collide: a multiplication mixes them enough.
#[derive(Debug, Default)]
pub(crate) struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u128(u128::from(*byte));
        }
    }

    fn write_u128(&mut self, token: u128) {
        let folded = self.0 ^ (token as u64) ^ ((token >> 64) as u64);
        let product = u128::from(folded) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}
