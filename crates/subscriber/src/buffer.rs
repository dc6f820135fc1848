//! Every message that this process has leased, and where it is. Nothing here waits or calls the store.
//!
//! One lock guards all of it, because each step moves a message from one place to the next (leased, running, decided,
//! settled) and the number of leases, which is what a crash would charge, must be right at every moment. It is held for
//! a few map operations and never across an await.

mod line;

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
use crate::observer::{Ended, ToTell};
use crate::options::Plan;

/// What the fetch loop is doing, and what the next fetch has to respect.
#[derive(Debug)]
pub(crate) struct FetchState {
    /// There may be something to fetch.
    pub(crate) is_wanted: bool,
    /// A fetch is under way.
    pub(crate) is_calling: bool,
    /// No fetch before then.
    pub(crate) not_before: Instant,
    /// The last batch held messages that were delivered before and could not start: fetch no more than can start.
    pub(crate) only_what_can_start: bool,
}

/// The key that `max_per_key` counts by.
pub(crate) type KeyOf = Arc<dyn Fn(&Envelope) -> Option<String> + Send + Sync>;

/// At most that many handlers of one key.
#[derive(Clone)]
pub(crate) struct PerKey {
    pub(crate) most: usize,
    pub(crate) key_of: KeyOf,
}

impl PerKey {
    /// The key of a message; none when the function that says so panics, which must not end the loop that asks.
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
    /// What an observer is told of it.
    pub(crate) fn ended(self, outcome: Outcome) -> Ended {
        let Self { queue, id, receive_count, attempt, received, .. } = self;
        Ended { id, queue, receive_count, attempt, outcome, disposition: Some(Disposition::Ack), received }
    }
}

/// Everything that is leased.
pub(crate) struct Buffer {
    pub(crate) plan: Arc<Plan>,
    /// At most that many handlers of one group.
    most_per_key: Option<usize>,
    pub(crate) held: HeldByToken,
    /// With a handler, but acknowledged before it began.
    pub(crate) unleased: HashMap<LeaseToken, Unleased>,
    /// In line for a worker: first those that were delivered before, so that they wait behind nobody.
    again: VecDeque<LeaseToken>,
    first: VecDeque<LeaseToken>,
    /// How many are in line. The lines may also have tokens of messages that have been lost since.
    pub(crate) waiting: usize,
    /// A worker has been woken and has not looked yet. It wakes the next when it has found something, so that a crowd
    /// is woken only as fast as it is needed: waking costs more than a short handler does.
    is_worker_on_its_way: bool,
    /// To be woken, once the lock is released.
    pub(crate) wakes_worker: bool,
    /// Handlers were done at once when a worker last handed in.
    pub(crate) is_quick: bool,
    /// Workers with a handler.
    pub(crate) busy: usize,
    /// Running handlers by key.
    groups: HashMap<String, usize>,
    /// Decided and to be settled, in that order.
    pub(crate) outbox: VecDeque<LeaseToken>,
    /// Decided, and by themselves not to be settled before then: the store could not, although it answered.
    pub(crate) deferred: Vec<(Instant, LeaseToken)>,
    /// The store will not settle these. To be dropped once the lock is released, because dropping calls the provider.
    pub(crate) refused: Vec<Held>,
    /// How many settles in a row have failed as a whole.
    pub(crate) settle_failures: u32,
    /// After such a failure: no settle before then.
    pub(crate) settle_not_before: Instant,
    /// Something in the outbox must not wait for a fetch.
    pub(crate) is_urgent: bool,
    /// When the flush loop looks at the outbox again; `None` when it waits to be told.
    pub(crate) flushes_at: Option<Instant>,
    /// How many settlements are under way.
    pub(crate) settling: usize,
    pub(crate) fetch: FetchState,
    /// Nothing new begins.
    pub(crate) is_stopping: bool,
    /// When the lease loop looks again; `None` when it waits for a lease.
    pub(crate) looks_at_leases: Option<Instant>,
    /// A lease came that is due before then.
    pub(crate) has_earlier_lease: bool,
    /// Messages that are done with.
    pub(crate) to_tell: ToTell,
}

/// A message on its way to a handler.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) token: LeaseToken,
    pub(crate) letter: Box<Letter>,
    pub(crate) control: Control,
    pub(crate) received: Instant,
    pub(crate) group: Option<String>,
}

impl Buffer {
    pub(crate) fn new(plan: Arc<Plan>, most_per_key: Option<usize>, now: Instant) -> Self {
        let fetch = FetchState { is_wanted: true, is_calling: false, not_before: now, only_what_can_start: false };
        Self {
            plan,
            most_per_key,
            held: HeldByToken::default(),
            unleased: HashMap::new(),
            again: VecDeque::new(),
            first: VecDeque::new(),
            waiting: 0,
            is_worker_on_its_way: false,
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
            to_tell: ToTell::default(),
        }
    }

