//! Every message that this process has leased, and its phase. Nothing here waits or calls the store.
//!
//! One mutex guards all of it, because each step moves a message from one phase to the next (leased, running, decided,
//! settled) and the number of leases, which a crash would charge, must always be right. It is held for a few map
//! operations and never across an await.

mod waiting;

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use postrider_core::{Disposition, Envelope, LeaseToken, MessageId, Nack, QueueName, QueuedMessage};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::control::Control;
use crate::counters::{Outcome, Tally};
use crate::delivery::Letter;
use crate::held::{Answer, Decision, Held, HeldByToken, LeaseTimes, Phase};
use crate::observer::{Ended, EndedMessages};
use crate::options::Plan;

/// The state of the fetch loop, and the conditions of the next fetch.
#[derive(Debug)]
pub(crate) struct FetchState {
    /// There may be something to fetch.
    pub(crate) is_wanted: bool,
    /// A fetch is under way.
    pub(crate) is_calling: bool,
    /// The earliest time of the next fetch.
    pub(crate) not_before: Instant,
    /// The last batch had redelivered messages that could not start: fetch no more messages than can start.
    pub(crate) only_what_can_start: bool,
}

/// The function that returns the key that `max_per_key` limits.
pub(crate) type KeyOf = Arc<dyn Fn(&Envelope) -> Option<String> + Send + Sync>;

/// A limit on the handlers of one key.
#[derive(Clone)]
pub(crate) struct PerKey {
    pub(crate) max: usize,
    pub(crate) key_of: KeyOf,
}

impl PerKey {
    /// The key of a message; `None` if the user's function panics, which must not end the calling loop.
    pub(crate) fn of(&self, envelope: &Envelope) -> Option<String> {
        std::panic::catch_unwind(AssertUnwindSafe(|| (self.key_of)(envelope))).unwrap_or_else(|_| {
            tracing::error!(queue = %envelope.queue, id = %envelope.id, "key_of panicked; the message has no limit");
            None
        })
    }
}

/// A message that was acknowledged before its handler began.
#[derive(Debug)]
pub(crate) struct Unleased {
    pub(crate) queue: QueueName,
    pub(crate) worker: Arc<Notify>,
    pub(crate) control: Control,
    id: MessageId,
    receive_count: u32,
    attempt: u32,
    received: Instant,
}

impl Unleased {
    /// The message for an observer.
    pub(crate) fn ended(self, outcome: Outcome) -> Ended {
        let Self { queue, id, receive_count, attempt, received, .. } = self;
        Ended { id, queue, receive_count, attempt, outcome, disposition: Some(Disposition::Ack), received }
    }
}

/// All leased messages.
pub(crate) struct Buffer {
    pub(crate) plan: Arc<Plan>,
    /// Upper bound of handlers of one key.
    max_per_key: Option<usize>,
    pub(crate) held: HeldByToken,
    /// Running messages that were acknowledged before their handler began.
    pub(crate) unleased: HashMap<LeaseToken, Unleased>,
    /// Waiting messages: redeliveries go before first deliveries, so that they wait for no other message.
    redeliveries: VecDeque<LeaseToken>,
    first_deliveries: VecDeque<LeaseToken>,
    /// Number of waiting messages. The queues may also have tokens of messages that were lost since.
    pub(crate) waiting: usize,
    /// A worker was woken and has not checked the buffer yet. It wakes the next one when it has found a message, so
    /// that no more workers are woken than needed: waking costs more than a short handler.
    is_worker_waking: bool,
    /// Whether to wake a worker after the mutex is released.
    pub(crate) wakes_worker: bool,
    /// Handlers ended without waiting when a worker last reported.
    pub(crate) is_quick: bool,
    /// Number of workers that run a handler.
    pub(crate) busy: usize,
    /// Number of running handlers by key.
    groups: HashMap<String, usize>,
    /// Decided messages to settle, in this order.
    pub(crate) outbox: VecDeque<LeaseToken>,
    /// Decided messages that the store could not settle although it answered, each with the time of its next try.
    pub(crate) deferred: Vec<(Instant, LeaseToken)>,
    /// Messages whose settlement the store refused. Dropped after the mutex is released, because a drop calls the
    /// provider.
    pub(crate) refused: Vec<Held>,
    /// Number of consecutive settle calls that failed as a whole.
    pub(crate) settle_failures: u32,
    /// The earliest time of the next settle after such a failure.
    pub(crate) settle_not_before: Instant,
    /// Something in the outbox must not wait for a fetch.
    pub(crate) is_urgent: bool,
    /// When the flush loop checks the outbox again; `None` while it waits for a notification.
    pub(crate) flushes_at: Option<Instant>,
    /// Number of settlements that are under way.
    pub(crate) settling: usize,
    pub(crate) fetch: FetchState,
    /// No further handler starts.
    pub(crate) is_stopping: bool,
    /// When the lease loop checks the leases again; `None` while it waits for a lease.
    pub(crate) looks_at_leases: Option<Instant>,
    /// A lease was added that must be renewed before that.
    pub(crate) has_earlier_lease: bool,
    /// Messages that have ended, for the observer and the log.
    pub(crate) ended: EndedMessages,
}

