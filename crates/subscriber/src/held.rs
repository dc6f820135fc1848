//! A leased message of this process.

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

/// The phase of a leased message.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Waits for a worker.
    Waiting,
    /// A worker runs its handler.
    Running(Running),
    /// Its lease has ended; the handler was cancelled and still runs.
    Lost(Running),
    /// Decided, and waits to be settled.
    Decided(Decision),
    /// A settle is under way; only its answer decides the outcome.
    Settling(Decision),
}

/// The worker that runs a message, and its handler's control.
#[derive(Debug)]
pub(crate) struct Running {
    /// Wakes the worker.
    pub(crate) worker: Arc<Notify>,
    /// Cancels the handler.
    pub(crate) control: Control,
}

/// Sends the result of a settlement.
pub(crate) type Answer = oneshot::Sender<Result<(), MessagingError>>;

/// The decided end of a lease.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) disposition: Disposition,
    pub(crate) since: Instant,
    /// Number of failed settlements.
    pub(crate) failures: u32,
    /// Whether the answer to an earlier settlement was lost.
    pub(crate) is_repeated: bool,
    /// The receiver of the settlement's result.
    pub(crate) waiting: Option<Answer>,
}

/// A leased message. Dropping it returns it to its queue with the delivery counted, as for every lease.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) message: Lease,
    /// `None` while a worker has it. Moved and not copied, because it is large.
    pub(crate) letter: Option<Box<Letter>>,
    /// Whether it has an ordering key.
    pub(crate) is_keyed: bool,
    receive_count: u32,
    attempt: u32,
    pub(crate) phase: Phase,
    pub(crate) lease: LeaseTimes,
    /// Its key for `max_per_key`.
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

    /// The message for an observer.
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

    /// Drops the lease without returning the message: it is settled, or leased by another worker.
    pub(crate) fn disarm(self: Box<Self>) {
        self.message.into_receipt();
    }
}

/// Begin and end of a lease, by this process's clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTimes {
    /// When the message was received.
    pub(crate) received: Instant,
    /// When to renew it, or to retry.
    pub(crate) renew_at: Instant,
    /// When it was requested.
    pub(crate) requested: Moment,
    /// Its certain length from the request.
    pub(crate) visibility: Duration,
    /// Its latest end: its length from the store's answer.
    pub(crate) over_at: Instant,
}

impl LeaseTimes {
    pub(crate) fn granted(requested: Moment, answered: Instant, visibility: Duration, resolution: Duration) -> Self {
        let renew_at = requested.instant();
        let mut times = Self { received: answered, renew_at, requested, visibility, over_at: answered };
        times.renewed(requested, answered, visibility, resolution);
        times
    }

    pub(crate) fn renewed(&mut self, requested: Moment, answered: Instant, visibility: Duration, resolution: Duration) {
        self.renew_at = later(requested.instant(), visibility / 3);
        (self.requested, self.visibility) = (requested, visibility);
        self.over_at = later(answered, visibility.saturating_add(resolution));
    }

    /// Whether it certainly has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        self.requested.elapsed() < self.visibility
    }
}

/// A hundred years, as tokio's clock is bounded and a lease may not be.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) fn later(instant: Instant, by: Duration) -> Instant {
    instant + by.min(FAR)
}

/// Leased messages by lease token. Boxed, because they are large and are moved often.
pub(crate) type HeldByToken = HashMap<LeaseToken, Box<Held>, BuildHasherDefault<TokenHasher>>;

/// A hasher for lease tokens. Providers create them, so no sender can make them collide; a multiplication mixes enough.
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