    /// How many messages could begin now.
    pub(crate) fn startable(&self) -> usize {
        self.plan.workers.saturating_sub(self.busy).saturating_mul(self.plan.at_a_time)
    }

    /// How many messages a fetch may lease that settles `riding` on its way.
    pub(crate) fn room(&self, riding: usize) -> usize {
        let leased = self.held.len().saturating_sub(riding);
        let mut room = self.plan.capacity.saturating_sub(leased).min(self.plan.fetch_batch_size);
        if self.fetch.only_what_can_start {
            room = room.min(self.startable().saturating_sub(self.waiting));
        }
        room
    }

    /// Takes in what was fetched. What was delivered before and cannot begin at once is
    /// given back uncounted: in line it would be charged for somebody else's crash, and others for its own.
    pub(crate) fn admit(
        &mut self,
        messages: Vec<QueuedMessage>,
        groups: Option<Vec<Option<String>>>,
        lease: LeaseTimes,
        tally: &mut Tally,
    ) {
        let mut groups = groups.into_iter().flatten();
        let mut were_delivered_before = false;
        let mut were_refused = false;
        let is_earlier = self.looks_at_leases.is_none_or(|at| lease.renew_at < at);
        self.has_earlier_lease |= is_earlier && !messages.is_empty();
        for message in messages {
            let token = message.receipt().token();
            let is_again = message.receive_count() > 1;
            were_delivered_before |= is_again;
            tally.add(&message.envelope.queue, Outcome::Received);
            let group = groups.next().flatten();
            self.held.insert(token, Held::new(message, lease, group));
            let has_no_worker = is_again && self.again.len() >= self.startable();
            if self.is_stopping || has_no_worker {
                were_refused |= has_no_worker;
                self.release(token, lease.received);
                continue;
            }
            if is_again { &mut self.again } else { &mut self.first }.push_back(token);
            self.waiting += 1;
        }
        // Until a batch comes without any, or a fetch and a release would follow each other without a pause.
        self.fetch.only_what_can_start = were_refused || (self.fetch.only_what_can_start && were_delivered_before);
        self.wake_worker();
    }

    /// Gives back, uncounted, what has not begun.
    pub(crate) fn release(&mut self, token: LeaseToken, now: Instant) {
        self.put_in_outbox(token, Disposition::Nack(Nack::Release), now, None);
        self.is_urgent = true;
    }

    /// The message is settled and its handler goes on without a lease.
    pub(crate) fn run_unleased(&mut self, job: &Job, worker: &Arc<Notify>) {
        let envelope = &job.letter.envelope;
        job.control.needs_no_lease();
        let unleased = Unleased {
            queue: envelope.queue.clone(),
            worker: worker.clone(),
            control: job.control.clone(),
            id: envelope.id,
            receive_count: envelope.receive_count,
            attempt: envelope.attempts_count.saturating_add(1),
            received: job.received,
        };
        self.unleased.insert(job.token, unleased);
    }

    pub(crate) fn unleased_count(&self) -> usize {
        self.unleased.len()
    }

    /// Whether nothing is left to settle and no call is under way that could bring more.
    pub(crate) fn is_clean(&self) -> bool {
        self.held.is_empty() && self.settling == 0 && !self.fetch.is_calling
    }

    /// Whether somebody still wants to know how the message's handler ends.
    pub(crate) fn is_handled(&self, token: LeaseToken) -> bool {
        self.held.contains_key(&token) || self.unleased.contains_key(&token)
    }

    /// A handler has ended. Its outcome counts only while its lease is held.
    pub(crate) fn finish(
        &mut self,
        token: LeaseToken,
        disposition: Disposition,
        now: Instant,
        waiting: Option<Answer>,
    ) {
        // It may have sent something, or freed a key.
        self.fetch.is_wanted |= self.plan.stop_when_empty;
        if !self.unleased.is_empty()
            && let Some(unleased) = self.unleased.remove(&token)
        {
            self.to_tell.add(Outcome::Acked, || unleased.ended(Outcome::Acked));
        }
        let Some(held) = self.held.get_mut(&token) else { return };
        match held.phase {
            Phase::Running(_) => {
                // Its settlement may free the next message of its key.
                self.fetch.is_wanted |= held.is_keyed;
                // A handler that waits for its acknowledgement does not wait for company.
                self.is_urgent |= waiting.is_some();
                held.phase =
                    Phase::Decided(Decision { disposition, since: now, failures: 0, is_repeated: false, waiting });
                self.outbox.push_back(token);
            }
            Phase::Lost(_) => {
                if let Some(held) = self.held.remove(&token) {
                    self.to_tell.add(Outcome::Lost, || held.ended(Outcome::Lost, None));
                    held.disarm();
                }
            }
            // With no handler.
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