/// A message that a worker has taken.
#[derive(Debug)]
pub(crate) struct Assignment {
    pub(crate) token: LeaseToken,
    pub(crate) letter: Box<Letter>,
    pub(crate) control: Control,
    pub(crate) received: Instant,
    pub(crate) group: Option<String>,
}

impl Buffer {
    pub(crate) fn new(plan: Arc<Plan>, max_per_key: Option<usize>, now: Instant) -> Self {
        let fetch = FetchState { is_wanted: true, is_calling: false, not_before: now, only_what_can_start: false };
        Self {
            plan,
            max_per_key,
            held: HeldByToken::default(),
            unleased: HashMap::new(),
            redeliveries: VecDeque::new(),
            first_deliveries: VecDeque::new(),
            waiting: 0,
            is_worker_waking: false,
            wakes_worker: false,
            is_quick: false,
            busy: 0,
            groups: HashMap::new(),
            outbox: VecDeque::new(),
            deferred: Vec::new(),
            refused: Vec::new(),
            settle_failures: 0,
            settle_not_before: now,
            is_urgent: false,
            flushes_at: None,
            settling: 0,
            fetch,
            is_stopping: false,
            looks_at_leases: None,
            has_earlier_lease: false,
            ended: EndedMessages::default(),
        }
    }

    /// Number of messages that could start now.
    pub(crate) fn startable(&self) -> usize {
        self.plan.workers.saturating_sub(self.busy).saturating_mul(self.plan.at_a_time)
    }

    /// Number of messages that a fetch may lease that also settles `settling` messages.
    pub(crate) fn fetchable(&self, settling: usize) -> usize {
        let leased = self.held.len().saturating_sub(settling);
        let mut max = self.plan.capacity.saturating_sub(leased).min(self.plan.fetch_batch_size);
        if self.fetch.only_what_can_start {
            max = max.min(self.startable().saturating_sub(self.waiting));
        }
        max
    }

    /// Adds fetched messages. A redelivery that cannot start at once is released uncounted: while it waits, a crash of
    /// another message would be charged to it, and its own crash to others.
    pub(crate) fn admit(
        &mut self,
        messages: Vec<QueuedMessage>,
        groups: Option<Vec<Option<String>>>,
        lease: LeaseTimes,
        tally: &mut Tally,
    ) {
        let mut groups = groups.into_iter().flatten();
        let mut has_redeliveries = false;
        let mut has_refused = false;
        let is_earlier = self.looks_at_leases.is_none_or(|at| lease.renew_at < at);
        self.has_earlier_lease |= is_earlier && !messages.is_empty();
        for message in messages {
            let token = message.receipt().token();
            let is_redelivery = message.receive_count() > 1;
            has_redeliveries |= is_redelivery;
            tally.add(&message.envelope.queue, Outcome::Received);
            let group = groups.next().flatten();
            self.held.insert(token, Held::new(message, lease, group));
            let has_no_worker = is_redelivery && self.redeliveries.len() >= self.startable();
            if self.is_stopping || has_no_worker {
                has_refused |= has_no_worker;
                self.release(token, lease.received);
                continue;
            }
            let waiting = if is_redelivery { &mut self.redeliveries } else { &mut self.first_deliveries };
            waiting.push_back(token);
            self.waiting += 1;
        }
        // Until a batch has no redeliveries: otherwise fetches and releases would alternate without a pause.
        self.fetch.only_what_can_start = has_refused || (self.fetch.only_what_can_start && has_redeliveries);
        self.wake_worker();
    }

    /// Releases a message that has not started, uncounted.
    pub(crate) fn release(&mut self, token: LeaseToken, now: Instant) {
        self.put_in_outbox(token, Disposition::Nack(Nack::Release), now, None);
        self.is_urgent = true;
    }

    /// Records that a message is settled and its handler runs without a lease.
    pub(crate) fn run_unleased(&mut self, assignment: &Assignment, worker: &Arc<Notify>) {
        let envelope = &assignment.letter.envelope;
        assignment.control.needs_no_lease();
        let unleased = Unleased {
            queue: envelope.queue.clone(),
            worker: worker.clone(),
            control: assignment.control.clone(),
            id: envelope.id,
            receive_count: envelope.receive_count,
            attempt: envelope.attempts_count.saturating_add(1),
            received: assignment.received,
        };
        self.unleased.insert(assignment.token, unleased);
    }

    pub(crate) fn unleased_count(&self) -> usize {
        self.unleased.len()
    }

    /// Whether nothing is left to settle and no call is under way that could add a message.
    pub(crate) fn is_clean(&self) -> bool {
        self.held.is_empty() && self.settling == 0 && !self.fetch.is_calling
    }

    /// Whether the result of the message's handler is still needed.
    pub(crate) fn is_handled(&self, token: LeaseToken) -> bool {
        self.held.contains_key(&token) || self.unleased.contains_key(&token)
    }

    /// Records that a handler has ended. Its outcome counts only while its lease is held.
    pub(crate) fn finish(
        &mut self,
        token: LeaseToken,
        disposition: Disposition,
        now: Instant,
        waiting: Option<Answer>,
    ) {
        // The handler may have sent a message, or unblocked a key.
        self.fetch.is_wanted |= self.plan.stop_when_empty;
        if !self.unleased.is_empty()
            && let Some(unleased) = self.unleased.remove(&token)
        {
            self.ended.add(Outcome::Acked, || unleased.ended(Outcome::Acked));
        }
        let Some(held) = self.held.get_mut(&token) else { return };
        match held.phase {
            Phase::Running(_) => {
                // Its settlement may unblock the next message of its key.
                self.fetch.is_wanted |= held.is_keyed;
                // An acknowledgement that a handler waits for does not wait for others.
                self.is_urgent |= waiting.is_some();
                held.phase =
                    Phase::Decided(Decision { disposition, since: now, failures: 0, is_repeated: false, waiting });
                self.outbox.push_back(token);
            }
            Phase::Lost(_) => {
                if let Some(held) = self.held.remove(&token) {
                    self.ended.add(Outcome::Lost, || held.ended(Outcome::Lost, None));
                    held.disarm();
                }
            }
            // These phases have no handler.
            Phase::Waiting | Phase::Decided(_) | Phase::Settling(_) => {}
        }
    }

    pub(crate) fn put_in_outbox(
        &mut self,
        token: LeaseToken,
        disposition: Disposition,
        since: Instant,
        waiting: Option<Answer>,
    ) {
        if let Some(held) = self.held.get_mut(&token) {
            held.phase = Phase::Decided(Decision { disposition, since, failures: 0, is_repeated: false, waiting });
            self.outbox.push_back(token);
        }
    }
}
